"""Which labels count where documents are told apart, and where some tokens are not to be learnt."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from modelfactory.tokens.shard import TokenShard


def documents_within(shard: TokenShard, start: int, n_tokens: int) -> NDArray[np.int32]:
    """Return the number of each token's document, from 0 at token `start`; empty documents have none."""
    bounds = (start + 1, start + n_tokens)
    first, last = np.searchsorted(shard.document_starts, bounds, side="left")
    begins = np.zeros(n_tokens, dtype=np.int32)
    begins[shard.document_starts[first:last] - start] = 1
    return np.cumsum(begins, dtype=np.int32)


def counted(shard: TokenShard, start: int, seq_len: int, document_masks: bool) -> NDArray[np.bool_]:
    """Return which labels of the sequence that starts at token `start` count: those of tokens start + 1 on.

    The shard's loss mask takes out labels, and `document_masks` those that begin another document.
    """
    valid = np.ones(seq_len, dtype=np.bool_)
    if document_masks:
        documents = documents_within(shard, start, seq_len + 1)
        valid &= documents[1:] == documents[:-1]
    if shard.loss_mask is not None:
        valid &= shard.loss_mask[start + 1 : start + seq_len + 1]
    return valid
