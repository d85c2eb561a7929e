"""Rows of several documents, from the shard to the loss."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from modelfactory.spec import fingerprint
from modelfactory.tokens import TokenShard
from modelfactory.tokens.shard_stage import write_shard
from modelfactory.tokens.tokenizer import load_tokenizer
from modelfactory.train.learner import Learner
from modelfactory.train.stage import open_stream
from tests.train.material import EOS, GPT, LLAMA, chain, deterministic_files, spec, train
from tests.train.world import Case, column, run_world

if TYPE_CHECKING:
    from pathlib import Path

VOCAB = 384
TEXTS = ("def f(x):\n    return x", "import os", "", "class A:\n    pass\n", "# a note", "x = y = 3\n") * 40


@pytest.fixture(scope="module")
def packed(inputs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return inputs with many short documents, so that each row holds several."""
    return {**inputs, "tokens0": written(TEXTS, inputs, tmp_path_factory.mktemp("packed"))}


def written(texts: tuple[str, ...], inputs: dict[str, Path], folder: Path) -> Path:
    columns = {
        "document_id": [f"{n:064x}" for n in range(len(texts))],
        "source": ["notes"] * len(texts),
        "path": [f"{n}.txt" for n in range(len(texts))],
        "text": list(texts),
    }
    write_shard([pa.RecordBatch.from_pydict(columns)], load_tokenizer(inputs["tokenizer"]), folder)
    return folder


def metrics(stage: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (stage / "metrics.jsonl").read_text("utf-8").splitlines()]


def alone(module: Any, tokens: np.ndarray[Any, Any]) -> float:
    """Return the sum of losses of one piece of a document that has a row of its own."""
    row = torch.from_numpy(tokens).long()[None]
    valid = torch.ones_like(row[:, 1:], dtype=torch.bool)
    return float(module.loss_sum(row[:, :-1], row[:, 1:], valid)) if row.shape[1] > 1 else 0.0


@pytest.mark.parametrize("model", [LLAMA, GPT])
def test_a_document_in_a_packed_row_has_the_loss_it_has_alone(
    packed: dict[str, Path], tmp_path: Path, model: Any
) -> None:
    asked = spec(to_step=1, model=model, document_masks=True, n_checkpoints=10)
    (line,) = metrics(train(asked, packed, tmp_path / "run"))
    stream = open_stream(asked, packed)
    batch, shard, module = stream.batch(1), stream.shards[0], model.build(VOCAB, seed=3)
    pieces = [
        np.asarray(shard.document_tokens(span.document)[span.start : span.start + span.n_tokens], np.int32)
        for span in stream.documents(1)
    ]
    assert len(pieces) > 3 * len(batch.tokens), "rows that hold several documents"
    with torch.no_grad():
        total = sum(alone(module, piece) for piece in pieces)
    n_labels = sum(len(piece) - 1 for piece in pieces)
    assert line["n_labels"] == batch.n_valid == n_labels < line["n_tokens"] == 128
    assert line["loss"] == pytest.approx(total / n_labels, rel=1e-6)
    (free,) = metrics(train(replace(asked, document_masks=False), packed, tmp_path / "free"))
    assert "n_labels" not in free
    assert free["loss"] != pytest.approx(line["loss"], rel=1e-4)


def test_another_document_in_the_row_changes_nothing(packed: dict[str, Path]) -> None:
    asked = spec(document_masks=True)
    learner = Learner(asked, VOCAB, is_compiled=False)
    batch = open_stream(asked, packed).batch(1)
    assert batch.documents is not None
    tokens, documents = torch.from_numpy(batch.tokens).long(), torch.from_numpy(batch.documents).long()
    mine = torch.from_numpy(batch.valid) & (documents == 1)
    assert mine.any(dim=1).all()
    inside = torch.zeros_like(tokens, dtype=torch.bool)
    inside[:, :-1] = documents == 1
    others = torch.where(inside, tokens, (tokens + 7) % VOCAB)
    with torch.no_grad():
        found = [
            float(learner.sums(rows[:, :-1], rows[:, 1:], mine, documents).loss) for rows in (tokens, others)
        ]
    assert found[0] == pytest.approx(found[1], rel=1e-6)


def test_it_is_identity_only_where_it_is_used() -> None:
    assert fingerprint(spec(document_masks=False)) == fingerprint(spec())
    assert fingerprint(spec(document_masks=True)) != fingerprint(spec())


def test_a_resumed_run_is_the_same(packed: dict[str, Path], tmp_path: Path) -> None:
    whole = chain([4, 10], packed, tmp_path / "warm", warm=True, document_masks=True)
    resumed = chain([4, 10], packed, tmp_path / "cold", warm=False, document_masks=True)
    assert deterministic_files(whole) == deterministic_files(resumed)
    lines = metrics(whole)
    assert [line["n_tokens"] for line in lines][-1] == 1252
    assert all(line["n_labels"] < 128 for line in lines)


def test_a_batch_in_which_nothing_is_learnt_has_no_loss(
    packed: dict[str, Path], inputs: dict[str, Path], tmp_path: Path
) -> None:
    folder = written(TEXTS, inputs, tmp_path)
    n_tokens = TokenShard.open(folder).n_tokens
    facts = json.loads((folder / "tokens.json").read_text())
    mask = bytes(n // 32 % 6 == 0 for n in range(n_tokens))  # of every sixth row
    (folder / "tokens.json").write_text(json.dumps(facts | {"n_learnt": sum(mask)}))
    (folder / "loss_mask.bin").write_bytes(mask)
    stage = train(spec(), {**inputs, "tokens0": folder}, tmp_path / "run", micro_batch_tokens=32)
    told = [(line["loss"], line["grad_norm"]) for line in metrics(stage) if line["n_labels"] == 0]
    learnt = [line["loss"] for line in metrics(stage) if line["n_labels"] > 0]
    assert told
    assert set(told) == {(None, 0.0)}
    assert learnt
    assert all(loss > 0 for loss in learnt)


def test_the_boundary_is_after_the_end_of_text(packed: dict[str, Path]) -> None:
    stream = open_stream(spec(document_masks=True), packed)
    eos_id = load_tokenizer(packed["tokenizer"]).token_id(EOS)
    batch = stream.batch(2)
    ends = batch.tokens[:, :-1] == eos_id
    assert ends.any()
    np.testing.assert_array_equal(batch.valid, ~ends)


@pytest.mark.slow
def test_two_processes_train_as_one(packed: dict[str, Path], tmp_path: Path) -> None:
    """Ranks have unequally many labels that count."""
    asked = spec(document_masks=True, n_tokens=9 * 128 + 50)
    one = train(asked, packed, tmp_path / "one")
    names = ("data=2", "shard=2", "tensor=2", "context=2")
    world = run_world(
        2, [Case(name=each, spec=asked, parallel=each) for each in names], packed, tmp_path / "w"
    )
    for each in names:
        assert column(world / each, "n_labels") == column(one, "n_labels")
        for metric in ("loss", "grad_norm"):
            np.testing.assert_allclose(column(world / each, metric), column(one, metric), rtol=1e-5)
