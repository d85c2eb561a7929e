"""Where a context ends and its continuation begins, in tokens, as lm-evaluation-harness has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from modelfactory.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence


class Encoder(Protocol):
    """What this package needs of a tokenizer; `tokens.Tokenizer` has it."""

    eos_id: int
    vocab_size: int

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, without special tokens."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids`."""


@dataclass(frozen=True, slots=True)
class EncodedPair:
    """A context and its continuation in tokens, without the token that starts every sequence."""

    context: tuple[int, ...]
    continuation: tuple[int, ...]
    """At least one token."""


def encode_pairs(encoder: Encoder, pairs: Sequence[tuple[str, str]]) -> list[EncodedPair]:
    """Encode (context, continuation) pairs.

    White space at the end of a context belongs to the continuation; the two are encoded as one text, which
    is then split after as many tokens as the context alone has. Where a merge across the boundary would
    leave the continuation without a token (lm-evaluation-harness scores nothing there), it keeps the last.

    Raises:
        InvalidInput: a continuation is empty.
    """
    moved = [_moved(number, *pair) for number, pair in enumerate(pairs)]
    contexts = list(dict.fromkeys(context for context, _ in moved))
    of_context = dict(zip(contexts, encoder.encode_batch(contexts), strict=True))
    wholes = encoder.encode_batch([context + continuation for context, continuation in moved])
    return [
        _split(whole, len(of_context[context])) for (context, _), whole in zip(moved, wholes, strict=True)
    ]


def _moved(number: int, context: str, continuation: str) -> tuple[str, str]:
    if not continuation:
        raise InvalidInput(
            place=f"request {number}",
            found="an empty continuation",
            wanted="at least one character to score",
            remedy="An empty text has log-likelihood 0 under every model; leave the item out.",
        )
    kept = context.rstrip()
    return kept, context[len(kept) :] + continuation


def _split(whole: Sequence[int], n_context: int) -> EncodedPair:
    at = min(n_context, len(whole) - 1)
    return EncodedPair(tuple(whole[:at]), tuple(whole[at:]))
