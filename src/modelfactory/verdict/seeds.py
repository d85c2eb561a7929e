"""Seed noise of a task, pooled over all variants that were trained more than once.

Few seeds say little about seed noise: with 2 there is one degree of freedom. Under the assumption that the
variants of a study share it, every variant's replicates estimate it together (randomised blocks: variants x
seeds, residual degrees of freedom (V - 1)(S - 1)).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy

from modelfactory.verdict.variance import ROUNDING

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from modelfactory.verdict.grid import Grid

FEW_DF = 4
"""Below this many degrees of freedom of its own, a pair borrows the study's seed noise."""
DIFFERS_AT = 0.05
"""A pair whose own seed noise is larger than the rest's, at this level of an F test, keeps its own."""


@dataclass(frozen=True, kw_only=True)
class SeedNoise:
    """Seed noise of a paired difference, or of one variant's score."""

    variance: float
    """Of the difference (or score) of one seed, averaged over the items at hand."""
    df: float
    """Degrees of freedom."""
    source: str
    """In words, for the statement of the model."""


class PooledNoise:
    """Seed noise from all runs of a grid, computed once for each set of items."""

    def __init__(self, grid: Grid) -> None:
        """Keep the grid; nothing is computed yet."""
        self._grid = grid
        self._of_difference: dict[bytes, SeedNoise | None] = {}
        self._of_score: dict[bytes, SeedNoise | None] = {}

    def of_difference(self, items: NDArray[np.int64]) -> SeedNoise | None:
        """Return the seed noise of a paired difference on `items`; None without replicates.

        Where variants share seeds, what a seed does to all of them alike is taken out, as pairing does;
        where only one variant has several seeds it cannot be, and the noise stated is an upper estimate.
        """
        name = items.tobytes()
        if name not in self._of_difference:
            keys, scores = _replicates(self._grid, items)
            noise = (_two_way(keys, scores) or _one_way(keys, scores, of=2.0)) if keys else None
            self._of_difference[name] = noise
        return self._of_difference[name]

    def of_score(self, items: NDArray[np.int64]) -> SeedNoise | None:
        """Return the seed noise of one variant's score, pooled within variants; None without replicates."""
        name = items.tobytes()
        if name not in self._of_score:
            keys, scores = _replicates(self._grid, items)
            self._of_score[name] = _one_way(keys, scores, of=1.0) if keys else None
        return self._of_score[name]


def _replicates(grid: Grid, items: NDArray[np.int64]) -> tuple[list[tuple[str, int]], NDArray[np.float64]]:
    """Return the metric on `items` of every run that has them all and a second seed."""
    keys = _replicated([key for key, row in grid.rows.items() if grid.has_all(row, items)])
    if not keys:
        return [], np.empty(0)
    scores, _ = grid.scores([grid.rows[key] for key in keys], items)
    return keys, scores.mean(axis=1)


def _replicated(keys: list[tuple[str, int]]) -> list[tuple[str, int]]:
    counts: dict[str, int] = {}
    for variant, _ in keys:
        counts[variant] = counts.get(variant, 0) + 1
    return [key for key in keys if counts[key[0]] > 1]


def _two_way(keys: list[tuple[str, int]], scores: NDArray[np.float64]) -> SeedNoise | None:
    design = np.hstack(
        [_indicators([variant for variant, _ in keys]), _indicators([seed for _, seed in keys])]
    )
    solution, _, rank, _ = np.linalg.lstsq(design, scores, rcond=None)
    df = len(keys) - int(rank)
    if df == 0:
        return None
    rest = _without_rounding(scores - design @ solution, scores)
    n_variants = len({variant for variant, _ in keys})
    return SeedNoise(
        variance=2.0 * float(rest @ rest) / df,
        df=df,
        source=f"pooled over {n_variants} variants of the study",
    )


def _one_way(keys: list[tuple[str, int]], scores: NDArray[np.float64], of: float) -> SeedNoise:
    design = _indicators([variant for variant, _ in keys])
    means = design @ (design.T @ scores / design.sum(axis=0))
    rest = _without_rounding(scores - means, scores)
    names = list(dict.fromkeys(variant for variant, _ in keys))
    df = len(keys) - len(names)
    return SeedNoise(
        variance=of * float(rest @ rest) / df, df=df, source=f"from the replicates of {', '.join(names)}"
    )


def _indicators(labels: list[str] | list[int]) -> NDArray[np.float64]:
    values, code = np.unique(np.asarray(labels), return_inverse=True)
    return np.asarray(np.eye(len(values))[code], dtype=np.float64)


def _without_rounding(rest: NDArray[np.float64], scores: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(np.abs(rest) <= ROUNDING * np.abs(scores).max(), 0.0, rest)


def choose(own: SeedNoise | None, pooled: SeedNoise | None) -> SeedNoise | None:
    """Return the seed noise to use: the pair's own if it knows enough or is noisier than the rest."""
    if own is None or pooled is None:
        return own or pooled
    if own.df >= FEW_DF or pooled.df <= own.df or _noisier(own, pooled):
        return own
    return pooled


def _noisier(own: SeedNoise, pooled: SeedNoise) -> bool:
    rest_df = pooled.df - own.df
    rest = max(pooled.variance * pooled.df - own.variance * own.df, 0.0) / rest_df
    if rest == 0:
        return own.variance > 0
    return bool(scipy.special.fdtrc(own.df, rest_df, own.variance / rest) < DIFFERS_AT)
