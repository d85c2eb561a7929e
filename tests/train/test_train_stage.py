from __future__ import annotations

import errno
import json
import math
import os
import shutil
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from modelfactory.engine.failure import classify, describe
from modelfactory.errors import (
    CheckpointDamaged,
    DiskFull,
    NonFiniteLoss,
    SpecError,
    Stopped,
)
from modelfactory.models import GPT2, LossSums
from modelfactory.train import AdamW, load_model, segment
from modelfactory.train import checkpoint as checkpoint_module
from modelfactory.train.learner import Learner
from modelfactory.train.settings import torch_settings
from tests.limits import files_of_at_most
from tests.train.material import (
    EOS,
    GPT,
    LLAMA,
    SOURCES,
    chain,
    deterministic_files,
    mixture,
    spec,
    train,
    training,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from modelfactory.stage import Progress


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_a_run_learns_and_says_what_it_did(inputs: dict[str, Path], tmp_path: Path) -> None:
    stage = train(spec(), inputs, tmp_path / "run")
    metrics, timing = lines(stage / "metrics.jsonl"), lines(stage / "observed" / "timing.jsonl")
    assert [line["step"] for line in metrics] == [line["step"] for line in timing] == list(range(1, 11))
    assert [line["n_tokens"] for line in metrics] == [*range(128, 1153, 128), 1252]
    assert metrics[0]["loss"] == pytest.approx(math.log(384), rel=0.02)
    assert metrics[-1]["loss"] < metrics[0]["loss"] - 0.2
    assert metrics[0]["lr"] == 0.0015
    assert metrics[1]["lr"] == 0.003
    assert metrics[-1]["flops"] == 1252 * LLAMA.flops_per_token(384, 32)
    assert 0 < metrics[0]["epochs"][0] < metrics[1]["epochs"][0]
    facts = json.loads((stage / "model.json").read_text("utf-8"))
    assert (facts["step"], facts["n_tokens_seen"], facts["vocab_size"]) == (10, 1252, 384)
    assert facts["n_parameters"] == LLAMA.n_parameters(384)
    assert facts["precision"] == "fp32"


def test_nothing_but_observed_depends_on_the_clock(inputs: dict[str, Path], tmp_path: Path) -> None:
    one, other = (deterministic_files(train(spec(), inputs, tmp_path / name)) for name in ("a", "b"))
    assert one == other
    assert set(one) == {
        "checkpoint/.metadata",
        "checkpoint/__0_0.distcp",
        "checkpoint/sha256.json",
        "metrics.jsonl",
        "model.json",
    }


def test_settings_of_the_process_are_put_back(inputs: dict[str, Path], tmp_path: Path) -> None:
    torch.manual_seed(123)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    train(spec(to_step=1), inputs, tmp_path / "run")
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads
    with torch_settings(threads + 1):
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.get_num_threads() == threads + 1
    assert torch.get_num_threads() == threads
    assert not torch.are_deterministic_algorithms_enabled()


def test_the_model_comes_back(inputs: dict[str, Path], tmp_path: Path) -> None:
    kept: dict[str, Any] = {}
    stage = train(spec(), inputs, tmp_path / "run", warm=kept, fingerprint="run")
    module = load_model(stage)
    live: Learner = kept["train.learner"]
    assert not module.training
    for name, value in live.module.state_dict().items():
        assert torch.equal(module.state_dict()[name], value), name


def test_progress_is_told(inputs: dict[str, Path], tmp_path: Path) -> None:
    told: list[Progress] = []
    train(spec(to_step=6), inputs, tmp_path / "run", report=told.append)
    assert told[-1].done == told[-1].total == 6
    assert told[-1].metrics["step"] == 6
    assert {"loss", "tokens_per_s"} <= told[-1].metrics.keys()


def test_micro_batches_change_the_last_digits_only(inputs: dict[str, Path], tmp_path: Path) -> None:
    whole = lines(train(spec(), inputs, tmp_path / "a") / "metrics.jsonl")
    split = lines(train(spec(), inputs, tmp_path / "b", micro_batch_tokens=32) / "metrics.jsonl")
    for one, other in zip(whole, split, strict=True):
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-5)


def test_bf16_and_fp32_agree_roughly(inputs: dict[str, Path], tmp_path: Path) -> None:
    fp32 = lines(train(spec(), inputs, tmp_path / "a") / "metrics.jsonl")
    stage = train(spec(precision="bf16"), inputs, tmp_path / "b")
    bf16 = lines(stage / "metrics.jsonl")
    assert bf16 != fp32
    assert bf16[-1]["loss"] == pytest.approx(fp32[-1]["loss"], rel=0.01)
    assert {p.dtype for p in load_model(stage).parameters()} == {torch.float32}


def test_a_stop_is_heard(inputs: dict[str, Path], tmp_path: Path) -> None:
    answers = iter([False] * 3 + [True] * 10)
    kept: dict[str, Any] = {}
    with pytest.raises(Stopped, match="within step 4"):
        train(spec(), inputs, tmp_path / "run", stopping=lambda: next(answers), warm=kept)
    assert not (tmp_path / "run" / "checkpoint").exists()
    assert kept == {}


def poisoned_loss(step: int) -> Any:
    """Return a `Learner.sums` whose loss is NaN at one step."""
    calls = iter(range(1, 1000))
    true_sums = Learner.sums

    def sums(self: Learner, *parts: Any) -> LossSums:
        found = true_sums(self, *parts)
        return found._replace(loss=found.loss * math.nan) if next(calls) == step else found

    return sums


def test_a_loss_that_is_nan_stops_before_the_update(
    inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = train(spec(to_step=5), inputs, tmp_path / "before")
    kept: dict[str, Any] = {}
    monkeypatch.setattr(Learner, "sums", poisoned_loss(5))
    with pytest.raises(NonFiniteLoss, match=r"step 10: loss nan.*Documents of the batch: ") as caught:
        train(
            spec(from_step=5), {**inputs, "checkpoint": before}, tmp_path / "run", warm=kept, fingerprint="x"
        )
    assert any(name in str(caught.value) for name in SOURCES)
    assert "Lower the learning rate" in str(caught.value)
    assert [line["step"] for line in lines(tmp_path / "run" / "metrics.jsonl")] == [6, 7, 8, 9]
    assert not (tmp_path / "run" / "checkpoint").exists()
    assert kept == {}
    load_model(before)


def test_a_gradient_that_is_infinite_stops_before_the_update(
    inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from modelfactory.train import steps

    learner = Learner(spec(), 384, is_compiled=False)
    before = {name: value.clone() for name, value in learner.module.state_dict().items()}
    from modelfactory.train.stage import open_stream

    stream = open_stream(spec(), inputs)
    for parameter in learner.module.parameters():
        parameter.grad = torch.full_like(parameter, math.inf)
    found = steps.Gradient(loss=torch.tensor(1.0), observed={}, n_valid=128)
    with pytest.raises(NonFiniteLoss, match=r"step 2: loss 1\.0, gradient norm inf"):
        steps.update(learner, stream, stream.batch(2), found, lr=0.1, grad_clip=1.0)
    assert all(torch.equal(before[name], value) for name, value in learner.module.state_dict().items())
    assert learner.step == 0


def test_a_state_that_is_not_finite_is_not_written(
    inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = torch.optim.AdamW.step

    def overflowing(self: Any, *arguments: Any) -> Any:
        found = step(self, *arguments)
        with torch.no_grad():
            self.param_groups[0]["params"][0][0, 0] = math.inf
        return found

    monkeypatch.setattr(torch.optim.AdamW, "step", overflowing)
    with pytest.raises(NonFiniteLoss, match=r"embedding\.weight holds a number that is not finite"):
        train(spec(to_step=1), inputs, tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoint").exists()


def test_too_many_epochs_are_refused_before_training(inputs: dict[str, Path], tmp_path: Path) -> None:
    part = segment(training(), LLAMA, mixture(max_epochs=0.01), from_step=0, to_step=10)
    with pytest.raises(SpecError, match="max_epochs"):
        train(part, inputs, tmp_path / "run")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata", "sha256.json"])
@pytest.mark.parametrize("damage", ["cut off", "one bit", "gone"])
def test_damage_is_found_and_named(name: str, damage: str, inputs: dict[str, Path], tmp_path: Path) -> None:
    stage = train(spec(to_step=1), inputs, tmp_path / "run")
    path = stage / "checkpoint" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content[: len(content) // 2] if damage == "cut off" else content)
    if damage == "gone":
        path.unlink()
    wanted = name if (name, damage) != ("sha256.json", "one bit") else "checkpoint"
    with pytest.raises(CheckpointDamaged, match=wanted):
        load_model(stage)
    with pytest.raises(CheckpointDamaged, match=wanted):
        train(spec(from_step=1), {**inputs, "checkpoint": stage}, tmp_path / "next")


def test_a_checkpoint_of_another_step_or_model_is_refused(inputs: dict[str, Path], tmp_path: Path) -> None:
    stage = {**inputs, "checkpoint": train(spec(to_step=2), inputs, tmp_path / "run")}
    with pytest.raises(CheckpointDamaged, match="found step 2 after 256 tokens, wanted step 3 after 384"):
        train(spec(from_step=3), stage, tmp_path / "a")
    with pytest.raises(SpecError, match="wanted the model of the segment"):
        train(spec(from_step=2, model=GPT), stage, tmp_path / "b")


def test_a_step_cut_short_cannot_be_continued(inputs: dict[str, Path], tmp_path: Path) -> None:
    stage = {**inputs, "checkpoint": train(spec(), inputs, tmp_path / "run")}
    longer = replace(training(), n_tokens=20 * 128)
    part = segment(longer, LLAMA, mixture(), from_step=10, to_step=12)
    with pytest.raises(
        CheckpointDamaged, match="found step 10 after 1,252 tokens, wanted step 10 after 1,280"
    ):
        train(part, stage, tmp_path / "next")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_called_that(
    inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def full(self: Any, *arguments: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(checkpoint_module._Writer, "write_data", full)
    with pytest.raises(DiskFull, match="no space left while writing"):
        train(spec(to_step=1), inputs, tmp_path / "run")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 256 KiB, where one may."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("needs the right to mount a small tmpfs")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_really_full_is_called_that(inputs: dict[str, Path], small_disk: Path) -> None:
    with pytest.raises(DiskFull, match="no space left while writing"):
        train(spec(to_step=1), inputs, small_disk / "run")


def test_a_bound_on_the_size_of_files_is_called_that_and_no_full_disk(
    inputs: dict[str, Path], tmp_path: Path
) -> None:
    """As one of `ulimit -f`, in the words that the failed stage is told in."""
    with pytest.raises(DiskFull) as caught, files_of_at_most(100_000):
        train(spec(to_step=1), inputs, tmp_path / "run")
    text = describe(caught.value, classify(caught.value), str(tmp_path))
    assert "a file would be larger than 100,000 bytes (`ulimit -f`)" in text
    assert text.endswith("Raise it (`ulimit -f unlimited`), then run again.")
    assert "no space left" not in text
    assert "The disk is full" not in text
    assert "Make room" not in text


def test_another_optimizer_setting_is_no_warm_start(inputs: dict[str, Path], tmp_path: Path) -> None:
    """A live trainer of another run is not taken for this one's, nor does it leave traces in it."""
    kept: dict[str, Any] = {}
    other = spec(to_step=4, optimizer=AdamW(lr=1e-2, weight_decay=0.0))
    train(other, inputs, tmp_path / "other", warm=kept, fingerprint="other")
    same_settings = spec(to_step=4, seed=9)
    train(same_settings, inputs, tmp_path / "same", warm=kept, fingerprint="same")
    after = train(spec(to_step=4), inputs, tmp_path / "after", warm=kept, fingerprint="after")
    fresh = train(spec(to_step=4), inputs, tmp_path / "fresh")
    assert deterministic_files(after) == deterministic_files(fresh)


def test_chain_makes_the_steps_once(inputs: dict[str, Path], tmp_path: Path) -> None:
    last = chain([4, 7, 10], inputs, tmp_path, warm=True)
    stages = [tmp_path / f"stage-{step}" for step in (4, 7, 10)]
    assert last == stages[-1]
    steps = [line["step"] for stage in stages for line in lines(stage / "metrics.jsonl")]
    assert steps == list(range(1, 11))
    whole = lines(train(spec(), inputs, tmp_path / "whole") / "metrics.jsonl")
    assert whole == [line for stage in stages for line in lines(stage / "metrics.jsonl")]


def test_the_end_of_text_token_is_trained_on(inputs: dict[str, Path]) -> None:
    from modelfactory.tokens import load_tokenizer

    tokenizer = load_tokenizer(inputs["tokenizer"])
    assert tokenizer.token_id(EOS) == tokenizer.eos_id


needs_compiler = pytest.mark.skipif(
    not any(shutil.which(name) for name in ("c++", "g++", "clang++")), reason="needs a C++ compiler"
)
torch_warns_of_itself = pytest.mark.filterwarnings(
    "ignore:.*(torch.jit|should not be instantiated):DeprecationWarning"
)


@pytest.mark.slow
@needs_compiler
@torch_warns_of_itself
def test_threads_do_not_race_for_a_compiled_gradient() -> None:
    """Few tokens, many times each, are what embeddings race for."""
    module = GPT2(n_layers=1, d_model=128, n_heads=2, max_seq_len=256).build(32, seed=0)
    tokens = torch.randint(20, (16, 257), generator=torch.Generator().manual_seed(0))
    valid = torch.ones(16, 256, dtype=torch.bool)
    found = set()
    with torch_settings(2):
        loss_sum = torch.compile(module.loss_sum, dynamic=False)
        for _ in range(5):
            module.zero_grad()
            loss_sum(tokens[:, :-1], tokens[:, 1:], valid).backward()
            found.add(module.embedding.weight.grad.numpy().tobytes())
    assert len(found) == 1


@pytest.mark.slow
@needs_compiler
@torch_warns_of_itself
def test_compiled_is_the_same_function_and_resumes_to_the_same_bytes(
    inputs: dict[str, Path], tmp_path: Path
) -> None:
    whole = train(spec(precision="bf16"), inputs, tmp_path / "whole", compile=True)
    half = train(spec(to_step=5, precision="bf16"), inputs, tmp_path / "half", compile=True)
    rest = spec(from_step=5, precision="bf16")
    resumed = train(rest, {**inputs, "checkpoint": half}, tmp_path / "resumed", compile=True)
    content = (deterministic_files(stage) for stage in (whole, resumed))
    one, other = ({name: body for name, body in each.items() if name.startswith("ch")} for each in content)
    assert one == other
    eager = lines(train(spec(precision="bf16"), inputs, tmp_path / "eager") / "metrics.jsonl")
    for line, wanted in zip(lines(whole / "metrics.jsonl"), eager, strict=True):
        assert line["loss"] == pytest.approx(wanted["loss"], rel=5e-3)
