"""Paired differences of two variants on one measure, and their noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from modelfactory.errors import InvalidInput
from modelfactory.verdict.finding import Covers
from modelfactory.verdict.mcnemar import McNemar, mcnemar
from modelfactory.verdict.seeds import PooledNoise, SeedNoise, choose
from modelfactory.verdict.variance import MeanSquares, Noise, item_variance, mean_squares

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from modelfactory.verdict.grid import Grid
    from modelfactory.verdict.measure import Pair


class Spread(Protocol):
    """What turns a level into an interval, and a distance into a p-value."""

    def half_width(self, alpha: float) -> float:
        """Return half the width of the interval of confidence 1 - `alpha`."""

    def p_value(self, distance: float) -> float:
        """Return the two-sided p-value of a mean at `distance` from the null."""


@dataclass(frozen=True, kw_only=True)
class NeverDiffered:
    """Right-or-wrong items that agreed every time; the share that may yet differ has an exact bound.

    It is the bound of Clopper and Pearson (1934) for 0 of n.
    """

    n_clusters: int
    """Independent items seen."""

    def half_width(self, alpha: float) -> float:
        """Return the largest share of differing items that `alpha` allows."""
        return float(1.0 - (alpha / 2) ** (1.0 / self.n_clusters))

    def p_value(self, distance: float) -> float:
        """Return the level at which a share `distance` of differing items is just excluded."""
        return float(min(2.0 * (1.0 - min(abs(distance), 1.0)) ** self.n_clusters, 1.0))


@dataclass(frozen=True, kw_only=True)
class AlwaysDiffered:
    """The same difference in every cell: the spread is unknown, the sign test over clusters is exact."""

    n_clusters: int
    """Independent items seen."""
    difference: float
    """Found everywhere."""

    def half_width(self, alpha: float) -> float:
        """Return 0 where the sign test excludes no difference, else the distance to it."""
        return 0.0 if alpha >= self.p_value(self.difference) else abs(self.difference)

    def p_value(self, distance: float) -> float:
        """Return the p-value of the two-sided sign test."""
        return 1.0 if distance == 0 else float(2.0 ** (1 - self.n_clusters))


@dataclass(frozen=True, kw_only=True)
class Paired:
    """Paired differences, summed up."""

    baseline_value: float
    """Mean over paired seeds."""
    variant_value: float
    """Mean over paired seeds."""
    n_seeds: int
    """Paired seeds."""
    n_items: int
    """Shared items."""
    n_clusters: int
    """Their clusters."""
    noise: Noise | None
    """Of the difference; None where there is none to state."""
    spread: Spread | None
    """What intervals are made with: `noise`, or an exact rule where nothing varies."""
    covers: Covers
    """What `spread` covers."""
    model: str
    """In words."""
    notes: tuple[str, ...]
    """What was left out."""
    mcnemar: McNemar | None = None
    """Of two single-seed runs on right-or-wrong items."""

    @property
    def difference(self) -> float:
        """Return variant minus baseline."""
        return self.variant_value - self.baseline_value


def pair_up(grid: Grid, pair: Pair, pooled: PooledNoise) -> Paired | None:
    """Return the paired comparison on the shared seeds and items; None where one side has no outcome.

    Raises:
        InvalidInput: the two sides have no item in common.
    """
    base, other = grid.seeds(pair.baseline), grid.seeds(pair.variant)
    if not base or not other:
        return None
    seeds = sorted(base & other)
    if not seeds:
        return _unpaired(grid, pair)
    rows = [grid.rows[name, seed] for name in (pair.baseline, pair.variant) for seed in seeds]
    items = grid.covered(rows)
    if not items.size:
        raise _no_shared_item(grid, pair)
    notes = (*_seed_notes(grid, pair, base, other), *_item_notes(grid, rows, items), *_step_notes(grid, pair))
    return _summed_up(grid, rows, items, pooled.of_difference(items), notes)


def _summed_up(
    grid: Grid,
    rows: list[int],
    items: NDArray[np.int64],
    pooled: SeedNoise | None,
    notes: tuple[str, ...],
) -> Paired:
    scores, effective = grid.scores(rows, items)
    n_seeds = len(rows) // 2
    scale = float(np.abs(scores).max())
    squares = mean_squares(scores[n_seeds:] - scores[:n_seeds], effective, scale=scale)
    seeds = choose(_own_seed_noise(squares), pooled)
    noise = _noise(squares, seeds)
    base, other = float(scores[:n_seeds].mean()), float(scores[n_seeds:].mean())
    if squares.cluster == squares.residual == 0 and abs(other - base) <= 1e-12 * scale:
        other = base
    return Paired(
        baseline_value=base,
        variant_value=other,
        n_seeds=n_seeds,
        n_items=len(items),
        n_clusters=squares.n_clusters,
        noise=noise,
        spread=None if noise is None else _spread(noise, squares, other - base, grid.values[rows][:, items]),
        covers="nothing" if noise is None else "items only" if seeds is None else "seeds and items",
        model=_model(squares, seeds),
        notes=notes,
        mcnemar=mcnemar(grid.values[rows][:, items], grid.weights[rows][:, items], grid.clusters[items]),
    )


def _own_seed_noise(squares: MeanSquares) -> SeedNoise | None:
    if squares.n_seeds == 1:
        return None
    return SeedNoise(
        variance=squares.seed / squares.n_clusters,
        df=squares.n_seeds - 1,
        source="from this pair's own seeds",
    )


def _noise(squares: MeanSquares, seeds: SeedNoise | None) -> Noise | None:
    if squares.n_clusters == 1:
        return None
    return Noise(
        seed_variance=0.0 if seeds is None else seeds.variance / squares.n_seeds,
        seed_df=1.0 if seeds is None else seeds.df,
        item_variance=item_variance(squares),
        item_df=squares.cluster_df,
    )


def _spread(noise: Noise, squares: MeanSquares, difference: float, values: NDArray[np.float64]) -> Spread:
    if noise.variance > 0:
        return noise
    if difference != 0:
        return AlwaysDiffered(n_clusters=squares.n_clusters, difference=difference)
    # Real-valued outcomes that agree to the last bit come from equal models; right-or-wrong ones need not.
    return NeverDiffered(n_clusters=squares.n_clusters) if np.isin(values, (0.0, 1.0)).all() else noise


def _model(squares: MeanSquares, seeds: SeedNoise | None) -> str:
    paired = f"Differences paired by seed ({squares.n_seeds}) and by cluster of items ({squares.n_clusters})"
    if squares.n_clusters == 1:
        return f"{paired}; one cluster says nothing about noise between items."
    if seeds is None:
        return f"{paired}; noise of items only, since no variant of this task has a second seed."
    pooled = "" if "own" in seeds.source else ", assuming that variants share it"
    return (
        f"{paired}; crossed random effects of seed and cluster, seed noise {seeds.source} "
        f"({seeds.df:g} degrees of freedom){pooled}."
    )


def _unpaired(grid: Grid, pair: Pair) -> Paired:
    rows = {
        side: [row for (name, _), row in grid.rows.items() if name == side]
        for side in (pair.baseline, pair.variant)
    }
    items = grid.covered([row for some in rows.values() for row in some])
    if not items.size:
        raise _no_shared_item(grid, pair)
    means = {name: float(grid.scores(some, items)[0].mean()) for name, some in rows.items()}
    return Paired(
        baseline_value=means[pair.baseline],
        variant_value=means[pair.variant],
        n_seeds=0,
        n_items=len(items),
        n_clusters=len(np.unique(grid.clusters[items])),
        noise=None,
        spread=None,
        covers="nothing",
        model="The two sides share no seed, so nothing is paired.",
        notes=_seed_notes(grid, pair, grid.seeds(pair.baseline), grid.seeds(pair.variant)),
    )


def _seed_notes(grid: Grid, pair: Pair, base: set[int], other: set[int]) -> tuple[str, ...]:
    notes = []
    for name, alone in ((pair.baseline, base - other), (pair.variant, other - base)):
        if alone:
            notes.append(f"Only {name} has {_seeds(sorted(alone))}: not paired, left out.")
        if grid.behind.get(name):
            behind = _seeds(list(grid.behind[name]))
            notes.append(f"{name}, {behind}, has no outcome at step {grid.steps[name]:,}: left out.")
    return tuple(notes)


def _seeds(seeds: list[int]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(str(seed) for seed in seeds)}"


def _item_notes(grid: Grid, rows: list[int], items: NDArray[np.int64]) -> tuple[str, ...]:
    n_any = int((~np.isnan(grid.values[rows])).any(axis=0).sum())
    if n_any == len(items):
        return ()
    return (f"{n_any - len(items):,} of {n_any:,} items are not in every checkpoint compared: left out.",)


def _step_notes(grid: Grid, pair: Pair) -> tuple[str, ...]:
    base, other = grid.steps[pair.baseline], grid.steps[pair.variant]
    if base == other:
        return ()
    return (f"Taken at step {base:,} of {pair.baseline} and step {other:,} of {pair.variant}.",)


def _no_shared_item(grid: Grid, pair: Pair) -> InvalidInput:
    return InvalidInput(
        place=f"outcomes of {pair.baseline} and {pair.variant}, task {grid.measure.task}",
        found="no item that both have for every shared seed",
        wanted="the same items asked of both",
        remedy="Evaluate both on the same task definition; items are matched by item_id.",
    )
