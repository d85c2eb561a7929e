"""Files of documents: spilled between two passes, and the final parts of a table."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from modelfactory.data.documents import BATCH_BYTES, SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PART_BYTES = 256 * 1024 * 1024
"""Bytes of text after which a new file is begun."""


@dataclass(frozen=True)
class Spilled:
    """Documents on disk that can be read more than once."""

    path: Path

    @classmethod
    def write(cls, documents: Iterable[pa.Table], path: Path) -> Spilled:
        """Write all documents and return where they are."""
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, SCHEMA, options=options) as writer:
            for batch in documents:
                writer.write_table(batch)
        return cls(path)

    def __iter__(self) -> Iterator[pa.Table]:
        with pa.OSFile(str(self.path)) as stored, pa.ipc.open_file(stored) as reader:
            for n in range(reader.num_record_batches):
                yield pa.Table.from_batches([reader.get_batch(n)])


@dataclass(kw_only=True)
class Written:
    """What a table holds."""

    n_documents: int = 0
    n_bytes: int = 0
    by_source: Counter[str] = field(default_factory=Counter)
    bytes_by_source: Counter[str] = field(default_factory=Counter)
    rows: Any = field(default_factory=hashlib.sha256)
    files: list[Path] = field(default_factory=list)

    def count(self, documents: pa.Table) -> None:
        """Take in documents that were written."""
        columns = (documents[name].to_pylist() for name in ("document_id", "source", "path", "n_bytes"))
        for identity, source, path, n_bytes in zip(*columns, strict=True):
            self.rows.update(f"{source}\0{path}\0{identity}\n".encode())
            self.by_source[source] += 1
            self.bytes_by_source[source] += n_bytes
            self.n_documents += 1
            self.n_bytes += n_bytes

    @property
    def content_sha256(self) -> str:
        """The SHA-256 of source, path and id of every row, in order; ids stand for texts."""
        return str(self.rows.hexdigest())


def write_parts(documents: Iterable[pa.Table], folder: Path) -> Written:
    """Write documents as `part-00000.parquet`, ... in a new folder; equal documents, equal bytes."""
    folder.mkdir()
    written = Written()
    groups = _groups(documents)
    for first in groups:
        path = folder / f"part-{len(written.files):05d}.parquet"
        _write_part(path, first, groups, written)
        written.files.append(path)
    return written


def _write_part(path: Path, first: pa.Table, groups: Iterator[pa.Table], written: Written) -> None:
    import pyarrow.parquet as pq

    group: pa.Table | None = first
    end = written.n_bytes + PART_BYTES
    with pq.ParquetWriter(
        path,
        SCHEMA,
        compression="zstd",
        use_dictionary=["source"],
        write_page_checksum=True,
    ) as writer:
        while group is not None:
            writer.write_table(group, row_group_size=group.num_rows)
            written.count(group)
            group = next(groups, None) if written.n_bytes < end else None


def _groups(documents: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Gather what filters left of each batch to row groups of about one batch."""
    waiting: list[pa.Table] = []
    n_bytes = 0
    for batch in documents:
        batch_bytes = sum(batch["n_bytes"].to_pylist())
        if waiting and n_bytes + batch_bytes > BATCH_BYTES:
            yield pa.concat_tables(waiting)
            waiting, n_bytes = [], 0
        waiting.append(batch)
        n_bytes += batch_bytes
    if waiting:
        yield pa.concat_tables(waiting)
