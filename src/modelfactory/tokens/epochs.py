"""How often a run goes through each source, known before it starts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from modelfactory.errors import InvalidInputs, SpecError
from modelfactory.spec import require
from modelfactory.tokens.assignment import Assignment
from modelfactory.tokens.weights import integer_shares

if TYPE_CHECKING:
    from collections.abc import Sequence


def sequences_in(n_tokens: int, seq_len: int) -> int:
    """Return how many sequences a source gives in one epoch.

    Each has seq_len labels and seq_len + 1 tokens; the last token of one is the first of the next, so that
    every token but the first is predicted once. What is left at the end, less than seq_len labels, is not
    used.
    """
    return max((n_tokens - 1) // seq_len, 0)


def required_epochs(
    *, n_tokens: int, seq_len: int, weights: Sequence[float], source_tokens: Sequence[int]
) -> tuple[float, ...]:
    """Return how many epochs of each source a run of `n_tokens` takes, exactly.

    Args:
        n_tokens: labels the run trains on.
        seq_len: labels in a sequence.
        weights: of each source.
        source_tokens: tokens of each source.

    Raises:
        SpecError: a source is shorter than one sequence. Several as `InvalidInputs`.
    """
    sizes = source_sizes(source_tokens, seq_len)
    needed = math.ceil(n_tokens / seq_len)
    counts = Assignment(integer_shares(weights).shares, needed).counts(needed)
    return tuple(count / size for count, size in zip(counts, sizes, strict=True))


def check_epochs(
    required: Sequence[float], max_epochs: Sequence[float], source_tokens: Sequence[int]
) -> None:
    """Refuse a run that repeats a source more often than its limit allows.

    Raises:
        SpecError: with the epochs and tokens of the source. Several as `InvalidInputs`.
    """
    require(
        len(max_epochs) == len(source_tokens),
        place="max_epochs",
        found=max_epochs,
        wanted=f"{len(source_tokens)} numbers, one for each source",
    )
    faults = [
        SpecError(
            place=f"mixture.parts[{number}].max_epochs",
            found=f"{epochs:.3f} epochs needed of a source that has {tokens:,} tokens",
            wanted=f"at most {limit:g} epochs, {int(limit * tokens):,} tokens",
            remedy=f"Train on fewer tokens, lower its weight, add documents, or allow {math.ceil(epochs)}.",
        )
        for number, (epochs, limit, tokens) in enumerate(
            zip(required, max_epochs, source_tokens, strict=True)
        )
        if epochs > limit
    ]
    if faults:
        raise faults[0] if len(faults) == 1 else InvalidInputs(faults)


def source_sizes(source_tokens: Sequence[int], seq_len: int) -> tuple[int, ...]:
    """Return the sequences in one epoch of each source; refuse sources that have none."""
    sizes = tuple(sequences_in(tokens, seq_len) for tokens in source_tokens)
    faults = [
        SpecError(
            place=f"mixture.parts[{number}].dataset",
            found=f"{source_tokens[number]:,} tokens",
            wanted=f"at least {seq_len + 1:,}: one sequence of {seq_len:,} and the label of its last token",
            remedy="Add documents, leave the dataset out, or use shorter sequences.",
        )
        for number, size in enumerate(sizes)
        if size == 0
    ]
    if faults:
        raise faults[0] if len(faults) == 1 else InvalidInputs(faults)
    return sizes
