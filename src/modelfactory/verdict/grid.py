"""Outcomes of one task as a grid: one row per (variant, seed), one column per item."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from modelfactory.errors import InvalidInput
from modelfactory.verdict.measure import Measure
from modelfactory.verdict.variance import cluster_scores

if TYPE_CHECKING:
    from modelfactory.verdict.outcomes import Outcomes


@dataclass(frozen=True, kw_only=True, eq=False)
class Grid:
    """All outcomes of one measure, each variant at one step."""

    measure: Measure
    """What the values are."""
    rows: Mapping[tuple[str, int], int]
    """(variant, seed) -> row."""
    steps: Mapping[str, int]
    """variant -> the step its outcomes are from."""
    behind: Mapping[str, tuple[int, ...]]
    """variant -> seeds that have outcomes, but not at that step."""
    clusters: NDArray[np.int64]
    """Per item, the number of its cluster."""
    values: NDArray[np.float64]
    """(rows, items); NaN where there is no outcome."""
    weights: NDArray[np.float64]
    """(rows, items); NaN where there is no outcome."""

    def seeds(self, variant: str) -> set[int]:
        """Return the seeds of a variant."""
        return {seed for name, seed in self.rows if name == variant}

    def covered(self, rows: list[int]) -> NDArray[np.int64]:
        """Return the items that all of `rows` have outcomes of."""
        return np.flatnonzero(~np.isnan(self.values[rows]).any(axis=0))

    def has_all(self, row: int, items: NDArray[np.int64]) -> bool:
        """Return whether a row has an outcome of each of `items`."""
        return not np.isnan(self.values[row, items]).any()

    def scores(self, rows: list[int], items: NDArray[np.int64]) -> tuple[NDArray[np.float64], float]:
        """Return `cluster_scores` of some rows on some items."""
        if len(items) == self.values.shape[1]:
            return cluster_scores(self.values[rows], self.weights[rows], self.clusters)
        picked = np.ix_(np.asarray(rows), items)
        return cluster_scores(self.values[picked], self.weights[picked], self.clusters[items])


def make_grid(outcomes: Outcomes, measure: Measure, step: int | None = None) -> Grid:
    """Lay out the outcomes of one measure.

    Args:
        outcomes: any outcomes; those of other measures are ignored.
        measure: the task and metric.
        step: of the checkpoints to take; by default each variant's last.

    Raises:
        InvalidInput: an item twice in one checkpoint, or one item in two clusters.
    """
    table = outcomes.where((outcomes.task == measure.task) & (outcomes.metric == measure.metric))
    runs = set(zip(table.variant.tolist(), table.seed.tolist(), table.step.tolist(), strict=True))
    steps = _steps(runs, step)
    wanted = np.array([steps.get(name) for name in table.variant.tolist()], dtype=object)
    kept = table.where((table.step == wanted).astype(bool))
    keys = list(dict.fromkeys(zip(kept.variant.tolist(), kept.seed.tolist(), strict=True)))
    rows = {key: row for row, key in enumerate(keys)}
    at = np.array(
        [rows[key] for key in zip(kept.variant.tolist(), kept.seed.tolist(), strict=True)], dtype=np.int64
    )
    items, first, item = np.unique(kept.item_id.astype(object), return_index=True, return_inverse=True)
    _refuse_twice(kept, at * max(len(items), 1) + item)
    _refuse_moved(kept, first, item)
    _, clusters = np.unique(kept.cluster[first].astype(object), return_inverse=True)
    shape = (len(rows), len(items))
    return Grid(
        measure=measure,
        rows=rows,
        steps={name: steps[name] for name, _ in keys},
        behind=_behind(runs, set(rows)),
        clusters=clusters.astype(np.int64),
        values=_laid_out(shape, at, item, kept.value),
        weights=_laid_out(shape, at, item, kept.weight),
    )


def _steps(runs: set[tuple[str, int, int]], step: int | None) -> dict[str, int]:
    last: dict[str, int] = {}
    for name, _, at_step in runs:
        last[name] = max(last.get(name, at_step), at_step)
    return last if step is None else dict.fromkeys(last, step)


def _behind(runs: set[tuple[str, int, int]], there: set[tuple[str, int]]) -> dict[str, tuple[int, ...]]:
    missing = sorted({(name, seed) for name, seed, _ in runs} - there)
    return {
        name: tuple(seed for other, seed in missing if other == name)
        for name in dict.fromkeys(n for n, _ in missing)
    }


def _laid_out(
    shape: tuple[int, int], row: NDArray[np.int64], item: NDArray[Any], column: NDArray[np.float64]
) -> NDArray[np.float64]:
    laid_out = np.full(shape, np.nan)
    laid_out[row, item] = column
    return laid_out


def _refuse_twice(table: Outcomes, cell: NDArray[Any]) -> None:
    _, first, counts = np.unique(cell, return_index=True, return_counts=True)
    if (counts > 1).any():
        row = first[int(np.argmax(counts > 1))]
        raise InvalidInput(
            place=f"outcomes of {table.variant[row]}, seed {table.seed[row]}, task {table.task[row]}",
            found=f"item {table.item_id[row]} {int(counts.max())} times",
            wanted="each item once in a checkpoint",
            remedy="Give the items of a task distinct ids, and each checkpoint's outcomes once.",
        )


def _refuse_moved(table: Outcomes, first: NDArray[Any], item: NDArray[Any]) -> None:
    moved = np.flatnonzero(table.cluster != table.cluster[first][item])
    if moved.size:
        row = moved[0]
        raise InvalidInput(
            place=f"outcomes of {table.variant[row]}, seed {table.seed[row]}, task {table.task[row]}",
            found=f"item {table.item_id[row]} in cluster {table.cluster[row]} and in cluster "
            f"{table.cluster[first[item[row]]]}",
            wanted="one cluster for each item",
            remedy="Derive the cluster from the item alone, for example the document it was cut from.",
        )
