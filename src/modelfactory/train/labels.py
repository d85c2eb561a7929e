"""Steps without a label that counts: told, and refused where a run has no others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelfactory.errors import SourceError

if TYPE_CHECKING:
    from modelfactory.tokens import Stream


def refuse_nothing_to_learn(stream: Stream) -> None:
    """Refuse a run none of whose steps has a label that counts.

    Nearly always the first step has some, and no other is looked at.

    Raises:
        SourceError: names the shards.
    """
    if not stream.masks_labels or any(stream.n_valid(step) for step in range(1, stream.n_steps + 1)):
        return
    raise SourceError(
        place=", ".join(str(shard.directory) for shard in stream.shards),
        found=f"no label that counts in any of the {stream.n_steps:,} steps of the run",
        wanted="tokens that are learnt, such as those of an assistant, in some of its rows",
        remedy=_remedy(stream),
    )


def unlabelled(stream: Stream, step: int) -> str:
    """Return the warning for a step without a label that counts."""
    return (
        f"step {step} has no label that counts: it has no loss and its gradient is 0, so only momentum and "
        f"weight decay move the weights. {_remedy(stream)} metrics.jsonl has n_labels of each step."
    )


def _remedy(stream: Stream) -> str:
    return (
        f"Rows of {stream.seq_len} tokens may lie within one question, or hold one document each token: use "
        "a longer max_seq_len, more batch_tokens, or other data."
    )
