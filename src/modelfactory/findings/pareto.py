"""The Pareto front of quality against cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable


class Point(NamedTuple):
    """What something costs, and how good it is."""

    cost: float
    quality: float


def front(points: Iterable[Point], *, higher_is_better: bool) -> list[Point]:
    """Return the points that no other one dominates, the cheapest first.

    One dominates another if it is at least as good for at most the cost, and better in one of the two. Equal
    points do not dominate each other and are one.
    """
    sign = 1.0 if higher_is_better else -1.0
    kept: list[Point] = []
    for point in sorted(set(points), key=lambda p: (p.cost, -sign * p.quality)):
        if not kept or sign * point.quality > sign * kept[-1].quality:
            kept.append(point)
    return kept
