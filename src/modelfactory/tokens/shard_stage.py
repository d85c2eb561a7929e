"""The tokens stage: documents to a shard."""

from __future__ import annotations

import json
import time
from contextlib import nullcontext
from typing import IO, TYPE_CHECKING, Any

from modelfactory.data import read_documents
from modelfactory.errors import SourceError, Stopped
from modelfactory.stage import Progress
from modelfactory.tokens.chat_files import CONFIG, TEMPLATE, template_of
from modelfactory.tokens.chats import ChatEncoder
from modelfactory.tokens.indexed import IndexedWriter
from modelfactory.tokens.pinned import pinned_content
from modelfactory.tokens.shard import (
    CHAT_NAMES,
    CHAT_TEMPLATE,
    DOCUMENTS,
    FACTS,
    LOSS_MASK,
    PREFIX,
    documents_schema,
)
from modelfactory.tokens.threads import tokenizer_threads
from modelfactory.tokens.tokenizer import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from modelfactory.stage import Site
    from modelfactory.tokens.specs import Shards

VERSION = 1
BATCH_CHARACTERS = 2 << 20
"""Text encoded at once: enough for all threads, little enough that memory stays flat (about 150 MB)."""
BATCH_DOCUMENTS = 4096


def run(spec: Shards, inputs: Mapping[str, Path], output_dir: Path, site: Site) -> None:  # noqa: ARG001 - no choices
    """Write `tokens.bin`, `tokens.idx`, `documents.parquet` and `tokens.json`; of chats also `loss_mask.bin`.

    Args:
        spec: has no choices yet.
        inputs: `documents` and `tokenizer`, the directories of those stages; for conversations also the pins
            `chat_template` and, where that has no names of special tokens, `tokenizer_config`.
        output_dir: exists and is empty.
        site: lake, threads, progress.

    Raises:
        SourceError: there are no documents, or a conversation cannot be rendered.
    """
    tokenizer = load_tokenizer(inputs["tokenizer"])
    facts = json.loads((inputs["documents"] / "documents.json").read_text("utf-8"))
    chats = _chats(tokenizer, inputs, facts)
    columns = ["document_id", "source", "path", "text"]
    batches = _small(read_documents(inputs["documents"], site.lake, columns))
    with tokenizer_threads(site.threads):
        writer = write_shard(_watched(batches, facts["n_documents"], site), tokenizer, output_dir, chats)
    if writer.n_documents == 0:
        raise SourceError(
            place="tokens stage",
            found="a dataset without documents",
            wanted="at least one document",
            remedy="See drops.json of its documents stage for what was dropped and why.",
        )


def _chats(tokenizer: Tokenizer, inputs: Mapping[str, Path], facts: Mapping[str, Any]) -> ChatEncoder | None:
    """Return what encodes conversations, where the documents are some."""
    is_chats = any(source["kind"] == "chats" for source in facts["by_source"].values())
    if is_chats != (TEMPLATE in inputs):
        raise SourceError(
            place="tokens stage",
            found="conversations without a template" if is_chats else "a template for plain texts",
            wanted=f"the input {TEMPLATE!r} where documents are conversations, and only there",
            remedy="Give the inputs that `chat_files` names, pinned.",
        )
    return chat_encoder(tokenizer, inputs) if is_chats else None


def chat_encoder(tokenizer: Tokenizer, inputs: Mapping[str, Path]) -> ChatEncoder:
    """Return what encodes conversations by the template that `inputs` pin.

    Raises:
        SourceError: the template changed after it was pinned.
    """
    names = [name for name in (TEMPLATE, CONFIG) if name in inputs]
    return ChatEncoder(tokenizer, template_of({name: pinned_content(inputs[name], name) for name in names}))


def write_shard(
    batches: Iterable[pa.RecordBatch],
    tokenizer: Tokenizer,
    output_dir: Path,
    chats: ChatEncoder | None = None,
) -> IndexedWriter:
    """Encode record batches of documents into a shard; return its closed writer, which holds the counts.

    Args:
        batches: with the columns document_id, source, path, text; row i becomes sequence i.
        tokenizer: its end-of-text token closes every document.
        output_dir: gets the files.
        chats: encodes the texts, which stand for conversations; None: they are plain texts.
    """
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    writer = IndexedWriter(output_dir / PREFIX, tokenizer.vocab_size)
    table = pq.ParquetWriter(output_dir / DOCUMENTS, documents_schema(), compression="zstd")
    n_bytes = n_learnt = 0
    with writer, table, _mask_file(output_dir, chats) as mask:
        for batch in batches:
            first = writer.n_tokens
            texts = batch.column("text").to_pylist()
            if chats is None or mask is None:
                encoded = list(tokenizer.encode_arrays(texts, closed=True))
            else:
                told = list(chats.encode(texts, batch.column("path").to_pylist()))
                encoded = [ids for ids, _ in told]
                n_learnt += sum(_append(mask, learnt) for _, learnt in told)
            writer.add(encoded)
            table.write_batch(_rows(batch, first, [len(ids) for ids in encoded]))
            n_bytes += pc.sum(pc.binary_length(batch.column("text"))).as_py()
    if chats is not None and writer.n_documents and not n_learnt:
        raise SourceError(
            place=chats.template.place,
            found="a template under which nothing of any conversation is learnt",
            wanted="one that writes what the assistant says",
            remedy="Mend the template, or what stands between {% generation %} and {% endgeneration %}.",
        )
    of_chats: dict[str, Any] = {}
    if chats is not None:
        template = {CHAT_TEMPLATE: chats.template.source, CHAT_NAMES: chats.template.names}
        of_chats = {"n_learnt": n_learnt, **template}
    _write_facts(writer, tokenizer, n_bytes, output_dir, of_chats)
    return writer


def _mask_file(output_dir: Path, chats: ChatEncoder | None) -> AbstractContextManager[IO[bytes] | None]:
    return nullcontext() if chats is None else (output_dir / LOSS_MASK).open("wb")


def _append(mask: IO[bytes], learnt: NDArray[np.bool_]) -> int:
    """Write a byte for each token, 1 where it is learnt; return how many are."""
    mask.write(learnt.tobytes())
    return int(learnt.sum())


def _rows(batch: pa.RecordBatch, first: int, lengths: list[int]) -> pa.RecordBatch:
    import numpy as np
    import pyarrow as pa

    n_tokens = np.array(lengths, dtype=np.int64)
    first_token = first + np.cumsum(n_tokens) - n_tokens
    schema = documents_schema()
    names = [batch.column(name).cast(schema.field(name).type) for name in ("document_id", "source", "path")]
    return pa.record_batch([*names, pa.array(first_token), pa.array(n_tokens)], schema=schema)


def _write_facts(
    writer: IndexedWriter, tokenizer: Tokenizer, n_bytes: int, output_dir: Path, of_chats: Mapping[str, Any]
) -> None:
    facts = {
        "n_tokens": writer.n_tokens,
        "n_documents": writer.n_documents,
        "n_bytes": n_bytes,
        "dtype": writer.dtype.name,
        "vocab_size": tokenizer.vocab_size,
        "eos_id": tokenizer.eos_id,
        **of_chats,
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
