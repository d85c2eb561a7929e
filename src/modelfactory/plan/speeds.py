"""How long stages of one kind took on this machine, and what that says of another.

A stage takes time that does not depend on its size (starting, compiling, writing a checkpoint) and time that
does. One size alone cannot tell them apart: a large stage foretold from small ones would come out too long.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from modelfactory.store import Store

_KEPT = 5
"""Stages remembered of each size, sizes being counted by powers of 2."""
APART = 2.0
"""Sizes that differ by this factor tell the part of the time that does not depend on size."""
NEAR = 4.0
"""A size known from one that differs by this factor at most, or lying between two known ones, is measured."""


class Took(NamedTuple):
    """A stage that ran here."""

    work: float
    """In the unit of its kind."""
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Seconds as a straight line over work."""

    fixed_s: float
    """Whatever the size, at least 0."""
    per_unit_s: float
    """More for each unit of work."""
    known: tuple[float, float]
    """Least and most work that was measured."""

    def seconds(self, work: float) -> float:
        """Return the seconds a stage of this size takes."""
        return self.fixed_s + self.per_unit_s * work

    def covers(self, work: float) -> bool:
        """Return whether stages of about this size have run here."""
        least, most = self.known
        return least / NEAR <= work <= most * NEAR


def speed(took: Sequence[Took]) -> Speed:
    """Return the line through stages that ran: the median of the slopes between them (Theil 1950, Sen 1968).

    With one size only all of the time is taken to grow with the work: too long for larger stages, too short
    for smaller ones, see `Speed.covers`.
    """
    sizes = [each.work for each in took]
    known = (min(sizes), max(sizes))
    slopes = [
        (after.seconds - before.seconds) / (after.work - before.work)
        for before, after in combinations(sorted(took), 2)
        if after.work >= APART * before.work
    ]
    slope = median(slopes) if slopes else 0.0
    if slope <= 0:
        per_unit = median(each.seconds / each.work for each in took)
        return Speed(fixed_s=0.0, per_unit_s=per_unit, known=known)
    fixed = max(median(each.seconds - slope * each.work for each in took), 0.0)
    return Speed(fixed_s=fixed, per_unit_s=slope, known=known)


def remember(store: Store, kind: str, keys: Iterable[str], took: Took) -> None:
    """Keep what a stage took, with the few before it of about its size."""
    for key in keys:
        known = [*recall(store, kind, key), took]
        store.cache_put(_key(kind, key), [list(each) for each in _latest(known)])


def recall(store: Store, kind: str, key: str) -> list[Took]:
    """Return what stages took, oldest first."""
    return [Took(*each) for each in store.cache_get(_key(kind, key)) or ()]


def _latest(took: Sequence[Took]) -> list[Took]:
    kept: list[Took] = []
    counts: dict[int, int] = {}
    for each in reversed(took):
        size = math.floor(math.log2(each.work))
        counts[size] = counts.get(size, 0) + 1
        if counts[size] <= _KEPT:
            kept.append(each)
    return kept[::-1]


def _key(kind: str, key: str) -> str:
    return f"seconds of {kind}/{key}"
