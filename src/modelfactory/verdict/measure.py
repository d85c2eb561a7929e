"""What is compared: one metric of one task, and what counts as a difference worth having."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from modelfactory.errors import InvalidInput


class Pair(Protocol):
    """Two variants to compare; `modelfactory.Comparison` is one."""

    @property
    def baseline(self) -> str:
        """Name of the variant that differences are taken against."""

    @property
    def variant(self) -> str:
        """Name of the variant that is judged."""


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One metric of one task."""

    task: str
    """Name of the task, as in the outcomes."""
    metric: str
    """Name of the metric, as in the outcomes."""
    higher_is_better: bool
    """False for losses and bits per byte."""
    margin: float = 0.0
    """Differences below this do not matter, in the metric's own unit. 0: equivalence is never claimed."""
    unit: str = ""
    """Printed after numbers. "share" marks a proportion: printed in per cent, its differences in points."""

    def __post_init__(self) -> None:
        """Refuse a margin that is no distance."""
        if not (math.isfinite(self.margin) and self.margin >= 0):
            raise InvalidInput(
                place=f"margin of {self.task}/{self.metric}",
                found=repr(self.margin),
                wanted="a number of at least 0",
                remedy="Give the smallest difference that matters, or 0 never to claim equivalence.",
            )

    @property
    def label(self) -> str:
        """Return the name to print: the metric is left out where it repeats the task."""
        return self.task if self.metric in {"", self.task} else f"{self.task} ({self.metric})"
