"""Exact deduplication of documents, paragraphs or lines."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from modelfactory.data.frame import computed, first_of_each
from modelfactory.spec import check_types, require

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from modelfactory.data.drops import Drops

SEPARATORS = {"paragraph": re.compile(r"(\n[^\S\n]*(?:\n[^\S\n]*)+)"), "line": re.compile(r"(\n)")}
"""A paragraph ends at one or more lines that are empty or hold only white space."""


@dataclass(frozen=True, kw_only=True)
class ExactDedup:
    """Keeps the first of equal documents, or of equal paragraphs or lines within and across documents.

    First is in order of source, file and position in the file. With paragraphs and lines, a document loses
    the units that occurred before, each with the separator after it; it is dropped when nothing but white
    space is left. Equality is that of a 128-bit hash: two XXH3-64 of different seeds.
    """

    normalise: Literal["nothing", "whitespace"]
    """What is ignored: `whitespace` compares texts in which each run of white space is one space, and white
    space at both ends is left out."""
    unit: Literal["document", "paragraph", "line"]
    min_characters: int = 0
    """Paragraphs and lines with fewer code points always stay: `return` is no duplicate worth removing."""

    def __post_init__(self) -> None:
        """Check types and range."""
        check_types(self)
        require(
            isinstance(self.min_characters, int) and self.min_characters >= 0,
            place="ExactDedup.min_characters",
            found=self.min_characters,
            wanted="a whole number of at least 0",
        )
        require(
            self.min_characters == 0 or self.unit != "document",
            place="ExactDedup.min_characters",
            found=self.min_characters,
            wanted="0 where the unit is a document",
            remedy="Use the filter MinLength for short documents.",
        )

    @property
    def reason(self) -> str:
        """Why a document was dropped."""
        ignoring = " up to white space" if self.normalise == "whitespace" else ""
        return f"duplicate{ignoring}" if self.unit == "document" else f"duplicate {self.unit}s only{ignoring}"

    def survivors(self, documents: _Stored, drops: Drops) -> Iterator[pa.Table]:
        """Yield the documents that are left, batch by batch.

        Args:
            documents: Read twice.
            drops: Told of every document and unit that is dropped.
        """
        units = (self._units(batch) for batch in documents)
        stays = _first(self._keys(texts) for texts in units)
        seen = 0
        for batch in documents:
            texts = self._units(batch)
            kept = stays[seen : seen + len(texts)] | self._always(texts)
            seen += len(texts)
            yield from self._left(batch, kept, drops)

    def _units(self, batch: pa.Table) -> pa.Array:
        """Return the texts that are compared, of all documents in a row."""
        if self.unit == "document":
            return batch["text"].combine_chunks()
        return pa.array(
            [piece for text in batch["text"].to_pylist() for piece in self._pieces(text)[::2]], pa.string()
        )

    def _pieces(self, text: str) -> list[str]:
        """Return units and, between them, separators."""
        return SEPARATORS[self.unit].split(text)

    def _keys(self, texts: pa.Array) -> pa.Table:
        return computed({"text": texts}, {"high": self._hash(0), "low": self._hash(1)})

    def _hash(self, seed: int) -> Any:
        def made(daft: Any) -> Any:
            text = daft.col("text")
            if self.normalise == "whitespace":
                text = daft.functions.strip(daft.functions.regexp_replace(text, r"\s+", " "))
            return daft.functions.hash(text, seed=seed)

        return made

    def _always(self, texts: pa.Array) -> NDArray[np.bool_]:
        """Return which units stay whether or not they occurred before: short ones and white space."""
        if self.unit == "document":
            return np.zeros(len(texts), dtype=np.bool_)
        listed = texts.to_pylist()
        return np.array([len(t) < self.min_characters or not t.strip() for t in listed], dtype=np.bool_)

    def _left(self, batch: pa.Table, kept: NDArray[np.bool_], drops: Drops) -> Iterator[pa.Table]:
        if self.unit != "document":
            batch, kept = self._rewritten(batch, kept, drops)
        drops.add(batch.filter(pa.array(~kept)), self.reason)
        if kept.any():
            yield batch.filter(pa.array(kept))

    def _rewritten(
        self, batch: pa.Table, kept: NDArray[np.bool_], drops: Drops
    ) -> tuple[pa.Table, NDArray[np.bool_]]:
        """Return the batch with what is left of each text, and which documents have anything left.

        A document with nothing left keeps its text, for the sample of what was dropped.
        """
        rows, seen = batch.to_pylist(), 0
        left = np.ones(len(rows), dtype=np.bool_)
        for n, row in enumerate(rows):
            pieces = self._pieces(row["text"])
            mask = kept[seen : seen + (len(pieces) + 1) // 2]
            seen += len(mask)
            if mask.all():
                continue
            text = _joined(pieces, mask)
            left[n] = bool(text.strip())
            drops.add_units(self.unit, int((~mask).sum()), row["n_bytes"] - len(text.encode()))
            if left[n]:
                rows[n] = row | _of_text(text)
        return pa.Table.from_pylist(rows, batch.schema), left


_Stored = Any
"""An iterable of tables that can be read more than once."""


def _joined(pieces: list[str], mask: NDArray[np.bool_]) -> str:
    """Join the units that stay, each with the separator after it; none after the last."""
    stay = np.flatnonzero(mask)
    if len(stay) == 0:
        return ""
    parts = [piece for n in stay[:-1] for piece in pieces[2 * n : 2 * n + 2]]
    last = stay[-1]
    return "".join([*parts, pieces[2 * last]])


def _of_text(text: str) -> dict[str, Any]:
    content = text.encode("utf-8")
    return {"text": text, "n_bytes": len(content), "document_id": hashlib.sha256(content).hexdigest()}


def _first(keys: Iterable[pa.Table]) -> NDArray[np.bool_]:
    """Return, for every row of all tables in a row, whether its key occurs there first."""
    tables = list(keys)
    if not tables:
        return np.zeros(0, dtype=np.bool_)
    high = np.concatenate([table["high"].to_numpy() for table in tables])
    low = np.concatenate([table["low"].to_numpy() for table in tables])
    first = np.zeros(len(high), dtype=np.bool_)
    first[first_of_each(high, low)] = True
    return first
