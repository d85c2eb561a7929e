"""Runs whose first batches are smaller."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from modelfactory.errors import SpecError
from modelfactory.spec import fingerprint, from_json, identity_json, to_json
from modelfactory.train import BatchStage, Constant, TrainSegment, segment
from modelfactory.train.stage import open_stream
from tests.train.material import LLAMA, mixture, train, training

if TYPE_CHECKING:
    from pathlib import Path

STAGES = (BatchStage(n_steps=2, batch_tokens=32), BatchStage(n_steps=3, batch_tokens=64))
FLAT = {"schedule": Constant(warmup_steps=1)}


def of(to_step: int, from_step: int = 0, **changes: Any) -> TrainSegment:
    run = training(**({"batch_warmup": STAGES} | FLAT | changes))
    return segment(run, LLAMA, mixture(), from_step=from_step, to_step=to_step)


def test_steps_and_checkpoints() -> None:
    run = training(batch_warmup=STAGES)  # 1,252 tokens: 64 and 192 in the warm-up, then 996 by 128
    assert run.n_steps == 2 + 3 + 8
    assert run.checkpoint_steps == (4, 7, 10, 13)


def test_counts_of_a_segment() -> None:
    found = [(of(step).n_tokens_to_step, of(13, step).n_tokens_before) for step in range(1, 13)]
    wanted = [32, 64, 128, 192, 256, 384, 512, 640, 768, 896, 1024, 1152]
    assert found == [(n, n) for n in wanted]
    assert of(13).n_tokens_to_step == 1252
    assert of(13).n_tokens_before == 0
    assert {of(step).n_steps for step in range(1, 14)} == {13}


def test_a_segment_survives_json() -> None:
    for step in (1, 4, 9):
        assert from_json(to_json(of(step))) == of(step)


@pytest.mark.parametrize("step", [1, 2])
def test_within_the_first_stage_it_is_a_run_of_small_batches(step: int) -> None:
    small = of(step, batch_tokens=32, batch_warmup=())
    assert fingerprint(of(step)) == fingerprint(small)


def test_what_follows_is_no_part_of_the_identity() -> None:
    other = (STAGES[0], BatchStage(n_steps=5, batch_tokens=64), BatchStage(n_steps=1, batch_tokens=96))
    for step in range(1, 6):
        assert fingerprint(of(step)) == fingerprint(of(step, batch_warmup=other, batch_tokens=256))
    assert fingerprint(of(6)) != fingerprint(of(6, batch_warmup=other, batch_tokens=256))


def test_what_came_before_is() -> None:
    first_only = (STAGES[0],)
    assert fingerprint(of(2)) == fingerprint(of(2, batch_warmup=first_only))
    assert fingerprint(of(3)) != fingerprint(of(3, batch_warmup=first_only))
    assert fingerprint(of(9)) != fingerprint(of(9, batch_warmup=()))
    same_tokens = (BatchStage(n_steps=1, batch_tokens=64), BatchStage(n_steps=2, batch_tokens=96))
    assert fingerprint(of(9)) != fingerprint(of(7, batch_warmup=same_tokens))


def test_no_warm_up_is_what_it_was() -> None:
    for spec in (training(), of(3, batch_warmup=())):
        assert "batch_warmup" not in identity_json(spec)
    assert "batch_warmup" in identity_json(of(9))


BAD: list[tuple[tuple[BatchStage, ...], str]] = [
    ((STAGES[1], STAGES[0]), r"Training.batch_warmup: found \[64, 32, 128\], wanted batch_tokens that grow"),
    ((STAGES[0], STAGES[0]), r"found \[32, 32, 128\].* Merge stages of one size"),
    ((BatchStage(n_steps=1, batch_tokens=128),), r"found \[128, 128\]"),
    ((BatchStage(n_steps=20, batch_tokens=64),), "stages of 1,280 tokens in a run of 1,252"),
]


@pytest.mark.parametrize(("stages", "message"), BAD)
def test_what_is_no_warm_up_is_refused(stages: tuple[BatchStage, ...], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        training(batch_warmup=stages)


def test_broken_sequences_are_refused() -> None:
    with pytest.raises(SpecError, match=r"batch_tokens: found 40, wanted a multiple of seq_len 32"):
        of(9, batch_warmup=(BatchStage(n_steps=1, batch_tokens=40),))
    with pytest.raises(SpecError, match=re.escape("BatchStage.n_steps: found 0")):
        BatchStage(n_steps=0, batch_tokens=32)


def test_documents_of_a_step_are_those_of_its_rows(inputs: dict[str, Path]) -> None:
    stream = open_stream(of(13), inputs)
    assert stream.n_steps == 13
    for step in (1, 2, 3, 5, 6, 13):
        batch, spans = stream.batch(step), stream.documents(step)
        seen = [sum(span.n_tokens for span in spans if span.row == row) for row in range(len(batch.tokens))]
        assert seen == [n + 1 if n else 0 for n in batch.valid.sum(axis=1).tolist()]
        assert all(step in stream.steps_of(span.source, span.document) for span in spans)


def test_the_metrics_of_a_run(inputs: dict[str, Path], tmp_path: Path) -> None:
    made = train(of(13), inputs, tmp_path / "run")
    lines = [json.loads(line) for line in (made / "metrics.jsonl").read_text().splitlines()]
    wanted = [32, 64, 128, 192, 256, 384, 512, 640, 768, 896, 1024, 1152, 1252]
    assert [line["n_tokens"] for line in lines] == wanted
    facts = json.loads((made / "model.json").read_text())
    assert (facts["step"], facts["n_tokens_seen"]) == (13, 1252)
