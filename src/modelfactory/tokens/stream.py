"""The stream ("Blender"): which tokens are trained on at which step.

A pure function of (sources, weights, sequence length, batch sizes, seed, step). Sequences are numbered from
0 through the whole run; step s holds the next batch_sequences numbers after those of step s - 1, or fewer in
a warm-up of the batch size, which so changes where steps end and not the order of the sequences. The
assignment says which source gives number n, and how many that source gave before: that count, divided by
the sequences in the source, is the epoch, and the rest goes through the epoch's own permutation. Nothing is
replayed, nothing is remembered: a resume needs only the step.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from modelfactory.spec import require
from modelfactory.tokens.assignment import Assignment
from modelfactory.tokens.batch import Batch, DocumentSpan
from modelfactory.tokens.batch_sizes import BatchSizes
from modelfactory.tokens.epochs import check_epochs, source_sizes
from modelfactory.tokens.labels import counted, documents_within
from modelfactory.tokens.permutation import epoch_keys, permute, seed_key, unpermute
from modelfactory.tokens.specs import MAX_EPOCHS
from modelfactory.tokens.weights import integer_shares

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from modelfactory.tokens.shard import Span, TokenShard


class Stream:
    """Batches of a run.

    Args:
        shards: one for each source.
        weights: of the sources; need not sum to 1. See `effective_weights`.
        seq_len: labels in a sequence.
        batch_sequences: rows of a step, once the warm-up is over.
        seed: of the order within each epoch.
        n_tokens: labels delivered in the whole run, masked ones among them; the last step is cut to them. No
            batch before it depends on it.
        max_epochs: of each source; by default `Part`'s default.
        batch_warmup: (steps, rows of each of them) of the stages before that; none by default.
        document_masks: whether documents of a row are told apart: batches number them, and the label of a
            document's last token, which lies in the next one, does not count.

    Raises:
        SpecError: a source is shorter than one sequence, or would be repeated beyond its limit.
    """

    def __init__(
        self,
        shards: Sequence[TokenShard],
        *,
        weights: Sequence[float],
        seq_len: int,
        batch_sequences: int,
        seed: int,
        n_tokens: int,
        max_epochs: Sequence[float] | None = None,
        batch_warmup: Sequence[tuple[int, int]] = (),
        document_masks: bool = False,
    ) -> None:
        _check_counts(shards, weights, seq_len, batch_sequences, n_tokens)
        self.shards = tuple(shards)
        self.seq_len, self.batch_sequences, self.n_tokens = seq_len, batch_sequences, n_tokens
        self._sizes_of_steps = BatchSizes(batch_sequences, batch_warmup)
        self.document_masks = document_masks
        self.masks_labels = document_masks or any(shard.loss_mask is not None for shard in self.shards)
        """Whether fewer labels may count than are delivered."""
        shares = integer_shares(weights)
        self.effective_weights = shares.effective_weights
        """What `weights` came to: the same, but where they have no common denominator up to a million."""
        self.n_sequences = math.ceil(n_tokens / seq_len)
        self.n_steps = self._sizes_of_steps.n_steps(self.n_sequences)
        source_tokens = [shard.n_tokens for shard in self.shards]
        self._sizes = np.array(source_sizes(source_tokens, seq_len), dtype=np.int64)
        self._assignment = Assignment(shares.shares, self.n_sequences)
        self._key = seed_key("stream", seed)
        limits = [MAX_EPOCHS] * len(self.shards) if max_epochs is None else max_epochs
        check_epochs(self.epochs(), limits, source_tokens)

    def batch(self, step: int, rank: int = 0, world_size: int = 1) -> Batch:
        """Return step `step` (from 1 to n_steps), or the rows of it that `rank` of `world_size` trains on.

        Raises:
            IndexError: there is no such step or rank.
        """
        self._check_step(step)
        if not 0 <= rank < world_size:
            raise IndexError(f"rank {rank} of {world_size}")
        rows = self._numbers(step)
        low, high = (len(rows) * part // world_size for part in (rank, rank + 1))
        numbers = rows[low:high]
        sequence_ids = self.sequence_ids(numbers)
        n_delivered = self._n_delivered(numbers)
        return Batch(
            step=step,
            tokens=self._tokens(sequence_ids, n_delivered),
            valid=self._valid(sequence_ids, n_delivered),
            sequence_ids=sequence_ids,
            documents=self._documents(sequence_ids) if self.document_masks else None,
        )

    def sequence_ids(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return source, epoch and sequence of each sequence of the run by number; -1 past its end."""
        ids = np.full((len(numbers), 3), -1, dtype=np.int64)
        inside = numbers < self.n_sequences
        source, rank = self._assignment.at(numbers[inside])
        size = self._sizes[source]
        epoch, index = np.divmod(rank, size)
        sequence = permute(index, size, epoch_keys(self._key, source, epoch))
        ids[inside] = np.stack((source, epoch, sequence), axis=1)
        return ids

    def epochs(self, step: int | None = None) -> tuple[float, ...]:
        """Return how many epochs of each source are done after `step`; by default after the last."""
        steps = self.n_steps if step is None else step
        n_sequences = min(self._sizes_of_steps.up_to(steps), self.n_sequences)
        counts = self._assignment.counts(n_sequences)
        return tuple(count / int(size) for count, size in zip(counts, self._sizes, strict=True))

    def n_tokens_to(self, step: int) -> int:
        """Return how many labels are delivered in the steps up to and with `step`, masked ones among them."""
        return min(self._sizes_of_steps.up_to(step) * self.seq_len, self.n_tokens)

    def n_valid(self, step: int) -> int:
        """Return how many labels count in the whole batch of `step`, whoever has its rows."""
        self._check_step(step)
        if not self.masks_labels:
            return self.n_tokens_to(step) - self.n_tokens_to(step - 1)
        numbers = self._numbers(step)
        return int(self._valid(self.sequence_ids(numbers), self._n_delivered(numbers)).sum())

    def documents(self, step: int) -> list[DocumentSpan]:
        """Return every piece of a document that step `step` sees, by row and column."""
        self._check_step(step)
        spans = [
            (row, source, epoch, column, span)
            for row, source, epoch, first, stop in self._ranges(step)
            for column, span in _by_column(self.shards[source].spans(first, stop))
        ]
        named = [
            shard.documents(span.row for _, of, _, _, span in spans if of == source)
            for source, shard in enumerate(self.shards)
        ]
        return [
            DocumentSpan(
                row=row,
                column=column,
                source=source,
                epoch=epoch,
                document=span.row,
                document_id=named[source][span.row].document_id,
                start=span.start,
                n_tokens=span.stop - span.start,
            )
            for row, source, epoch, column, span in spans
        ]

    def _numbers(self, step: int) -> NDArray[np.int64]:
        """Return the numbers of the sequences of a step, past the end of the run too."""
        first, stop = (self._sizes_of_steps.up_to(each) for each in (step - 1, step))
        return np.arange(first, stop, dtype=np.int64)

    def _ranges(self, step: int) -> Iterator[tuple[int, int, int, int, int]]:
        """Yield row, source, epoch, first token and one past the last, of each row that sees any."""
        numbers = self._numbers(step)
        n_valid = np.clip(self.n_tokens - numbers * self.seq_len, 0, self.seq_len).tolist()
        for row, (source, epoch, sequence) in enumerate(self.sequence_ids(numbers).tolist()):
            if source >= 0:
                first = sequence * self.seq_len
                yield row, source, epoch, first, first + n_valid[row] + 1

    def steps_of(self, source: int, document: int) -> list[int]:
        """Return the steps that see a token of a document, in order: the way back from `documents`."""
        shard = self.shards[source]
        start, stop = (int(bound) for bound in shard.document_starts[document : document + 2])
        size = int(self._sizes[source])
        first, last = max((start - 1) // self.seq_len, 0), min((stop - 1) // self.seq_len, size - 1)
        steps = set()
        for sequence in range(first, last + 1):
            for number in self._numbers_of(source, sequence):
                n_valid = min(self.n_tokens - number * self.seq_len, self.seq_len)
                if start <= sequence * self.seq_len + n_valid:
                    steps.add(self._sizes_of_steps.step_of(number))
        return sorted(steps)

    def _numbers_of(self, source: int, sequence: int) -> list[int]:
        """Return the numbers in the run of one sequence of a source, one for each epoch that gets to it."""
        size = int(self._sizes[source])
        epoch = np.arange(math.ceil(self.epochs()[source]), dtype=np.int64)
        sizes = np.full_like(epoch, size)
        keys = epoch_keys(self._key, np.full_like(epoch, source), epoch)
        ranks = epoch * size + unpermute(np.full_like(epoch, sequence), sizes, keys)
        numbers = (self._assignment.number(source, rank) for rank in ranks.tolist())
        return [number for number in numbers if 0 <= number < self.n_sequences]

    def _n_delivered(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many labels of each sequence of the run lie before the run's end."""
        return np.clip(self.n_tokens - numbers * self.seq_len, 0, self.seq_len)

    def _valid(self, sequence_ids: NDArray[np.int64], n_delivered: NDArray[np.int64]) -> NDArray[np.bool_]:
        valid = np.arange(self.seq_len) < n_delivered[:, None]
        if self.masks_labels:
            for row, (source, _, sequence) in zip(valid, sequence_ids.tolist(), strict=True):
                if source >= 0:
                    first = sequence * self.seq_len
                    row[:] &= counted(self.shards[source], first, self.seq_len, self.document_masks)
        return valid

    def _documents(self, sequence_ids: NDArray[np.int64]) -> NDArray[np.int32]:
        documents = np.zeros((len(sequence_ids), self.seq_len), dtype=np.int32)
        for row, (source, _, sequence) in zip(documents, sequence_ids.tolist(), strict=True):
            if source >= 0:
                row[:] = documents_within(self.shards[source], sequence * self.seq_len, self.seq_len)
        return documents

    def _tokens(self, sequence_ids: NDArray[np.int64], n_valid: NDArray[np.int64]) -> NDArray[np.int32]:
        tokens = np.zeros((len(sequence_ids), self.seq_len + 1), dtype=np.int32)
        rows = zip(tokens, sequence_ids.tolist(), n_valid.tolist(), strict=True)
        for row, (source, _, sequence), n_labels in rows:
            if n_labels:
                start = sequence * self.seq_len
                row[: n_labels + 1] = self.shards[source].tokens[start : start + n_labels + 1]
        return tokens

    def _check_step(self, step: int) -> None:
        if not 1 <= step <= self.n_steps:
            raise IndexError(f"step {step} of a run that has the steps 1 to {self.n_steps}")


def _by_column(spans: Iterable[Span]) -> Iterator[tuple[int, Span]]:
    column = 0
    for span in spans:
        yield column, span
        column += span.stop - span.start


def _check_counts(
    shards: Sequence[TokenShard], weights: Sequence[float], seq_len: int, batch_sequences: int, n_tokens: int
) -> None:
    for name, count in (("seq_len", seq_len), ("batch_sequences", batch_sequences), ("n_tokens", n_tokens)):
        require(count > 0, place=name, found=count, wanted="a whole number above 0")
    require(
        len(shards) == len(weights) > 0,
        place="weights",
        found=f"{len(weights)} weights for {len(shards)} shards",
        wanted="one weight for each shard",
    )
