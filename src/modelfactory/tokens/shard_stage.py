"""The tokens stage: documents to a shard."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from modelfactory.data import read_documents
from modelfactory.errors import SourceError, Stopped
from modelfactory.stage import Progress
from modelfactory.tokens.indexed import IndexedWriter
from modelfactory.tokens.shard import DOCUMENTS, FACTS, PREFIX, documents_schema
from modelfactory.tokens.threads import tokenizer_threads
from modelfactory.tokens.tokenizer import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    import pyarrow as pa

    from modelfactory.stage import Site
    from modelfactory.tokens.specs import Shards

VERSION = 1
BATCH_CHARACTERS = 2 << 20
"""Text encoded at once: enough for all threads, little enough that memory stays flat (about 150 MB)."""
BATCH_DOCUMENTS = 4096


def run(spec: Shards, inputs: Mapping[str, Path], output_dir: Path, site: Site) -> None:  # noqa: ARG001 - no choices
    """Write `tokens.bin`, `tokens.idx`, `documents.parquet` and `tokens.json`.

    Args:
        spec: has no choices yet.
        inputs: `documents` and `tokenizer`, the directories of those stages.
        output_dir: exists and is empty.
        site: lake, threads, progress.

    Raises:
        SourceError: there are no documents.
    """
    tokenizer = load_tokenizer(inputs["tokenizer"])
    facts = json.loads((inputs["documents"] / "documents.json").read_text("utf-8"))
    columns = ["document_id", "source", "path", "text"]
    batches = _small(read_documents(inputs["documents"], site.lake, columns))
    with tokenizer_threads(site.threads):
        writer = write_shard(_watched(batches, facts["n_documents"], site), tokenizer, output_dir)
    if writer.n_documents == 0:
        raise SourceError(
            place="tokens stage",
            found="a dataset without documents",
            wanted="at least one document",
            remedy="See drops.json of its documents stage for what was dropped and why.",
        )


def write_shard(batches: Iterable[pa.RecordBatch], tokenizer: Tokenizer, output_dir: Path) -> IndexedWriter:
    """Encode record batches of documents into a shard; return its closed writer, which holds the counts.

    Args:
        batches: with the columns document_id, source, path, text; row i becomes sequence i.
        tokenizer: its end-of-text token closes every document.
        output_dir: gets the files.
    """
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    writer = IndexedWriter(output_dir / PREFIX, tokenizer.vocab_size)
    table = pq.ParquetWriter(output_dir / DOCUMENTS, documents_schema(), compression="zstd")
    n_bytes = 0
    with writer, table:
        for batch in batches:
            first = writer.n_tokens
            texts = batch.column("text").to_pylist()
            encoded = list(tokenizer.encode_arrays(texts, closed=True))
            writer.add(encoded)
            table.write_batch(_rows(batch, first, [len(ids) for ids in encoded]))
            n_bytes += pc.sum(pc.binary_length(batch.column("text"))).as_py()
    _write_facts(writer, tokenizer, n_bytes, output_dir)
    return writer


def _rows(batch: pa.RecordBatch, first: int, lengths: list[int]) -> pa.RecordBatch:
    import numpy as np
    import pyarrow as pa

    n_tokens = np.array(lengths, dtype=np.int64)
    first_token = first + np.cumsum(n_tokens) - n_tokens
    schema = documents_schema()
    names = [batch.column(name).cast(schema.field(name).type) for name in ("document_id", "source", "path")]
    return pa.record_batch([*names, pa.array(first_token), pa.array(n_tokens)], schema=schema)


def _write_facts(writer: IndexedWriter, tokenizer: Tokenizer, n_bytes: int, output_dir: Path) -> None:
    facts = {
        "n_tokens": writer.n_tokens,
        "n_documents": writer.n_documents,
        "n_bytes": n_bytes,
        "dtype": writer.dtype.name,
        "vocab_size": tokenizer.vocab_size,
        "eos_id": tokenizer.eos_id,
    }
    (output_dir / FACTS).write_text(json.dumps(facts, indent=1, sort_keys=True), encoding="utf-8")


def _small(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Cut batches so that one holds little text; a single long document stays whole."""
    import pyarrow.compute as pc

    for batch in batches:
        start = held = 0
        for row, length in enumerate(pc.binary_length(batch.column("text")).to_pylist()):
            if row > start and (held + length > BATCH_CHARACTERS or row - start == BATCH_DOCUMENTS):
                yield batch.slice(start, row - start)
                start, held = row, 0
            held += length
        if start < batch.num_rows:
            yield batch.slice(start)


def _watched(batches: Iterable[pa.RecordBatch], total: int, site: Site) -> Iterator[pa.RecordBatch]:
    """Report progress and stop where asked, between batches."""
    done, started = 0, time.monotonic()
    for batch in batches:
        if site.stopping():
            raise Stopped("stopped while tokens were written; nothing is kept of them")
        yield batch
        done += batch.num_rows
        rate = done / max(time.monotonic() - started, 1e-9)
        site.report(Progress(done=done, total=total, unit="documents", rate=rate))
