"""Which source gives the n-th sequence, exact to one sequence at every prefix.

The problem is Tijdeman's chairman assignment ("The chairman assignment problem", Discrete Mathematics 32,
1980): choose a source for each n so that |count_s(n) - w_s n| < 1 for every source and every n. Solved as
Steiner and Yeomans do ("Level schedules for mixed-model, just-in-time processes", Management Science 39,
1993): the j-th sequence of source s may come no earlier than n = floor((j - 1) / w_s) + 1 and must come by
n = ceil(j / w_s); a schedule that meets these always exists, so earliest deadline first finds it. All in
integers. With weights a_s / D the schedule repeats after D sequences.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class Assignment:
    """Random access to an infinite assignment of sequences to sources.

    Args:
        shares: of each source, at least 1; their sum is the period.
        n_needed: sequences that will be asked about; a period longer than this is computed only that far
            (2 microseconds a sequence), which changes no answer.
    """

    def __init__(self, shares: Sequence[int], n_needed: int) -> None:
        self.shares = np.asarray(shares, dtype=np.int64)
        self.period = int(self.shares.sum())
        self._known = min(self.period, max(n_needed, 1))
        self._source = _earliest_deadline_first([int(share) for share in shares], self._known)
        self._positions = [np.flatnonzero(self._source == source) for source in range(len(shares))]
        self._rank = np.empty(self._known, dtype=np.int64)
        for positions in self._positions:
            self._rank[positions] = np.arange(len(positions))

    def at(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the source of each sequence, and how many that source gave before it.

        Args:
            numbers: of sequences, from 0, below `n_needed`.
        """
        turn, place = np.divmod(numbers, self.period)
        source = self._source[place].astype(np.int64)
        return source, turn * self.shares[source] + self._rank[place]

    def counts(self, n_sequences: int) -> tuple[int, ...]:
        """Return how many of the first `n_sequences` each source gives."""
        turn, place = divmod(n_sequences, self.period)
        return tuple(
            turn * int(share) + int(np.searchsorted(positions, place))
            for share, positions in zip(self.shares, self._positions, strict=True)
        )

    def number(self, source: int, rank: int) -> int:
        """Return the number of the `rank`-th sequence (from 0) of `source`, or -1 past `n_needed`."""
        turn, place = divmod(rank, int(self.shares[source]))
        positions = self._positions[source]
        return turn * self.period + int(positions[place]) if place < len(positions) else -1


def _earliest_deadline_first(shares: list[int], n_slots: int) -> NDArray[np.int32]:
    """Return the source of each of the first `n_slots` of a period."""
    period, n_sources = sum(shares), len(shares)
    chosen = np.zeros(n_slots, dtype=np.int32)
    if n_sources == 1:
        return chosen
    given = [0] * n_sources
    # An entry is time * n_sources + source: one integer compares faster than a tuple and breaks ties
    # towards the first source. `ready` is ordered by deadline, `waiting` by the first slot allowed.
    ready = [-(-period // share) * n_sources + source for source, share in enumerate(shares)]
    heapq.heapify(ready)
    waiting: list[int] = []
    for slot in range(1, n_slots + 1):
        while waiting and waiting[0] < (slot + 1) * n_sources:
            source = heapq.heappop(waiting) % n_sources
            deadline = -(-(given[source] + 1) * period // shares[source])
            heapq.heappush(ready, deadline * n_sources + source)
        source = heapq.heappop(ready) % n_sources
        chosen[slot - 1] = source
        given[source] += 1
        release = given[source] * period // shares[source] + 1
        heapq.heappush(waiting, release * n_sources + source)
    return chosen
