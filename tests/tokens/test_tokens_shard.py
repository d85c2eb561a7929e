"""Shards hold every document, in order, and say where it came from; damage is refused."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from modelfactory.data import read_documents
from modelfactory.errors import SourceError, Stopped
from modelfactory.tokens import Shards, TokenShard, load_tokenizer, shard_stage
from modelfactory.tokens.indexed import IndexedWriter, open_indexed, token_dtype

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from modelfactory.stage import Progress, Site


def written(folder: Path, documents: list[list[int]], vocab_size: int = 1000) -> Path:
    folder.mkdir(exist_ok=True)
    with IndexedWriter(folder / "tokens", vocab_size) as writer:
        writer.add(documents)
    return folder


def test_every_document_comes_back_closed_by_end_of_text(
    shard_dir: Path, tokenizer_dir: Path, documents: Path, site: Site
) -> None:
    shard = TokenShard.open(shard_dir)
    tokenizer = load_tokenizer(tokenizer_dir)
    rows = [row for batch in read_documents(documents, site.lake) for row in batch.to_pylist()]
    assert shard.n_documents == len(rows) == 4
    for number, row in enumerate(rows):
        tokens = shard.document_tokens(number).tolist()
        assert tokens[-1] == tokenizer.eos_id
        assert tokenizer.eos_id not in tokens[:-1]
        assert tokenizer.decode(tokens[:-1]) == row["text"]
        found = shard.document(number)
        assert (found.document_id, found.source, found.path) == (
            row["document_id"],
            row["source"],
            row["path"],
        )
        assert (found.first_token, found.n_tokens) == (shard.document_starts[number], len(tokens))


def test_facts_and_table_agree_with_the_tokens(
    shard_dir: Path, tokenizer_dir: Path, texts: dict[str, str]
) -> None:
    facts = json.loads((shard_dir / "tokens.json").read_text("utf-8"))
    shard = TokenShard.open(shard_dir)
    assert facts["n_tokens"] == shard.n_tokens
    assert facts["n_documents"] == 4
    assert facts["dtype"] == "uint16"
    assert facts["n_bytes"] == sum(len(text.encode()) for text in texts.values())
    table = pq.read_table(shard_dir / "documents.parquet")
    assert table.column_names == ["document_id", "source", "path", "first_token", "n_tokens"]
    assert set(table["document_id"].to_pylist()) == {sha256(t.encode()).hexdigest() for t in texts.values()}
    tokenizer = load_tokenizer(tokenizer_dir)
    shard.verify(tokenizer.vocab_size, tokenizer.eos_id)


def test_equal_inputs_give_equal_bytes(
    shard_dir: Path, documents: Path, tokenizer_dir: Path, site: Site, tmp_path: Path
) -> None:
    again = tmp_path / "again"
    again.mkdir()
    inputs = {"documents": documents, "tokenizer": tokenizer_dir}
    shard_stage.run(Shards(), inputs, again, replace(site, threads=2))
    names = ["documents.parquet", "tokens.bin", "tokens.idx", "tokens.json"]
    assert sorted(path.name for path in again.iterdir()) == names
    assert all((again / name).read_bytes() == (shard_dir / name).read_bytes() for name in names)


def test_documents_encoded_one_by_one_give_the_same_shard(
    shard_dir: Path, documents: Path, tokenizer_dir: Path, site: Site, tmp_path: Path
) -> None:
    batches = [
        batch.slice(row, 1)
        for batch in read_documents(documents, site.lake, ["document_id", "source", "path", "text"])
        for row in range(batch.num_rows)
    ]
    single = tmp_path / "single"
    single.mkdir()
    shard_stage.write_shard(batches, load_tokenizer(tokenizer_dir), single)
    for name in ("tokens.bin", "tokens.idx", "tokens.json"):
        assert (single / name).read_bytes() == (shard_dir / name).read_bytes()
    one, other = TokenShard.open(single), TokenShard.open(shard_dir)  # one has four row groups
    assert [one.document(row) for row in range(4)] == [other.document(row) for row in range(4)]


@pytest.mark.parametrize(("characters", "documents"), [(5, 100), (1, 100), (1000, 2), (1000, 100)])
def test_batches_are_cut_small(characters: int, documents: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_stage, "BATCH_CHARACTERS", characters)
    monkeypatch.setattr(shard_stage, "BATCH_DOCUMENTS", documents)
    texts = ["ab", "c", "", "defghijkl", "m"]
    cut = [b.column("text").to_pylist() for b in shard_stage._small([pa.record_batch({"text": texts})])]
    assert [text for batch in cut for text in batch] == texts
    assert all(len(batch) <= documents for batch in cut)
    assert all(len("".join(batch)) <= characters or len("".join(batch[1:])) == 0 for batch in cut)


def test_progress_and_stopping(documents: Path, tokenizer_dir: Path, site: Site, tmp_path: Path) -> None:
    inputs = {"documents": documents, "tokenizer": tokenizer_dir}
    heard: list[Progress] = []
    shard_stage.run(Shards(), inputs, tmp_path, replace(site, report=heard.append))
    assert (heard[-1].done, heard[-1].total) == (4, 4)
    with pytest.raises(Stopped):
        shard_stage.run(Shards(), inputs, tmp_path, replace(site, stopping=lambda: True))


@pytest.mark.parametrize(("vocab_size", "name"), [(257, "uint16"), (65536, "uint16"), (65537, "int32")])
def test_dtype_is_the_smallest_that_holds_the_vocabulary(vocab_size: int, name: str, tmp_path: Path) -> None:
    assert token_dtype(vocab_size).name == name
    shard = TokenShard.open(written(tmp_path, [[vocab_size - 1, 0], [5]], vocab_size))
    assert shard.tokens.dtype.name == name
    assert shard.tokens.tolist() == [vocab_size - 1, 0, 5]


def test_a_document_without_text_is_one_token_and_keeps_its_row(tmp_path: Path) -> None:
    shard = TokenShard.open(written(tmp_path, [[1, 2, 0], [0], [3, 0]]))
    assert [shard.document_tokens(row).tolist() for row in range(3)] == [[1, 2, 0], [0], [3, 0]]
    assert [(span.row, span.start, span.stop) for span in shard.spans(2, 5)] == [
        (0, 2, 3),
        (1, 0, 1),
        (2, 0, 1),
    ]


def test_spans_of_every_range_name_every_token_once(tmp_path: Path) -> None:
    documents = [[1], [], [2, 3, 4], [], [], [5, 6]]
    shard = TokenShard.open(written(tmp_path, documents))
    for start in range(7):
        for stop in range(start, 7):
            spans = shard.spans(start, stop)
            tokens = [t for span in spans for t in documents[span.row][span.start : span.stop]]
            assert tokens == shard.tokens[start:stop].tolist()
            assert all(span.start < span.stop for span in spans)


@pytest.mark.parametrize(("start", "stop"), [(-1, 1), (0, 7), (3, 2)])
def test_ranges_outside_the_shard_are_refused(start: int, stop: int, tmp_path: Path) -> None:
    shard = TokenShard.open(written(tmp_path, [[1, 2, 3], [4, 5, 6]]))
    with pytest.raises(IndexError, match="of a shard that has 6"):
        shard.spans(start, stop)


@pytest.mark.parametrize("row", [-1, 2])
def test_rows_outside_the_shard_are_refused(row: int, tmp_path: Path) -> None:
    shard = TokenShard.open(written(tmp_path, [[1, 2, 3], [4, 5, 6]]))
    for call in (shard.document, shard.document_tokens):
        with pytest.raises(IndexError, match="of a shard that has 2"):
            call(row)


def test_a_shard_of_no_documents_can_be_opened(tmp_path: Path) -> None:
    shard = TokenShard.open(written(tmp_path, []))
    assert (shard.n_tokens, shard.n_documents, shard.spans(0, 0)) == (0, 0, [])


def _cut(content: bytes) -> bytes:
    return content[:-1]


def _grown(content: bytes) -> bytes:
    return content + b"\0\0"


def _patch(offset: int, form: str, value: Any) -> Callable[[bytes], bytes]:
    def patch(content: bytes) -> bytes:
        changed = bytearray(content)
        struct.pack_into(form, changed, offset, value)
        return bytes(changed)

    return patch


@pytest.mark.parametrize(
    ("name", "damage", "said"),
    [
        ("tokens.bin", _cut, r"11 bytes, wanted 12 bytes"),
        ("tokens.bin", _grown, r"14 bytes, wanted 12 bytes"),
        ("tokens.idx", _cut, r"wanted \d+, as its header says"),
        ("tokens.idx", lambda content: content[:20], r"20 bytes, wanted at least 34"),
        ("tokens.idx", lambda _: b"", r"0 bytes"),
        ("tokens.idx", _patch(0, "<B", 0), r"starts with"),
        ("tokens.idx", _patch(9, "<Q", 2), r"version 2"),
        ("tokens.idx", _patch(17, "<B", 7), r"dtype code 7"),
        ("tokens.idx", _patch(18, "<Q", 2**60), r"as its header says"),
        ("tokens.idx", _patch(34, "<i", -3), r"negative sequence length"),
        ("tokens.idx", _patch(34 + 8 + 8, "<q", 2), r"overlap or leave gaps"),
        ("tokens.idx", _patch(34 + 8 + 16 + 8, "<q", 5), r"out of order"),
    ],
)
def test_damage_is_named(name: str, damage: Callable[[bytes], bytes], said: str, tmp_path: Path) -> None:
    path = written(tmp_path, [[1, 2, 3], [4, 5, 6]]) / name
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(SourceError, match=said) as caught:
        TokenShard.open(tmp_path)
    assert name in caught.value.place


@pytest.mark.parametrize("name", ["tokens.bin", "tokens.idx"])
def test_a_missing_file_is_named(name: str, tmp_path: Path) -> None:
    (written(tmp_path, [[1]]) / name).unlink()
    with pytest.raises(SourceError, match=f"{name}: found no file"):
        TokenShard.open(tmp_path)


def test_tables_that_do_not_belong_to_the_tokens_are_refused(shard_dir: Path) -> None:
    with IndexedWriter(shard_dir / "tokens", 300) as writer:
        writer.add([[1, 2], [3]])
    with pytest.raises(SourceError, match=r"as tokens\.json says"):
        TokenShard.open(shard_dir)
    (shard_dir / "tokens.json").unlink()
    with pytest.raises(SourceError, match=r"4 rows in documents.parquet, wanted 2"):
        TokenShard.open(shard_dir).document(0)


def test_tokens_outside_the_vocabulary_and_open_documents_are_found(tmp_path: Path) -> None:
    shard = TokenShard.open(written(tmp_path, [[1, 0], [70, 0], [5, 4]]))
    with pytest.raises(SourceError, match="token 70 at 2"):
        shard.verify(vocab_size=70, eos_id=0)
    with pytest.raises(SourceError, match="document 2 not closed"):
        shard.verify(vocab_size=71, eos_id=0)


def test_a_writer_that_fails_leaves_no_index(tmp_path: Path) -> None:
    with pytest.raises(TypeError), IndexedWriter(tmp_path / "tokens", 300) as writer:
        writer.add([[1], None])  # type: ignore[list-item]
    assert [path.name for path in tmp_path.iterdir()] == ["tokens.bin"]


def test_an_index_is_written_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [list(range(n % 5)) for n in range(23)]
    whole = (written(tmp_path / "whole", documents) / "tokens.idx").read_bytes()
    monkeypatch.setattr("modelfactory.tokens.indexed._CHUNK", 4)
    assert (written(tmp_path / "pieces", documents) / "tokens.idx").read_bytes() == whole


def test_a_token_outside_the_vocabulary_is_our_own_mistake(tmp_path: Path) -> None:
    with pytest.raises(AssertionError), IndexedWriter(tmp_path / "tokens", 300) as writer:
        writer.add([[300]])


def test_documents_of_several_sequences_are_read(tmp_path: Path) -> None:
    np.arange(10, dtype="<i4").tofile(tmp_path / "tokens.bin")
    header = struct.pack("<9sQBQQ", b"MMIDIDX\x00\x00", 1, 4, 3, 3)
    lengths = np.array([4, 1, 5], dtype="<i4").tobytes()
    pointers = np.array([0, 16, 20], dtype="<i8").tobytes()
    documents = np.array([0, 2, 3], dtype="<i8").tobytes()
    (tmp_path / "tokens.idx").write_bytes(header + lengths + pointers + documents)
    assert open_indexed(tmp_path / "tokens").document_starts.tolist() == [0, 5, 10]
