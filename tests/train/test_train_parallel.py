"""Ten steps on 2 and 4 gloo processes against one: the same batches, the same losses, one checkpoint."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from modelfactory.models import GatedFeedForward, Llama, QKNorm, RMSNorm
from modelfactory.models.experts import AuxiliaryBalance, BiasBalance, Experts
from modelfactory.train import Muon, checkpoint
from modelfactory.train.stage import open_stream
from tests.train.material import GPT, LLAMA, chain, spec, train
from tests.train.world import Case, column, rows_of, run_world

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

MICRO = {"micro_batch_tokens": 64}
ENDS_EARLY = {"n_tokens": 9 * 128 + 50}
"""The last step has two rows without a label that counts: whole ranks compute for nothing."""

_BLOCK = LLAMA.blocks[0]
_LOCAL = replace(_BLOCK, mixer=replace(_BLOCK.mixer, window=7, softcap=20.0))
_NORM = QKNorm(norm=RMSNorm(eps=1e-5), over="head")
_GATED = replace(_BLOCK, mixer=replace(_BLOCK.mixer, gate=True, qk_norm=_NORM))
_EXPERTS = Experts(
    n_experts=4,
    n_active=2,
    expert=GatedFeedForward(d_ff=48, activation="silu", bias=False),
    shared=GatedFeedForward(d_ff=16, activation="silu", bias=False),
    score="softmax",
    renormalised=True,
    balance=BiasBalance(rate=0.01, auxiliary=AuxiliaryBalance(weight=0.01)),
)
MODELS: dict[str, Any] = {
    "llama": LLAMA,
    "gpt": GPT,
    "deep": Llama(n_layers=3, d_model=32, n_heads=4, max_seq_len=32),
    "windows": replace(LLAMA, blocks=(_BLOCK, _LOCAL)),
    "gated": replace(LLAMA, blocks=(_GATED,)),
    "experts": replace(LLAMA, blocks=(_BLOCK, replace(_BLOCK, feed_forward=_EXPERTS))),
}

ON_2 = [
    ("data=2", "llama"),
    ("shard=2", "llama"),
    ("shard=2", "experts"),
    ("tensor=2", "llama"),
    ("tensor=2", "gpt"),
    ("tensor=2", "gated"),
    ("context=2", "windows"),
    ("context=2", "gpt"),
    ("expert=2", "experts"),
]
ON_4 = [
    ("data=4", "gpt"),
    ("data=2,shard=2", "llama"),
    ("shard=2,tensor=2", "llama"),
    ("shard=2,tensor=2", "gated"),
    ("data=2,tensor=2", "gpt"),
    ("shard=2,context=2", "windows"),
    ("tensor=2,context=2", "deep"),
    ("expert=2,shard=2", "experts"),
    ("expert=2,data=2", "experts"),
]


SETTINGS: dict[str, tuple[str, dict[str, Any], dict[str, Any], float]] = {
    "muon": ("data=2", {"optimizer": Muon(lr=0.02, adamw_lr=3e-3, weight_decay=0.1)}, {}, 1e-5),
    "muon by context": ("context=2", {"optimizer": Muon(lr=0.02, adamw_lr=3e-3, weight_decay=0.1)}, {}, 1e-3),
    "bf16": ("shard=2", {"precision": "bf16"}, {}, 1e-3),
    "recomputed": ("shard=2", {}, {"checkpointing": "selective"}, 1e-5),
    "recomputed experts": ("expert=2", {"model": MODELS["experts"]}, {"checkpointing": "selective"}, 1e-5),
    "data=2 in parts": ("data=2", {}, {"micro_batch_tokens": 32}, 1e-5),
    "shard=2 in parts": ("shard=2", {}, {"micro_batch_tokens": 32}, 1e-5),
    "recomputed-bf16": ("shard=2", {"precision": "bf16"}, {"checkpointing": "full"}, 1e-3),
}
"""Name -> parallel, changes of the spec, of the site, and how far losses may lie apart."""


def named(parallel: str, model: str) -> str:
    return f"{parallel}-{model}"


def cases(which: list[tuple[str, str]]) -> list[Case]:
    return [
        Case(name=named(p, m), spec=spec(model=MODELS[m], **ENDS_EARLY), parallel=p, site=MICRO)
        for p, m in which
    ]


@pytest.fixture(scope="module")
def alone(inputs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the stage of each model, trained in one process."""
    folder = tmp_path_factory.mktemp("alone")
    return {
        name: train(spec(model=model, **ENDS_EARLY), inputs, folder / name, **MICRO)
        for name, model in MODELS.items()
    }


@pytest.fixture(scope="module")
def halfway(inputs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where 2 ranks leave the checkpoints of step 5."""
    return tmp_path_factory.mktemp("halfway") / "on-2"


@pytest.fixture(scope="module")
def one_sided(inputs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a stage of 5 steps after which every token chooses the first two of the four experts."""
    folder = tmp_path_factory.mktemp("one-sided")
    half = train(spec(model=MODELS["experts"], to_step=5), inputs, folder / "half", **MICRO)
    state = checkpoint.load(half / "checkpoint")
    state["model/blocks.1.feed_forward.router.bias_E"] = torch.tensor([100.0, 100.0, -100.0, -100.0])
    shutil.copytree(half, folder / "skewed", ignore=shutil.ignore_patterns("checkpoint"))
    checkpoint.save(state, folder / "skewed" / "checkpoint")
    return folder / "skewed"


@pytest.fixture(scope="module")
def on_2(inputs: dict[str, Path], halfway: Path, one_sided: Path) -> Path:
    half = [
        Case(name=f"half-{p}-{m}", spec=spec(model=MODELS[m], to_step=5), parallel=p, site=MICRO)
        for p, m in (("shard=2", "llama"), ("tensor=2", "gpt"), ("expert=2", "experts"))
    ]
    other = [
        Case(name=name, spec=spec(**ENDS_EARLY, **changes), parallel=parallel, site={**MICRO, **site})
        for name, (parallel, changes, site, _) in SETTINGS.items()
    ]
    skewed = Case(
        name="one-sided",
        spec=spec(model=MODELS["experts"], from_step=5),
        parallel="expert=2",
        checkpoint=one_sided,
        site=MICRO,
    )
    return run_world(2, [*cases(ON_2), *half, *other, skewed], inputs, halfway)


@pytest.fixture(scope="module")
def on_4(inputs: dict[str, Path], on_2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    rest = [
        Case(
            name=f"rest-{p}-{m}",
            spec=spec(model=MODELS[m], from_step=5),
            parallel=p,
            checkpoint=on_2 / half,
            site=MICRO,
        )
        for p, m, half in (
            ("shard=2,tensor=2", "llama", "half-shard=2-llama"),
            ("shard=4", "gpt", "half-tensor=2-gpt"),
            ("shard=4", "experts", "half-expert=2-experts"),
        )
    ]
    return run_world(4, [*cases(ON_4), *rest], inputs, tmp_path_factory.mktemp("four") / "on-4")


def check_equal(one: Path, many: Path) -> None:
    """Compare losses, norms and all that is in the checkpoint but torch's generator."""
    assert column(many, "step") == column(one, "step")[-len(column(many, "step")) :]
    for name in ("loss", "grad_norm"):
        wanted = column(one, name)[-len(column(many, name)) :]
        np.testing.assert_allclose(column(many, name), wanted, rtol=1e-5, atol=1e-5)
    ours, theirs = (checkpoint.load(stage / "checkpoint") for stage in (one, many))
    assert ours.keys() == theirs.keys()
    for key, value in ours.items():
        if key != "rng":
            torch.testing.assert_close(theirs[key], value, atol=2e-5, rtol=1e-3, msg=key)


@pytest.mark.parametrize(("parallel", "model"), ON_2)
def test_two_processes_train_as_one(alone: dict[str, Path], on_2: Path, parallel: str, model: str) -> None:
    check_equal(alone[model], on_2 / named(parallel, model))


def test_a_process_whose_experts_no_token_chooses_goes_on(
    inputs: dict[str, Path], on_2: Path, one_sided: Path, tmp_path: Path
) -> None:
    here = {**inputs, "checkpoint": one_sided}
    one = train(spec(model=MODELS["experts"], from_step=5), here, tmp_path / "one", **MICRO)
    loads = column(on_2 / "one-sided", "blocks.1.feed_forward.load")
    assert loads == [[128, 128, 0, 0]] * 5
    check_equal(one, on_2 / "one-sided")


@pytest.mark.parametrize("name", SETTINGS)
def test_two_processes_train_as_one_with_other_settings(
    inputs: dict[str, Path], on_2: Path, tmp_path: Path, name: str
) -> None:
    _, changes, _, apart = SETTINGS[name]
    one = train(spec(**ENDS_EARLY, **changes), inputs, tmp_path / "one", **MICRO)
    np.testing.assert_allclose(column(on_2 / name, "loss"), column(one, "loss"), rtol=apart)


@pytest.mark.parametrize("parallel", ["data=2", "shard=2"])
def test_gradients_are_exchanged_once_however_many_parts(on_2: Path, parallel: str) -> None:
    """Rows of a rank go through the model at once in one case, and one by one in the other."""
    at_once = int((on_2 / f"{parallel}-llama-0.sums").read_text())
    in_parts = int((on_2 / f"{parallel} in parts-0.sums").read_text())
    assert in_parts == at_once >= 10


@pytest.mark.parametrize(("parallel", "model"), ON_4)
def test_four_processes_train_as_one(alone: dict[str, Path], on_4: Path, parallel: str, model: str) -> None:
    check_equal(alone[model], on_4 / named(parallel, model))


@pytest.mark.parametrize(
    ("parallel", "model", "readers"),
    [
        ("data=4", "gpt", [0, 1, 2, 3]),
        ("data=2,shard=2", "llama", [0, 1, 2, 3]),
        ("expert=2,shard=2", "experts", [0, 1, 2, 3]),
        ("shard=2,tensor=2", "llama", [0, 2]),
        ("shard=2,context=2", "windows", [0, 1]),
        ("tensor=2,context=2", "deep", [3]),
    ],
)
def test_the_batches_are_the_same(
    inputs: dict[str, Path], on_4: Path, parallel: str, model: str, readers: list[int]
) -> None:
    stream = open_stream(spec(**ENDS_EARLY), inputs)
    for step in range(1, 11):
        tokens, ids = rows_of(on_4, named(parallel, model), step, readers)
        np.testing.assert_array_equal(tokens, stream.batch(step).tokens)
        np.testing.assert_array_equal(ids, stream.batch(step).sequence_ids)


@pytest.mark.parametrize(
    ("model", "half"),
    [("llama", "half-shard=2-llama"), ("gpt", "half-tensor=2-gpt"), ("experts", "half-expert=2-experts")],
)
def test_a_checkpoint_of_two_goes_on_alone(
    inputs: dict[str, Path], on_2: Path, tmp_path: Path, model: str, half: str
) -> None:
    whole = chain([10], inputs, tmp_path / "whole", warm=False, model=MODELS[model])
    here = {**inputs, "checkpoint": on_2 / half}
    check_equal(whole, train(spec(model=MODELS[model], from_step=5), here, tmp_path / "rest", **MICRO))


@pytest.mark.parametrize(
    ("model", "rest"),
    [
        ("llama", "rest-shard=2,tensor=2-llama"),
        ("gpt", "rest-shard=4-gpt"),
        ("experts", "rest-shard=4-experts"),
    ],
)
def test_a_checkpoint_of_two_goes_on_with_four(
    inputs: dict[str, Path], on_4: Path, tmp_path: Path, model: str, rest: str
) -> None:
    check_equal(chain([10], inputs, tmp_path / "whole", warm=False, model=MODELS[model]), on_4 / rest)
