"""Groups of one task that begin alike, as few-shot items do, scored with that beginning read once.

There are three levels: what many groups begin with (the shots), the context of a group, its continuations.
The beginning is read into a key/value cache of as many rows as a batch has, and every batch starts from a
copy of it. It is read in all rows, not in one that is then repeated: what a cache of the user's own holds
cannot be told apart by rows, and a batch has few of them.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from modelfactory.generate.quiet import quiet, read
from modelfactory.generate.shared import Group, score_batch, token_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from modelfactory.generate.scoring import WindowScore

WORTH_KEEPING = 32
"""Tokens; below this, reading a beginning apart costs more than it saves."""
MAX_HELD = 8_192
"""Positions of all rows of a cache, at most, unless one row alone has more: 0.4 GB for SmolLM2-135M in fp32,
of which three copies are held at once."""


@dataclass(frozen=True, slots=True)
class Run:
    """Groups that follow each other and begin alike."""

    groups: tuple[Group, ...]
    n_common: int
    """Inputs that all windows have in common; none of them is scored before."""

    @property
    def longest(self) -> int:
        """Return the inputs of its longest window."""
        return max(group.longest for group in self.groups)

    def rows(self, batch_tokens: int) -> int:
        """Return how many groups to score at once, given how many positions are passed at once."""
        longest = self.longest
        fitting = min(batch_tokens // (longest - self.n_common), MAX_HELD // longest)
        return min(max(1, fitting), len(self.groups))


def runs(groups: Sequence[Group]) -> Iterator[Run]:
    """Put neighbours together while what they have in common stays long.

    A group joins where it shares at least half of what the run had in common: so the items of another task
    begin a run of their own.
    """
    members: list[Group] = []
    n_common = 0
    for group in groups:
        n_equal = _n_equal(members[0], n_common, group) if members else 0
        if members and n_equal >= WORTH_KEEPING and (len(members) == 1 or 2 * n_equal >= n_common):
            members.append(group)
            n_common = n_equal
            continue
        if members:
            yield Run(tuple(members), n_common)
        members, n_common = [group], group.n_shared
    if members:
        yield Run(tuple(members), n_common)


def saves_reading(run: Run, batch_tokens: int) -> bool:
    """Say whether the beginning is read less often than there are groups."""
    return run.n_common >= WORTH_KEEPING and len(run.groups) > run.rows(batch_tokens)


def score_run(
    module: Any, run: Run, *, batch_tokens: int, on_batch: Callable[[int], None]
) -> Iterator[tuple[int, WindowScore]]:
    """Yield (number, score) of every window of a run."""
    n_rows = run.rows(batch_tokens)
    groups = sorted(run.groups, key=lambda group: -group.longest)
    cache = _read(module, run, n_rows, batch_tokens)
    for start in range(0, len(groups), n_rows):
        batch = groups[start : start + n_rows]
        filled = [*batch, *([batch[-1]] * (n_rows - len(batch)))]  # the cache has rows for so many
        found = dict(score_batch(module, filled, copy.deepcopy(cache), run.n_common))
        yield from found.items()
        on_batch(len(found))


def _read(module: Any, run: Run, n_rows: int, batch_tokens: int) -> Any:
    """Return a cache that holds the beginning in each row, read in pieces of `batch_tokens` at most."""
    beginning = run.groups[0].windows[0].inputs[: run.n_common]
    piece = max(1, batch_tokens // n_rows)
    with quiet(module):
        cache = module.new_cache(n_rows, run.longest)
        for start in range(0, len(beginning), piece):
            read(module, token_rows(module, [beginning[start : start + piece]] * n_rows), cache)
    return cache


def _n_equal(first: Group, n_common: int, other: Group) -> int:
    """Return how many of the first `n_common` inputs of `first` begin `other`, before what it scores."""
    limit = min(n_common, other.n_shared)
    ours, theirs = first.windows[0].inputs, other.windows[0].inputs
    if ours[:limit] == theirs[:limit]:
        return limit
    return next(n for n in range(limit) if ours[n] != theirs[n])
