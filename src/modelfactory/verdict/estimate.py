"""The score of each variant, with an interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from modelfactory.verdict.finding import Covers
from modelfactory.verdict.grid import Grid, make_grid
from modelfactory.verdict.measure import Measure
from modelfactory.verdict.paired import NeverDiffered
from modelfactory.verdict.seeds import FEW_DF, PooledNoise, SeedNoise
from modelfactory.verdict.variance import Noise, item_variance, mean_squares

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from modelfactory.verdict.outcomes import Outcomes


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Mean over seeds of one variant's metric."""

    variant: str
    """Name of the variant."""
    measure: Measure
    """Task and metric."""
    step: int
    """Training step of the checkpoints."""
    value: float
    """Mean over seeds of the metric."""
    interval: tuple[float, float] | None
    """At confidence 1 - alpha; None where no noise is known."""
    covers: Covers
    """The noise that the interval covers."""
    n_seeds: int
    """Seeds averaged over."""
    n_items: int
    """Items that every one of those seeds has."""
    exact: bool = False
    """Whether the interval is the exact bound on a share whose items all came out alike."""


def estimate(
    outcomes: Outcomes, *, measures: Sequence[Measure], alpha: float = 0.05, step: int | None = None
) -> list[Estimate]:
    """Return the score of each variant on each measure it has outcomes of, by measure, then variant.

    Seed noise is pooled over the variants where a variant's own seeds are few. Intervals of two variants
    that overlap say little about their difference: that is what `compare` is for. The interval of a share
    ends at 0 and 1; where all outcomes are 0, or all are 1, no spread was seen, and it is at least the bound
    of Clopper and Pearson (1934) for as many independent items.
    """
    found: list[Estimate] = []
    for measure in measures:
        grid = make_grid(outcomes, measure, step)
        pooled = PooledNoise(grid)
        found += [_estimate(grid, variant, alpha, pooled) for variant in grid.steps]
    return found


def _estimate(grid: Grid, variant: str, alpha: float, pooled: PooledNoise) -> Estimate:
    rows = [row for (name, _), row in grid.rows.items() if name == variant]
    items = grid.covered(rows)
    scores, effective = grid.scores(rows, items)
    value = float(scores.mean())
    noise, covers = _noise(pooled.of_score(items), scores, effective)
    half = None if noise is None else noise.half_width(alpha)
    bound = _exact_half_width(grid.values[rows][:, items], scores.shape[1], alpha)
    exact = half is not None and bound > half
    return Estimate(
        variant=variant,
        measure=grid.measure,
        step=grid.steps[variant],
        value=value,
        interval=None if half is None else _interval(value, max(half, bound), grid.measure),
        covers=covers,
        n_seeds=len(rows),
        n_items=len(items),
        exact=exact,
    )


def _exact_half_width(values: NDArray[np.float64], n_clusters: int, alpha: float) -> float:
    """Return how far a share may be from 0 or 1 if all its outcomes are that; 0 for anything else."""
    if not values.size or values.min() != values.max() or values.flat[0] not in (0.0, 1.0):
        return 0.0
    # Seeds are not counted: items that are too hard for one of them are too hard for all.
    return NeverDiffered(n_clusters=n_clusters).half_width(alpha)


def _interval(value: float, half: float, measure: Measure) -> tuple[float, float]:
    low, high = value - half, value + half
    return (max(low, 0.0), min(high, 1.0)) if measure.unit == "share" else (low, high)


def _noise(
    pooled: SeedNoise | None, scores: NDArray[np.float64], effective: float
) -> tuple[Noise | None, Covers]:
    squares = mean_squares(scores, effective)
    n_seeds, n_clusters = scores.shape
    if n_clusters == 1:
        return None, "nothing"
    variance, df = squares.seed / n_clusters, n_seeds - 1.0
    if pooled is not None and df < FEW_DF and pooled.df > df:
        variance, df = pooled.variance, pooled.df
    known = df > 0
    noise = Noise(
        seed_variance=variance / n_seeds if known else 0.0,
        seed_df=max(df, 1.0),
        item_variance=item_variance(squares),
        item_df=squares.cluster_df,
    )
    return noise, "seeds and items" if known else "items only"
