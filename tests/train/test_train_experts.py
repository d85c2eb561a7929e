"""Experts and further tokens in real training: logged, resumed, and the same however a batch is split."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from modelfactory.models import (
    AuxiliaryBalance,
    BiasBalance,
    CapacityFactor,
    Experts,
    GatedFeedForward,
    MultiToken,
)
from modelfactory.train import load_model
from tests.train.material import LLAMA, chain, deterministic_files, spec, train

if TYPE_CHECKING:
    from pathlib import Path

EXPERTS = Experts(
    n_experts=4,
    n_active=2,
    expert=GatedFeedForward(d_ff=24, activation="silu", bias=False),
    shared=GatedFeedForward(d_ff=16, activation="silu", bias=False),
    score="sigmoid",
    renormalised=True,
    balance=BiasBalance(rate=0.001, auxiliary=AuxiliaryBalance(weight=0.01)),
    capacity=CapacityFactor(factor=1.25),
)
BLOCK = replace(LLAMA.blocks[0], feed_forward=EXPERTS)
MODEL = replace(LLAMA, blocks=(BLOCK,), multi_token=MultiToken(n_extra=1, weight=0.3, block=BLOCK))
LAYERS = ("blocks.0.feed_forward", "blocks.1.feed_forward", "multi_token.depths.0.block.feed_forward")


def lines(stage: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (stage / "metrics.jsonl").read_text("utf-8").splitlines()]


def test_loads_are_logged_and_biases_kept(inputs: dict[str, Path], tmp_path: Path) -> None:
    stage = train(spec(model=MODEL), inputs, tmp_path / "run")
    metrics = lines(stage)
    for line in metrics[:9]:
        assert [sum(line[f"{name}.load"]) for name in LAYERS] == [4 * 32 * 2, 4 * 32 * 2, 4 * 31 * 2]
        assert all(0 <= line[f"{name}.dropped"] < 4 * 32 for name in LAYERS)
    assert metrics[-1]["loss"] < metrics[0]["loss"] - 0.2
    module: Any = load_model(stage)
    bias = [0.0] * 4
    for line in metrics:
        load = line[f"{LAYERS[0]}.load"]
        mean = sum(load) / 4
        bias = [b + 0.001 * ((mean > n) - (mean < n)) for b, n in zip(bias, load, strict=True)]
    assert module.blocks[0].feed_forward.router.bias_E.tolist() == pytest.approx(bias, abs=1e-6)
    assert any(bias)


def test_resumed_is_the_same(inputs: dict[str, Path], tmp_path: Path) -> None:
    whole = chain([4, 10], inputs, tmp_path / "warm", warm=True, model=MODEL)
    resumed = chain([4, 10], inputs, tmp_path / "cold", warm=False, model=MODEL)
    assert deterministic_files(whole) == deterministic_files(resumed)


def test_a_split_changes_nothing(inputs: dict[str, Path], tmp_path: Path) -> None:
    one = lines(train(spec(model=MODEL), inputs, tmp_path / "whole"))
    other = lines(train(spec(model=MODEL), inputs, tmp_path / "split", micro_batch_tokens=32))
    assert [line["loss"] for line in other] == pytest.approx([line["loss"] for line in one], abs=1e-5)
    assert [line["grad_norm"] for line in other] == pytest.approx(
        [line["grad_norm"] for line in one], rel=1e-4
    )
    first = [
        (line["blocks.0.feed_forward.load"], line["blocks.0.feed_forward.dropped"])
        for line in (one[0], other[0])
    ]
    assert first[0] == first[1]
