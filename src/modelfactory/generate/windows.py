"""How a text longer than the context is cut so that every token is scored once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from modelfactory.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from modelfactory.generate.encoding import EncodedPair


@dataclass(frozen=True, slots=True)
class Window:
    """What a model reads at once, and which of the next tokens count."""

    inputs: tuple[int, ...]
    """At most the context length."""
    targets: tuple[int, ...]
    """The tokens that follow the last `len(targets)` inputs."""

    @property
    def first_scored(self) -> int:
        """Position of the input whose next token is the first to count."""
        return len(self.inputs) - len(self.targets)


def rolling_windows(
    tokens: Sequence[int], *, prefix_id: int, max_len: int, min_context: int = 1
) -> Iterator[Window]:
    """Cut `tokens` into windows in which each is a target exactly once.

    The first token is predicted from `prefix_id`. As in lm-evaluation-harness, windows follow each other
    with `min_context` tokens of overlap, and the last one reaches back to fill the whole context.

    Args:
        tokens: a text, without the token that starts it.
        prefix_id: what the first token is predicted from.
        max_len: context length of the model.
        min_context: tokens before each target at least, where the text has them; a larger overlap costs
            `max_len / (max_len - min_context + 1)` times the work and gives fewer bits per byte.

    Raises:
        InvalidInput: `min_context` is not in 1..max_len.
    """
    if not 1 <= min_context <= max_len:
        raise InvalidInput(
            place="min_context",
            found=str(min_context),
            wanted=f"1 to the context length {max_len}",
            remedy="Half the context length is a usual choice where 1 is too coarse.",
        )
    line = (prefix_id, *tokens)
    target = 1
    while target < len(line):
        start = max(0, target - min_context)
        end = min(len(line), start + max_len + 1)
        if end == len(line):
            start = max(0, end - 1 - max_len)
        yield Window(line[start : end - 1], line[target:end])
        target = end


def windows_of_pair(pair: EncodedPair, *, prefix_id: int, max_len: int) -> tuple[list[Window], int]:
    """Return the windows that score a continuation, and how many context tokens were cut.

    A context that is too long loses tokens on its left, never the prefix. A continuation longer than the
    context length is scored in rolling windows, without any of its context.
    """
    continuation = pair.continuation
    if len(continuation) > max_len:
        windows = rolling_windows(continuation, prefix_id=prefix_id, max_len=max_len)
        return list(windows), len(pair.context)
    n_cut = max(0, 1 + len(pair.context) + len(continuation) - 1 - max_len)
    inputs = (prefix_id, *pair.context[n_cut:], *continuation[:-1])
    return [Window(inputs, continuation)], n_cut
