"""How many further seeds would settle a comparison, and what a design can see at all."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy

from modelfactory.verdict.variance import Noise

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


MOST_SEEDS = 10_000
MOST_DF = 1e6
MOST_STDERRS = 1e5
FAR = 30.0


@dataclass(frozen=True, kw_only=True)
class Design:
    """Noise of a comparison, as it would be with other numbers of seeds and items."""

    noise: Noise
    """As found, with `n_seeds` seeds."""
    n_seeds: int
    """Seeds the noise was found with."""
    alpha: float
    """Level of one comparison, already divided by the number of comparisons."""

    def power(self, difference: float, n_seeds: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the chance to call a true `difference` better or worse, by number of seeds."""
        stderr, critical, df = self._at(n_seeds, self.alpha)
        return _exceeds(critical, abs(difference) / stderr, df)

    def power_of_equivalence(
        self, difference: float, margin: float, n_seeds: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return the chance to show that a true `difference` is within `margin`, by number of seeds."""
        stderr, critical, df = self._at(n_seeds, 2 * self.alpha)
        near, far = (margin - abs(difference)) / stderr, (margin + abs(difference)) / stderr
        reached = scipy.special.stdtr(df, near - critical) + scipy.special.stdtr(df, far - critical) - 1.0
        return np.asarray(np.maximum(reached, 0.0))

    def _at(self, n_seeds: NDArray[np.float64], alpha: float) -> tuple[NDArray[np.float64], ...]:
        seed = self.noise.seed_variance * self.n_seeds / n_seeds
        item = np.full_like(seed, self.noise.item_variance)
        seed_df = np.maximum(np.maximum(n_seeds - 1, self.noise.seed_df), 1.0)
        t_seed, t_item = (
            scipy.special.stdtrit(seed_df, alpha / 2),
            scipy.special.stdtrit(max(self.noise.item_df, 1.0), alpha / 2),
        )
        variance = np.maximum(seed + item, np.finfo(np.float64).tiny)
        critical = np.sqrt((t_seed**2 * seed + t_item**2 * item) / variance)
        share = seed / variance
        df = 1.0 / (share**2 / seed_df + (1.0 - share) ** 2 / max(self.noise.item_df, 1.0) + 1.0 / MOST_DF)
        return np.sqrt(variance), critical, df


def _exceeds(
    critical: NDArray[np.float64], shift: NDArray[np.float64], df: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the chance that a noncentral t exceeds `critical`."""
    exact = 1.0 - scipy.special.nctdtr(df, np.minimum(shift, FAR), critical)
    # Far out the normal part no longer matters, and the exact function loses its digits.
    return np.asarray(np.where(shift < FAR, exact, scipy.special.chdtr(df, df * (shift / critical) ** 2)))


@dataclass(frozen=True, kw_only=True)
class Need:
    """What it would take to settle a comparison."""

    seeds: int | None
    """Further seeds; None where seeds alone cannot settle it."""
    shows: str
    """What they would show with the stated power: "difference" or "equivalence"."""
    items: int | None = None
    """Clusters of items needed in all, where seeds cannot settle it and more items could."""


def further_seeds(design: Design, difference: float, margin: float, power: float, n_clusters: int) -> Need:
    """Return the least number of further seeds that shows a difference, or that it is within the margin.

    The observed difference is taken for the true one: the usual planning value, and an optimistic one
    where it was picked because it is large.
    """
    chances = {
        "difference": lambda n: design.power(difference, n),
        "equivalence": lambda n: design.power_of_equivalence(difference, margin, n),
    }
    found = [
        (_least(chance, design.n_seeds, power), shows)
        for shows, chance in chances.items()
        if _possible(shows, difference, margin)
    ]
    found = [(seeds, shows) for seeds, shows in found if seeds <= MOST_SEEDS]
    if found:
        return Need(seeds=min(found)[0], shows=min(found)[1])
    wanted = max(abs(difference), margin - abs(difference))
    return Need(seeds=None, shows="difference", items=_items(design, wanted, power, n_clusters))


def _least(chance: Callable[[NDArray[np.float64]], NDArray[np.float64]], have: int, power: float) -> int:
    """Return the least number of seeds beyond `have` that reaches `power`: it grows with their number."""
    return 1 + bisect_left(
        range(1, MOST_SEEDS + 1),
        x=True,
        key=lambda more: bool(chance(np.array([float(have + more)]))[0] >= power),
    )


def _possible(shows: str, difference: float, margin: float) -> bool:
    return difference != 0 if shows == "difference" else abs(difference) < margin


def _items(design: Design, difference: float, power: float, n_clusters: int) -> int | None:
    """Return the clusters at which item noise alone would let the difference be seen."""
    if difference == 0 or design.noise.item_variance == 0:
        return None
    normal = float(
        scipy.special.stdtrit(MOST_DF, 1 - design.alpha / 2) + scipy.special.stdtrit(MOST_DF, power)
    )
    needed = n_clusters * design.noise.item_variance * (normal / difference) ** 2
    return max(math.ceil(needed), n_clusters + 1)


def detectable_difference(noise: Noise, *, alpha: float = 0.05, power: float = 0.8) -> float:
    """Return the true difference that a comparison with this noise calls better or worse with `power`.

    Without any noise that is every difference above 0, so 0.
    """
    if noise.variance == 0:
        return 0.0
    design, here = Design(noise=noise, n_seeds=1, alpha=alpha), np.ones(1)
    low, high = 0.0, MOST_STDERRS * noise.stderr
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if design.power(middle, here)[0] >= power else (middle, high)
    return high
