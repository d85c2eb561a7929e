"""Outcomes of items: the table that verdicts are computed from."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from modelfactory.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


NAMES_SHOWN = 3


class Outcome(NamedTuple):
    """One item answered by one checkpoint."""

    variant: str
    seed: int
    step: int
    task: str
    metric: str
    item_id: str
    cluster: str
    value: float
    weight: float = 1.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcomes:
    """A table of outcomes, one array per column, all of equal length.

    The metric of a checkpoint is `sum(weight * value) / sum(weight)` over its items: the mean for weights
    of 1, bits per byte where `value` is the bits per byte of a document and `weight` its bytes.

    Raises:
        InvalidInput: columns of unequal length, values that are not finite, weights that are negative.
    """

    variant: NDArray[Any]
    """Name of the experiment without its seed."""
    seed: NDArray[np.int64]
    """Training seed; outcomes of equal seed are paired."""
    step: NDArray[np.int64]
    """Training step of the checkpoint."""
    task: NDArray[Any]
    """Name of the task."""
    metric: NDArray[Any]
    """Name of the metric that `value` is one item of."""
    item_id: NDArray[Any]
    """Equal ids are the same item, and are paired."""
    cluster: NDArray[Any]
    """Items of one cluster (questions on one document) are not independent of each other."""
    value: NDArray[np.float64]
    """The item's score."""
    weight: NDArray[np.float64]
    """The item's share in the metric, at least 0."""

    def __post_init__(self) -> None:
        """Bring every column to its type, and check."""
        for name, kind in _COLUMNS:
            object.__setattr__(self, name, _column(getattr(self, name), kind))
        _check_lengths(self)
        _refuse(self, ~np.isfinite(self.value), self.value, "a finite number", "value")
        _refuse(self, ~(np.isfinite(self.weight) & (self.weight >= 0)), self.weight, "at least 0", "weight")

    def __len__(self) -> int:
        """Return the number of outcomes."""
        return len(self.value)

    @classmethod
    def from_rows(cls, rows: Iterable[Outcome | tuple[Any, ...]]) -> Outcomes:
        """Make a table of rows, each in the order of `Outcome`."""
        columns: list[Any] = list(zip(*(Outcome(*row) for row in rows), strict=True)) or [()] * len(_COLUMNS)
        return cls(**dict(zip((name for name, _ in _COLUMNS), columns, strict=True)))

    @classmethod
    def of_checkpoint(
        cls,
        *,
        variant: str,
        seed: int,
        step: int,
        task: str,
        metric: str,
        item_id: Sequence[str],
        cluster: Sequence[str],
        value: Sequence[float],
        weight: Sequence[float] | None = None,
    ) -> Outcomes:
        """Make the table of one checkpoint x task from the columns of its `items.parquet`."""
        given = {"variant": variant, "seed": seed, "step": step, "task": task, "metric": metric}
        constant: dict[str, Any] = {
            name: np.full(len(value), given[name], dtype=kind) for name, kind in _COLUMNS if name in given
        }
        return cls(
            **constant,
            item_id=np.asarray(item_id, dtype=object),
            cluster=np.asarray(cluster, dtype=object),
            value=np.asarray(value, dtype=np.float64),
            weight=np.ones(len(value)) if weight is None else np.asarray(weight, dtype=np.float64),
        )

    @classmethod
    def concatenate(cls, tables: Sequence[Outcomes]) -> Outcomes:
        """Put tables below each other."""
        if not tables:
            return cls.from_rows(())
        return cls(**{name: np.concatenate([getattr(t, name) for t in tables]) for name, _ in _COLUMNS})

    def where(self, mask: NDArray[np.bool_]) -> Outcomes:
        """Return the rows that `mask` marks."""
        return Outcomes(**{field.name: getattr(self, field.name)[mask] for field in fields(self)})

    def variants(self) -> list[str]:
        """Return the variants in order of appearance."""
        return list(dict.fromkeys(self.variant.tolist()))


_COLUMNS: tuple[tuple[str, Any], ...] = (
    ("variant", object),
    ("seed", np.int64),
    ("step", np.int64),
    ("task", object),
    ("metric", object),
    ("item_id", object),
    ("cluster", object),
    ("value", np.float64),
    ("weight", np.float64),
)


def _column(values: Any, kind: Any) -> NDArray[Any]:
    # Rows that are already arrays of this type are kept, not copied: a study has millions of outcomes.
    return np.asarray(values, dtype=kind)


def _check_lengths(table: Outcomes) -> None:
    lengths = {name: len(getattr(table, name)) for name, _ in _COLUMNS}
    if len(set(lengths.values())) > 1:
        raise InvalidInput(
            place="outcomes",
            found=", ".join(f"{name}: {n}" for name, n in lengths.items()),
            wanted="columns of one length",
            remedy="Give every outcome a value in each column.",
        )


def _refuse(table: Outcomes, bad: NDArray[np.bool_], found: NDArray[Any], wanted: str, column: str) -> None:
    rows = np.flatnonzero(bad)
    if not rows.size:
        return
    first = rows[0]
    items = ", ".join(str(table.item_id[row]) for row in rows[:NAMES_SHOWN])
    more = f" and {rows.size - NAMES_SHOWN} more" if rows.size > NAMES_SHOWN else ""
    raise InvalidInput(
        place=f"outcomes.{column} of {table.variant[first]}, seed {table.seed[first]}, "
        f"step {table.step[first]}, task {table.task[first]}, item {items}{more}",
        found=str(found[first]),
        wanted=wanted,
        remedy="An item without a score must be scored or left out of every variant, never averaged over.",
    )
