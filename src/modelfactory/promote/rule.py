"""What a variant must show before a name is moved to it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from modelfactory.spec import check_types, require


@dataclass(frozen=True, kw_only=True)
class NotWorse:
    """A task on which a variant may not be worse by as much as `margin`."""

    task: str
    """Name of the task."""
    margin: float
    """In the unit of the metric (.01 is one point of a share); above 0: equality cannot be shown."""

    def __post_init__(self) -> None:
        """Check types and range."""
        check_types(self)
        require(
            math.isfinite(self.margin) and self.margin > 0,
            place=f"NotWorse({self.task!r}).margin",
            found=self.margin,
            wanted="a number above 0",
        )


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Better than the current best on some tasks, not worse on others, and not contaminated."""

    better_on: tuple[str, ...]
    """Tasks on which the verdict must be "better"; at least one."""
    not_worse_on: tuple[NotWorse, ...]
    """Tasks on which the worse end of the difference's corrected interval must lie within the margin."""
    max_contaminated: float
    """Largest share of a task's documents that may have 13 words in a row of a training document; 0: none."""

    def __post_init__(self) -> None:
        """Check types and range."""
        check_types(self)
        require(
            bool(self.better_on), place="Rule.better_on", found=self.better_on, wanted="at least one task"
        )
        require(
            len(set(self.tasks)) == len(self.tasks),
            place="Rule",
            found=", ".join(self.tasks),
            wanted="each task once",
        )
        require(
            0 <= self.max_contaminated <= 1,
            place="Rule.max_contaminated",
            found=self.max_contaminated,
            wanted="a share from 0 to 1",
        )

    @property
    def tasks(self) -> tuple[str, ...]:
        """Return all tasks that it asks about."""
        return (*self.better_on, *(each.task for each in self.not_worse_on))

    def margin(self, task: str) -> float:
        """Return the margin of a task; 0 where it must be better."""
        return next((each.margin for each in self.not_worse_on if each.task == task), 0.0)
