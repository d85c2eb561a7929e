"""Documents of a finished stage, read back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelfactory.data.documents import SCHEMA
from modelfactory.data.lake import LakeTable
from modelfactory.errors import SpecError, StageDamaged, closest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa


def read_documents(
    documents_dir: Path, lake: Path, columns: Sequence[str] = tuple(SCHEMA.names)
) -> Iterator[pa.RecordBatch]:
    """Yield the documents of a stage in order of source, path and position in the file.

    Batches hold about 16 MiB of text (a larger document is alone in one) and are the same on every call.

    Args:
        documents_dir: Directory of a documents stage.
        lake: Folder of the lake that the stage wrote to.
        columns: Some of document_id, text, source, path, n_bytes, in the order wanted.

    Raises:
        SpecError: there is no such column.
        StageDamaged: a file is missing or its bytes are not those that were written.
    """
    for name in columns:
        if name not in SCHEMA.names:
            raise SpecError(
                place="read_documents.columns",
                found=repr(name),
                wanted="a column of a document",
                remedy=closest(name, SCHEMA.names),
            )
    for file in LakeTable.read(documents_dir).files:
        yield from _read_file(lake / file.path, list(columns))


def _read_file(path: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as stored:
            for n in range(stored.num_row_groups):
                group = stored.read_row_group(n, columns=columns, use_threads=False)
                yield from group.select(columns).combine_chunks().to_batches()
    except (OSError, pa.ArrowInvalid) as error:
        raise StageDamaged(f"{path}: cannot be read ({error}). Run `factory doctor`.") from error
