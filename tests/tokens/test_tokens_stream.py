"""The stream by example; its laws are in tests/properties/test_stream.py."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from modelfactory.errors import InvalidInputs, SourceError, SpecError
from modelfactory.tokens import Stream, TokenShard, check_epochs, required_epochs
from modelfactory.tokens.indexed import IndexedWriter

if TYPE_CHECKING:
    from pathlib import Path


def shard(folder: Path, lengths: list[int], first: int = 0) -> TokenShard:
    """Documents of these lengths; token i of the shard is `first` + i, so that a token tells its place."""
    folder.mkdir()
    ends = np.cumsum(lengths) + first
    with IndexedWriter(folder / "tokens", 70_000) as writer:
        writer.add([list(range(end - n, end)) for n, end in zip(lengths, ends, strict=True)])
    return TokenShard.open(folder)


@pytest.fixture
def shards(tmp_path: Path) -> list[TokenShard]:
    return [shard(tmp_path / "a", [7, 1, 30, 26]), shard(tmp_path / "b", [100, 101], first=1000)]


def stream(shards: list[TokenShard], n_tokens: int = 300, **changes: object) -> Stream:
    limits = (20,) * len(shards)
    options = {"weights": (1, 2), "seq_len": 8, "batch_sequences": 4, "seed": 0, "max_epochs": limits}
    return Stream(shards, n_tokens=n_tokens, **(options | changes))  # type: ignore[arg-type]


def test_a_batch_is_rows_of_neighbouring_tokens(shards: list[TokenShard]) -> None:
    batch = stream(shards).batch(1)
    assert batch.tokens.shape == (4, 9)
    assert batch.tokens.dtype == np.int32
    assert batch.valid.shape == (4, 8)
    assert batch.valid.all()
    assert (np.diff(batch.tokens, axis=1) == 1).all()
    first = batch.sequence_ids[:, 2] * 8 + np.where(batch.sequence_ids[:, 0] == 1, 1000, 0)
    assert batch.tokens[:, 0].tolist() == first.tolist()


def test_the_last_step_is_cut_to_the_tokens_of_the_run(shards: list[TokenShard]) -> None:
    run = stream(shards, n_tokens=4 * 8 * 2 + 11)
    assert run.n_steps == 3
    last = run.batch(3)
    assert last.valid.sum(axis=1).tolist() == [8, 3, 0, 0]
    assert last.n_valid == 11
    assert last.sequence_ids[2:].tolist() == [[-1, -1, -1]] * 2
    assert not last.tokens[2:].any()
    assert not last.tokens[1, 4:].any()
    longer = stream(shards, n_tokens=300).batch(3)
    assert (last.tokens[:, 1:] == longer.tokens[:, 1:])[last.valid].all()
    assert [run.n_tokens_to(step) for step in range(5)] == [0, 32, 64, 75, 75]


@pytest.mark.parametrize("step", [0, -1, 11])
def test_there_are_no_other_steps(step: int, shards: list[TokenShard]) -> None:
    with pytest.raises(IndexError, match=r"step -?\d+ of a run that has the steps 1 to 10"):
        stream(shards).batch(step)


@pytest.mark.parametrize(("rank", "world_size"), [(-1, 2), (2, 2), (0, 0)])
def test_there_are_no_other_ranks(rank: int, world_size: int, shards: list[TokenShard]) -> None:
    with pytest.raises(IndexError, match="rank"):
        stream(shards).batch(1, rank, world_size)


def test_another_seed_gives_another_order(shards: list[TokenShard]) -> None:
    one, other = (stream(shards, seed=seed).batch(1) for seed in (0, 1))
    assert one.sequence_ids[:, 0].tolist() == other.sequence_ids[:, 0].tolist()  # weights know no chance
    assert one.sequence_ids[:, 2].tolist() != other.sequence_ids[:, 2].tolist()


def test_each_epoch_and_source_has_an_order_of_its_own(tmp_path: Path) -> None:
    alike = [shard(tmp_path / name, [801]) for name in "ab"]
    run = stream(alike, weights=(1, 1), n_tokens=8 * 600)
    ids = run.sequence_ids(np.arange(600))
    orders = {
        tuple(ids[(ids[:, 0] == source) & (ids[:, 1] == epoch), 2].tolist())
        for source in (0, 1)
        for epoch in (0, 1, 2)
    }
    assert len(orders) == 6
    assert {frozenset(order) for order in orders} == {frozenset(range(100))}


def test_shards_of_others_have_no_documents_to_name(shards: list[TokenShard]) -> None:
    with pytest.raises(SourceError, match=r"no documents\.parquet"):
        stream(shards).documents(1)


def test_documents_of_a_step_name_every_token_that_was_seen(shard_dir: Path) -> None:
    one = TokenShard.open(shard_dir)
    run = stream([one], weights=(1,), n_tokens=250, seq_len=16, batch_sequences=3)
    for step in range(1, run.n_steps + 1):
        batch = run.batch(step)
        seen = np.full(batch.tokens.shape, -1)
        for span in run.documents(step):
            tokens = one.document_tokens(span.document)[span.start : span.start + span.n_tokens]
            assert (seen[span.row, span.column : span.column + span.n_tokens] == -1).all()
            seen[span.row, span.column : span.column + span.n_tokens] = tokens
            assert span.document_id == one.document(span.document).document_id
            assert span.epoch == batch.sequence_ids[span.row, 1]
            assert step in run.steps_of(0, span.document)
        n_seen = batch.valid.sum(axis=1)
        shown = np.arange(17) < (n_seen + (n_seen > 0))[:, None]
        assert ((seen == batch.tokens) | ~shown).all()
        assert ((seen >= 0) == shown).all()


def test_steps_of_a_document_are_those_whose_documents_hold_it(shard_dir: Path) -> None:
    one = TokenShard.open(shard_dir)
    run = stream([one], weights=(1,), n_tokens=3 * one.n_tokens + 5, seq_len=16, batch_sequences=3)
    held = {step: {span.document for span in run.documents(step)} for step in range(1, run.n_steps + 1)}
    for document in range(one.n_documents):
        assert run.steps_of(0, document) == [step for step, rows in held.items() if document in rows]


def test_epochs_are_counted_by_source(shards: list[TokenShard]) -> None:
    run = stream(shards, n_tokens=300)  # 38 sequences: 13 of the 7 of a, 25 of the 25 of b
    needed = required_epochs(n_tokens=300, seq_len=8, weights=(1, 2), source_tokens=(64, 201))
    assert run.epochs() == needed == (13 / 7, 25 / 25)
    assert run.epochs(0) == (0, 0)
    assert run.epochs(1) == (1 / 7, 3 / 25)


def test_too_many_epochs_are_refused_with_numbers(shards: list[TokenShard]) -> None:
    said = r"mixture\.parts\[0\]\.max_epochs: found 1\.857 epochs needed of a source that has 64 tokens"
    with pytest.raises(SpecError, match=said):
        stream(shards, max_epochs=(1.5, 1.5))
    with pytest.raises(InvalidInputs, match=r"(?s)2 faults.*parts\[1\].*at most 0\.5 epochs, 100 tokens"):
        stream(shards, max_epochs=(0.5, 0.5))


def test_without_a_limit_four_epochs_are_allowed(shards: list[TokenShard]) -> None:
    stream(shards[:1], weights=(1,), n_tokens=4 * 7 * 8, max_epochs=None)
    with pytest.raises(SpecError, match="at most 4 epochs"):
        stream(shards[:1], weights=(1,), n_tokens=4 * 7 * 8 + 1, max_epochs=None)


def test_an_epoch_that_is_just_full_is_allowed() -> None:
    check_epochs((1.0, 2.0), (1.0, 2.0), (100, 100))


def test_a_source_shorter_than_a_sequence_is_refused(tmp_path: Path) -> None:
    short, just = shard(tmp_path / "short", [8]), shard(tmp_path / "just", [4, 5])
    assert stream([just], weights=(1,), n_tokens=8).batch(1).tokens[0].tolist() == list(range(9))
    with pytest.raises(SpecError, match=r"parts\[1\]\.dataset: found 8 tokens, wanted at least 9"):
        stream([just, short], n_tokens=8)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seq_len": 0}, "seq_len"),
        ({"batch_sequences": -1}, "batch_sequences"),
        ({"n_tokens": 0}, "n_tokens"),
        ({"weights": (1,)}, "1 weights for 2 shards"),
        ({"weights": (1, -1)}, r"weights\[1\]: found -1"),
        ({"max_epochs": (1,)}, "max_epochs"),
    ],
)
def test_counts_that_make_no_stream_are_refused(
    changes: dict[str, object], said: str, shards: list[TokenShard]
) -> None:
    with pytest.raises(SpecError, match=said):
        stream(shards, **changes)  # type: ignore[arg-type]


def test_a_batch_is_pinned(shards: list[TokenShard]) -> None:
    """A change of these numbers changes every training run that was ever stored: raise the stage version."""
    run = stream(shards)
    assert run.batch(2).sequence_ids.tolist() == [[0, 0, 4], [1, 0, 2], [1, 0, 18], [0, 0, 2]]
    assert run.batch(9).sequence_ids.tolist() == [[1, 0, 13], [1, 0, 7], [0, 1, 0], [1, 0, 5]]


def test_a_stage_of_real_text_streams(shard_dir: Path) -> None:
    one = TokenShard.open(shard_dir)
    run = stream([one], weights=(5,), seq_len=32, batch_sequences=2, n_tokens=200)
    assert sum(run.batch(step).n_valid for step in range(1, run.n_steps + 1)) == 200


def test_tokens_import_no_torch() -> None:
    code = "import sys, modelfactory.tokens, modelfactory.tokens.shard_stage; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "False"


def test_batches_compare_by_identity(shards: list[TokenShard]) -> None:
    batch = stream(shards).batch(1)
    assert batch == batch  # noqa: PLR0124 - arrays inside must not be compared
    assert replace(batch, step=2) != batch
