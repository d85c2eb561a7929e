"""What the stream gives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """The sequences of one step, or one rank's rows of them."""

    step: int
    """From 1."""
    tokens: NDArray[np.int32]
    """(rows, seq_len + 1): `tokens[:, :-1]` go in, `tokens[:, 1:]` are the labels. 0 where not valid."""
    valid: NDArray[np.bool_]
    """(rows, seq_len): labels that count. All of them, but for the end of a run's last step, those that a
    shard's loss mask takes out, and with document masks those that lie in the next document."""
    sequence_ids: NDArray[np.int64]
    """(rows, 3): source, epoch, and sequence within the source; -1 in rows past the end of the run."""
    documents: NDArray[np.int32] | None = None
    """(rows, seq_len): number of the document that each input token is of, upwards from 0 in each row; None
    without document masks."""

    @property
    def n_valid(self) -> int:
        """Labels that count in these rows."""
        return int(self.valid.sum())


@dataclass(frozen=True, kw_only=True)
class DocumentSpan:
    """A piece of one document in one row of a batch."""

    row: int
    """Of the whole batch."""
    column: int
    """Of `Batch.tokens`, at which the piece starts."""
    source: int
    """Number of the mixture's part."""
    epoch: int
    """From 0."""
    document: int
    """Row of the document in its shard; `TokenShard.document` says what that is."""
    document_id: str
    start: int
    """First token of the piece, counted from the document's start."""
    n_tokens: int
