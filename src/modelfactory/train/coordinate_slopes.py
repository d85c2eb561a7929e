"""What a coordinate check says: slopes against the width, and whether they are near 0."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from modelfactory.train.coordinates import Coordinate, Rule

STABLE = 0.25
"""The largest slope, either way, that is called stable: fourfold width then changes activations by a factor
of at most 1.41. The paper reads its figure 5 by eye. Over a few steps at widths of 64 and more, models with
muP showed up to 0.15 at a fair learning rate, and those without it 0.4 and more."""

Trend = Literal["stable", "grows", "shrinks"]
Slopes = dict[tuple["Rule", str], float]
"""By rule and kind of activation."""


def trend(slope: float) -> Trend:
    """Return in a word what a slope says; that of STABLE itself is stable."""
    if abs(slope) <= STABLE:
        return "stable"
    return "grows" if slope > 0 else "shrinks"


def unstable(slopes: Slopes, rule: Rule) -> dict[str, float]:
    """Return the slopes of the kinds that are not stable under a rule."""
    return {kind: slope for (own, kind), slope in slopes.items() if own == rule and trend(slope) != "stable"}


def slopes(coordinates: Sequence[Coordinate], step: int, of: Literal["size", "change"] = "change") -> Slopes:
    """Return the slope of the log of a size or change against log width after `step` updates.

    0: it does not depend on the width. 1: it grows as the width does.
    """
    groups: dict[tuple[Rule, str], list[tuple[float, float]]] = {}
    for each in coordinates:
        if each.step == step:
            point = (math.log(each.width), math.log(getattr(each, of)))
            groups.setdefault((each.rule, each.kind), []).append(point)
    return {key: _slope(points) for key, points in groups.items()}


def _slope(points: Sequence[tuple[float, float]]) -> float:
    x_mean, y_mean = (sum(axis) / len(points) for axis in zip(*points, strict=True))
    spread = sum((x - x_mean) ** 2 for x, _ in points)
    return float(sum((x - x_mean) * (y - y_mean) for x, y in points) / spread)
