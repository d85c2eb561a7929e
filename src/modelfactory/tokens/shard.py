"""A shard of tokens, and which documents they came from."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from modelfactory.errors import SourceError
from modelfactory.tokens.indexed import open_indexed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    import pyarrow as pa
    from numpy.typing import NDArray

    from modelfactory.tokens.indexed import Tokens

PREFIX = "tokens"
DOCUMENTS = "documents.parquet"
FACTS = "tokens.json"
LOSS_MASK = "loss_mask.bin"
CHAT_TEMPLATE, CHAT_NAMES = "chat_template", "chat_names"
"""Among the facts of a shard of conversations: the Jinja that they were rendered by."""
_CHUNK = 1 << 24


@dataclass(frozen=True, kw_only=True)
class Document:
    """One document of a shard."""

    row: int
    """Number in the shard; its row in `documents.parquet`."""
    document_id: str
    source: str
    path: str
    first_token: int
    n_tokens: int
    """The end-of-text token included."""


@dataclass(frozen=True, kw_only=True)
class Span:
    """The part of a document that a range of tokens covers."""

    row: int
    """Number of the document in the shard."""
    start: int
    """First token of it, counted from the document's start."""
    stop: int
    """One past the last."""


class TokenShard:
    """Tokens of a dataset, memory-mapped."""

    def __init__(
        self,
        directory: Path,
        tokens: Tokens,
        document_starts: NDArray[np.int64],
        loss_mask: NDArray[np.bool_] | None = None,
    ) -> None:
        self.directory = directory
        self.tokens = tokens
        """Every document after another; uint16 or int32."""
        self.document_starts = document_starts
        """Token at which each document starts, then the number of tokens."""
        self.loss_mask = loss_mask
        """For each token whether it is learnt, that is, whether it counts as a label; None: all are."""

    @classmethod
    def open(cls, directory: Path) -> TokenShard:
        """Open what a tokens stage made, or another's Megatron shard named tokens.bin and tokens.idx.

        The latter has no `documents.parquet`: all but `document` works.

        Raises:
            SourceError: a file is missing, cut off, or contradicts another.
        """
        indexed = open_indexed(directory / PREFIX)
        shard = cls(directory, indexed.tokens, indexed.document_starts, _mapped_mask(directory / LOSS_MASK))
        facts = directory / FACTS
        told = json.loads(facts.read_text("utf-8")) if facts.is_file() else None
        shard._check_mask(told)
        if told is not None:
            shard._check_facts(told)
        return shard

    @property
    def chat_template(self) -> str | None:
        """The Jinja template that its conversations were rendered by; None for plain texts."""
        found: str | None = self._facts.get(CHAT_TEMPLATE)
        return found

    @property
    def chat_names(self) -> dict[str, str] | None:
        """The names of special tokens that the template was given; None for plain texts and older shards."""
        found: dict[str, str] | None = self._facts.get(CHAT_NAMES)
        return found

    @property
    def _facts(self) -> dict[str, Any]:
        path = self.directory / FACTS
        found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
        return found

    @property
    def n_tokens(self) -> int:
        """Tokens, end-of-text tokens included."""
        return len(self.tokens)

    @property
    def n_documents(self) -> int:
        """Documents, empty ones included."""
        return len(self.document_starts) - 1

    def document_tokens(self, row: int) -> Tokens:
        """Return the tokens of document `row`, its end-of-text token last."""
        self._check_row(row)
        found: Tokens = self.tokens[self.document_starts[row] : self.document_starts[row + 1]]
        return found

    def document(self, row: int) -> Document:
        """Return where document `row` came from; `documents` is faster for many."""
        return self.documents([row])[row]

    def documents(self, rows: Iterable[int]) -> dict[int, Document]:
        """Return where documents came from, by row; reads each row group that holds one of them once."""
        wanted = sorted(set(rows))
        for row in wanted:
            self._check_row(row)
        found = {}
        groups = np.searchsorted(self._group_starts, wanted, side="right") - 1
        for group in np.unique(groups).tolist():
            table = self._table.read_row_group(group)
            start = int(self._group_starts[group])
            for row in (row for row, place in zip(wanted, groups, strict=True) if place == group):
                found[row] = Document(row=row, **table.slice(row - start, 1).to_pylist()[0])
        return found

    def spans(self, start: int, stop: int) -> list[Span]:
        """Return the documents that tokens `start` up to `stop` belong to, in order."""
        if not 0 <= start <= stop <= self.n_tokens:
            raise IndexError(f"tokens {start}..{stop} of a shard that has {self.n_tokens}")
        if start == stop:
            return []
        first = int(np.searchsorted(self.document_starts, start, side="right")) - 1
        last = int(np.searchsorted(self.document_starts, stop, side="left"))
        bounds = np.clip(self.document_starts[first : last + 1], start, stop)
        offsets = zip(range(first, last), bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
        starts = self.document_starts
        return [
            Span(row=row, start=low - int(starts[row]), stop=high - int(starts[row]))
            for row, low, high in offsets
            if low < high
        ]

    def verify(self, vocab_size: int, eos_id: int) -> None:
        """Read every token once.

        Raises:
            SourceError: a token outside the vocabulary, or a document that eos_id does not close.
        """
        for start in range(0, self.n_tokens, _CHUNK):
            block = self.tokens[start : start + _CHUNK]
            wrong = np.flatnonzero((block < 0) | (block.astype(np.int64) >= vocab_size))
            if len(wrong):
                place = start + int(wrong[0])
                self._damaged(f"token {self.tokens[place]} at {place}", f"ids from 0 to {vocab_size - 1}")
        open_ended = np.flatnonzero(self.tokens[self.document_starts[1:] - 1] != eos_id)
        if len(open_ended):
            self._damaged(f"document {open_ended[0]} not closed", f"token {eos_id} at the end of each")

    @cached_property
    def _table(self) -> pa.parquet.ParquetFile:
        import pyarrow.parquet as pq

        path = self.directory / DOCUMENTS
        if not path.is_file():
            self._damaged(f"no {DOCUMENTS}", "the table that says where documents came from")
        table = pq.ParquetFile(path, memory_map=True)
        if table.metadata.num_rows != self.n_documents:
            self._damaged(
                f"{table.metadata.num_rows} rows in {DOCUMENTS}", f"{self.n_documents}, as in the index"
            )
        return table

    @cached_property
    def _group_starts(self) -> NDArray[np.int64]:
        metadata = self._table.metadata
        sizes = [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)]
        return np.cumsum([0, *sizes[:-1]], dtype=np.int64)

    def _check_row(self, row: int) -> None:
        if not 0 <= row < self.n_documents:
            raise IndexError(f"document {row} of a shard that has {self.n_documents}")

    def _check_mask(self, facts: Mapping[str, Any] | None) -> None:
        is_there = self.loss_mask is not None
        is_wanted = is_there if facts is None else "n_learnt" in facts
        n_masked = self.n_tokens if self.loss_mask is None else len(self.loss_mask)
        if is_there != is_wanted or n_masked != self.n_tokens:
            found = f"{n_masked:,} bytes of {LOSS_MASK}" if is_there else f"no {LOSS_MASK}"
            wanted = f"one of {self.n_tokens:,} bytes" if is_wanted else f"none, as {FACTS} says"
            self._damaged(found, wanted)

    def _check_facts(self, facts: Mapping[str, Any]) -> None:
        found = {"n_tokens": self.n_tokens, "n_documents": self.n_documents, "dtype": self.tokens.dtype.name}
        for name, value in found.items():
            if facts.get(name) != value:
                self._damaged(f"{name} = {value} in the index", f"{facts.get(name)}, as {FACTS} says")

    def _damaged(self, found: str, wanted: str) -> None:
        raise SourceError(
            place=str(self.directory),
            found=found,
            wanted=wanted,
            remedy="Build the tokens stage again (`factory doctor` finds damaged ones).",
        )


def _mapped_mask(path: Path) -> NDArray[np.bool_] | None:
    if not path.is_file():
        return None
    empty = path.stat().st_size == 0  # which no file can be mapped of
    return np.zeros(0, dtype=np.bool_) if empty else np.memmap(path, dtype=np.bool_, mode="r")


def documents_schema() -> pa.Schema:
    """Return the columns of `documents.parquet`; row i is document i."""
    import pyarrow as pa

    return pa.schema(
        [
            ("document_id", pa.string()),
            ("source", pa.string()),
            ("path", pa.string()),
            ("first_token", pa.int64()),
            ("n_tokens", pa.int64()),
        ]
    )
