"""What a document is, and tables of them."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from modelfactory.data.checks import too_large
from modelfactory.data.sources import LARGEST_DOCUMENT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

BATCH_BYTES = 16 * 1024 * 1024
BATCH_DOCUMENTS = 8_192
"""A batch ends before it would exceed either; a single larger document is a batch of its own. Batches depend
on the documents alone, never on threads, so that files written from them have the same bytes."""

NOT_UTF8 = "not UTF-8"
NO_TEXT = "no text"
EMPTY = "empty"
"""Nothing but white space, or nothing at all."""

SCHEMA = pa.schema(
    [
        pa.field("document_id", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("n_bytes", pa.int64(), nullable=False),
    ]
)
"""Columns of a document: id (SHA-256 of the text), text, source (`source0` is the first of the dataset), path
(relative to the root; of lines and rows followed by `#` and their number from 1), bytes of the text."""


class Document(NamedTuple):
    """One document as it was read."""

    source: str
    path: str
    text: str
    """With U+FFFD for what is not UTF-8."""
    flaw: str
    """Reason to drop it, or empty."""

    def row(self) -> dict[str, Any]:
        """Return the columns of SCHEMA, and the flaw."""
        content = self.text.encode("utf-8")
        identity = hashlib.sha256(content).hexdigest()
        flaw = self.flaw or (EMPTY if not self.text.strip() else "")
        row = {"document_id": identity, "text": self.text, "source": self.source, "path": self.path}
        return row | {"n_bytes": len(content), "flaw": flaw}


def batches(documents: Iterable[Document]) -> Iterator[pa.Table]:
    """Gather documents into tables of SCHEMA and a column `flaw`."""
    rows: list[dict[str, Any]] = []
    n_bytes = 0
    for document in documents:
        row = document.row()
        if row["n_bytes"] > LARGEST_DOCUMENT:
            raise too_large(f"{document.source}: {document.path}", f"{row['n_bytes']:,}", LARGEST_DOCUMENT)
        if rows and (n_bytes + row["n_bytes"] > BATCH_BYTES or len(rows) == BATCH_DOCUMENTS):
            yield _table(rows)
            rows, n_bytes = [], 0
        rows.append(row)
        n_bytes += row["n_bytes"]
    if rows:
        yield _table(rows)


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, SCHEMA.append(pa.field("flaw", pa.string(), nullable=False)))
