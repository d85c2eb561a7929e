"""What difference a design will see, from the noise of earlier runs of the same task."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from modelfactory.verdict.grid import Grid, make_grid
from modelfactory.verdict.power import detectable_difference
from modelfactory.verdict.seeds import FEW_DF, PooledNoise
from modelfactory.verdict.variance import Noise, item_variance, mean_squares

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from modelfactory.verdict.measure import Measure
    from modelfactory.verdict.outcomes import Outcomes


@dataclass(frozen=True, kw_only=True)
class ReplicateNoise:
    """Noise of a paired difference, as earlier runs show it."""

    seed_variance: float
    """Of the difference of one seed, averaged over the items."""
    seed_df: float
    """Degrees of freedom it is known with."""
    item_variance: float | None
    """Of the difference, from the choice of items; None where only one variant was evaluated."""
    n_clusters: int
    """Clusters of those items."""
    n_runs: int
    """Runs that it is from."""
    variants: tuple[str, ...]
    """Of those runs, the variants that have more than one seed."""

    @property
    def never_varied(self) -> bool:
        """Return whether those runs came out all alike, as on a task that none can do: it tells no noise."""
        return self.seed_variance == 0 and not self.item_variance


def replicate_noise(outcomes: Outcomes, measure: Measure) -> ReplicateNoise | None:
    """Return the noise that runs of one task show; None without a variant that has two seeds.

    Each variant is taken at its last step, on the items that all have. Noise between items is the mean over
    neighbouring pairs of variants; with one variant it cannot be seen.
    """
    grid = make_grid(outcomes, measure)
    counts = {name: len(grid.seeds(name)) for name in grid.steps}
    items = grid.covered(list(grid.rows.values())) if grid.rows else np.empty(0, dtype=np.int64)
    seeds = PooledNoise(grid).of_difference(items) if items.size else None
    if seeds is None:
        return None
    between = _between_items(grid, items)
    return ReplicateNoise(
        seed_variance=seeds.variance,
        seed_df=seeds.df,
        item_variance=float(np.mean(between)) if between else None,
        n_clusters=len(np.unique(grid.clusters[items])),
        n_runs=len(grid.rows),
        variants=tuple(name for name, n in counts.items() if n > 1),
    )


def _between_items(grid: Grid, items: NDArray[np.int64]) -> list[float]:
    found = []
    for one, other in pairwise(grid.steps):
        shared = sorted(grid.seeds(one) & grid.seeds(other))
        if shared:
            rows = [grid.rows[name, seed] for name in (one, other) for seed in shared]
            scores, effective = grid.scores(rows, items)
            n = len(shared)
            found.append(item_variance(mean_squares(scores[n:] - scores[:n], effective)))
    return found


def planned_difference(
    noise: ReplicateNoise,
    seeds: Mapping[str, Sequence[int]],
    *,
    n_paired: int,
    n_comparisons: int,
    alpha: float = 0.05,
    power: float = 0.8,
) -> float | None:
    """Return the true difference that a planned comparison calls better or worse with `power`.

    The noise of earlier runs is taken for the true one; degrees of freedom are those that the design itself
    will have. The number of items is taken to be that of the earlier runs.

    Args:
        noise: of the same task.
        seeds: variant -> planned seeds, of the whole study: they tell the seed noise together.
        n_paired: seeds that both sides of the comparison have.
        n_comparisons: that are corrected for; the level of one is `alpha` / `n_comparisons`, as for the
            smallest p-value under Holm's rule.
        alpha: level of all together.
        power: chance to see the difference.

    Returns:
        The difference in the metric's own unit; None where the design cannot know its seed noise, or the
        earlier runs never varied.
    """
    df = _planned_df(seeds, n_paired)
    if n_paired == 0 or df == 0 or noise.n_clusters < 2 or noise.never_varied:
        return None
    planned = Noise(
        seed_variance=noise.seed_variance / n_paired,
        seed_df=df,
        item_variance=noise.item_variance or 0.0,
        item_df=noise.n_clusters - 1.0,
    )
    return detectable_difference(planned, alpha=alpha / n_comparisons, power=power)


def _planned_df(seeds: Mapping[str, Sequence[int]], n_paired: int) -> float:
    """Return the degrees of freedom of seed noise that `compare` will have: a pair's own, or pooled."""
    own = max(n_paired - 1, 0)
    if own >= FEW_DF:
        return own
    replicated = {name: set(each) for name, each in seeds.items() if len(set(each)) > 1}
    if not replicated:
        return own
    runs, all_seeds = sum(map(len, replicated.values())), len(set().union(*replicated.values()))
    two_way = runs - len(replicated) - all_seeds + 1
    return max(own, two_way if two_way > 0 else runs - len(replicated))
