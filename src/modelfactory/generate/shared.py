"""Continuations of one context, scored with the context read once.

The contexts of a batch are read up to the length of the shortest into a key/value cache; then come the rest
of each context and its first continuation, then, from the same state, the second, and so on. The cache is
copied for that, not wound back: the state of a recurrent mixer cannot be wound back.
Shapes: B rows, T positions, N scored tokens, V vocabulary.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from modelfactory.generate.quiet import Read, quiet, read
from modelfactory.generate.scoring import WindowScore, batches, padded, scores_of
from modelfactory.generate.windows import Window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch

WORTH_SHARING = 8
"""Tokens; below this the two passes through the model cost more than they save."""


@dataclass(frozen=True, slots=True)
class Group:
    """Windows with equal beginnings."""

    numbers: tuple[int, ...]
    """Of the windows in the caller's list."""
    windows: tuple[Window, ...]
    n_shared: int
    """Inputs that all of them have in common, and after which the first scored position comes."""

    @property
    def longest(self) -> int:
        """Return the inputs of its longest window."""
        return max(len(window.inputs) for window in self.windows)


def grouped(windows: Sequence[Window]) -> Iterator[Group]:
    """Put neighbours with equal inputs up to the first scored one together."""
    keys = [window.inputs[: window.first_scored] for window in windows]
    for key, numbers in groupby(range(len(windows)), keys.__getitem__):
        members = tuple(numbers)
        yield Group(members, tuple(windows[number] for number in members), len(key))


def is_worth_it(group: Group) -> bool:
    """Say whether reading the common part once saves anything."""
    return len(group.windows) > 1 and group.n_shared >= WORTH_SHARING


def score_groups(
    module: Any,
    groups: Sequence[Group],
    *,
    batch_tokens: int,
    on_batch: Callable[[int], None],
) -> Iterator[tuple[int, WindowScore]]:
    """Yield (number, score) of every window."""
    lengths = [group.longest for group in groups]
    for members in batches(lengths, batch_tokens):
        batch = [groups[member] for member in members]
        with quiet(module):
            cache = module.new_cache(len(batch), max(lengths[member] for member in members))
        yield from score_batch(module, batch, cache, 0)
        on_batch(sum(len(group.windows) for group in batch))


def score_batch(
    module: Any, batch: Sequence[Group], cache: Any, n_held: int
) -> Iterator[tuple[int, WindowScore]]:
    """Yield (number, score) of every window of the groups.

    Args:
        module: of the protocol of `models`.
        batch: one group for each row of the cache.
        cache: with room for the longest window; it is used up.
        n_held: inputs that the cache holds already, the first ones of every group.
    """
    n_read = min(group.n_shared for group in batch)
    n_rounds = max(len(group.windows) for group in batch)
    with quiet(module):
        if n_read > n_held:
            common = [group.windows[0].inputs[n_held:n_read] for group in batch]
            read(module, token_rows(module, common), cache)
        for number in range(n_rounds):
            last = number == n_rounds - 1
            found = _continued(module, batch, number, n_read, cache if last else copy.deepcopy(cache))
            yield from _round_scores(found, batch, number, n_read)


def token_rows(module: Any, rows: Sequence[Sequence[int]]) -> torch.Tensor:
    """Return rows of tokens as one tensor where the module is."""
    return padded(rows).to(next(iter(module.parameters())).device)


def _continued(module: Any, batch: Sequence[Group], number: int, n_read: int, cache: Any) -> Read:
    """Read continuation `number` of every group; one that has fewer gets a token nobody looks at."""
    rows = [group.windows[number].inputs[n_read:] if number < len(group.windows) else (0,) for group in batch]
    return read(module, token_rows(module, rows), cache)


def _round_scores(
    found: Read, batch: Sequence[Group], number: int, n_read: int
) -> Iterator[tuple[int, WindowScore]]:
    nothing = Window((), ())
    windows = [group.windows[number] if number < len(group.windows) else nothing for group in batch]
    scores = scores_of(found, [window.first_scored - n_read for window in windows], windows)
    for group, window, score in zip(batch, windows, scores, strict=True):
        if window is not nothing:
            yield group.numbers[number], score
