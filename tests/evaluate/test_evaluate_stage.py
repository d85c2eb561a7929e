"""The stage on a real checkpoint."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
import torch

from modelfactory.errors import InvalidInput, SpecError, StageFailed, Stopped
from modelfactory.evaluate import BitsPerByte, CompleteFunction, Evaluate, NextLine, stage
from modelfactory.evaluate.stage import N_WARM, WARM, run
from modelfactory.generate import Sampling, load_language_model
from modelfactory.models import Llama
from modelfactory.stage import Progress, Site
from modelfactory.tokens import load_tokenizer
from modelfactory.train import load_model
from tests.models.own_parts import Faulty

if TYPE_CHECKING:
    from pathlib import Path

    from modelfactory.data import Dataset
    from modelfactory.evaluate import Task


@pytest.fixture
def site(stages: dict[str, Path]) -> Site:
    return Site(lake=stages["lake"], threads=1)


@pytest.fixture(params=["bits_per_byte", "next_line", "complete_function"])
def task(request: pytest.FixtureRequest, held_out: Dataset) -> Task:
    made: dict[str, Task] = {
        "bits_per_byte": BitsPerByte(dataset=held_out, max_documents=5, max_bytes=300),
        "next_line": NextLine(dataset=held_out, n_items=10, seed=0),
        "complete_function": CompleteFunction(dataset=held_out, n_items=6, max_new_tokens=12, seed=0),
    }
    return made[request.param]


def carried_out(task: Task, stages: dict[str, Path], site: Site, output_dir: Path) -> dict[str, Any]:
    output_dir.mkdir()
    run(Evaluate(task=task), stages, output_dir, site)
    result: dict[str, Any] = json.loads((output_dir / "result.json").read_text())
    return result


def test_a_stage_leaves_items_and_result(
    task: Task, stages: dict[str, Path], site: Site, tmp_path: Path
) -> None:
    result = carried_out(task, stages, site, tmp_path / "out")
    items = pq.read_table(tmp_path / "out" / "items.parquet").to_pylist()
    assert list(items[0]) == ["item_id", "cluster", "value", "weight", "detail"]
    assert [item["item_id"] for item in items] == sorted({item["item_id"] for item in items})
    metric = result["metrics"][task.primary_metric]
    total = sum(item["weight"] for item in items)
    assert metric["value"] == pytest.approx(sum(i["weight"] * i["value"] for i in items) / total)
    assert metric["higher_is_better"] is task.higher_is_better
    assert (result["task"], result["n_items"], metric["n_items"]) == (task.name, len(items), len(items))
    assert all(json.loads(item["detail"])["path"].endswith(".py") for item in items)
    assert set(json.loads((tmp_path / "out" / "observed" / "timing.json").read_text())) == {
        "prepare_s",
        "load_s",
        "answer_s",
    }


def test_a_stage_makes_the_same_bytes_again(
    task: Task, stages: dict[str, Path], site: Site, tmp_path: Path
) -> None:
    """With what is kept warm, and in a process that has nothing."""
    before = torch.random.get_rng_state()
    for name in ("one", "two"):
        carried_out(task, stages, site, tmp_path / name)
    carried_out(task, stages, Site(lake=stages["lake"], threads=1), tmp_path / "three")
    for name in ("items.parquet", "result.json"):
        assert len({(tmp_path / each / name).read_bytes() for each in ("one", "two", "three")}) == 1
    assert torch.equal(torch.random.get_rng_state(), before)


def test_bits_per_byte_of_a_text(
    held_out: Dataset, stages: dict[str, Path], site: Site, tmp_path: Path
) -> None:
    """Against the loss the trainer computes, on documents that fit into the context."""
    task = BitsPerByte(dataset=held_out, max_documents=3, max_bytes=60)
    result = carried_out(task, stages, site, tmp_path / "out")
    module, tokenizer = load_model(stages["checkpoint"]), load_tokenizer(stages["tokenizer"])
    items = pq.read_table(tmp_path / "out" / "items.parquet").to_pylist()
    nats = 0.0
    for item in items:
        path = stages["documents"].parent / "files" / json.loads(item["detail"])["path"]
        ids = tokenizer.encode(path.read_text()[:60])
        inputs = torch.tensor([[tokenizer.eos_id, *ids[:-1]]])
        with torch.no_grad():
            loss: Any = module.loss_sum(inputs, torch.tensor([ids]), torch.ones_like(inputs).bool())
        nats += float(loss)
    bits = nats / torch.log(torch.tensor(2.0)).item()
    assert result["metrics"]["bits_per_byte"]["value"] == pytest.approx(bits / 180, rel=1e-5)


def test_questions_are_kept_between_stages_within_bounds(
    held_out: Dataset, stages: dict[str, Path], site: Site, tmp_path: Path
) -> None:
    for number in range(N_WARM + 2):
        task = BitsPerByte(dataset=held_out, max_documents=1, max_bytes=10 + number)
        carried_out(task, stages, site, tmp_path / str(number))
    kept = site.warm[WARM]
    assert len(kept) == N_WARM
    last = list(kept.values())[-1]
    carried_out(task, stages, site, tmp_path / "again")
    assert list(site.warm[WARM].values())[-1] is last


def test_progress_is_reported(task: Task, stages: dict[str, Path], tmp_path: Path) -> None:
    told: list[Progress] = []
    site = Site(lake=stages["lake"], threads=1, report=told.append)
    carried_out(task, stages, site, tmp_path / "out")
    assert told[-1].done == told[-1].total > 0
    assert [each.done for each in told] == sorted(each.done for each in told)


def test_a_stage_stops_when_asked(task: Task, stages: dict[str, Path], tmp_path: Path) -> None:
    site = Site(lake=stages["lake"], threads=1, stopping=lambda: True)
    with pytest.raises(Stopped):
        carried_out(task, stages, site, tmp_path / "out")


def changed_checkpoint(stages: dict[str, Path], folder: Path, **facts: Any) -> dict[str, Path]:
    checkpoint = folder / "checkpoint"
    shutil.copytree(stages["checkpoint"], checkpoint)
    known = json.loads((checkpoint / "model.json").read_text())
    (checkpoint / "model.json").write_text(json.dumps(known | facts))
    return {**stages, "checkpoint": checkpoint}


def test_a_foreign_tokenizer_is_refused(
    task: Task, stages: dict[str, Path], site: Site, tmp_path: Path
) -> None:
    foreign = changed_checkpoint(stages, tmp_path, vocab_size=5)
    with pytest.raises(InvalidInput, match="a model of 5 tokens beside a tokenizer of 300"):
        carried_out(task, foreign, site, tmp_path / "out")


def test_scores_that_are_not_finite_are_refused(
    held_out: Dataset, stages: dict[str, Path], site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(path: Path) -> torch.nn.Module:
        module = load_model(path)
        next(iter(module.parameters())).data.fill_(float("nan"))
        return module

    monkeypatch.setattr("modelfactory.generate.loading.load_model", broken)
    task = BitsPerByte(dataset=held_out, max_documents=5, max_bytes=300)
    with pytest.raises(StageFailed, match="5 of 5 items have no finite bits_per_byte"):
        carried_out(task, stages, site, tmp_path / "out")


def test_a_checkpoint_writes(stages: dict[str, Path]) -> None:
    model = load_language_model(stages["checkpoint"], stages["tokenizer"])
    sampling = Sampling(max_new_tokens=100, temperature=0.8, seed=1)
    (made,) = model.generate(["def add("], sampling)
    assert "".join(model.stream("def add(", sampling)) == made.text


@dataclass(frozen=True, kw_only=True)
class Stumbling(BitsPerByte):
    """A task of a user's own that raises."""

    def answer(self, prepared: Any, model: Any) -> Any:
        del prepared, model
        raise KeyError("no item")


def test_a_task_of_ones_own_that_raises_is_named(
    stages: dict[str, Path], held_out: Dataset, site: Site, tmp_path: Path
) -> None:
    task = Stumbling(dataset=held_out, max_documents=5, max_bytes=300)
    wanted = r"^task, Stumbling\.answer: found KeyError: 'no item' \(test_evaluate_stage\.py:\d+\)"
    with pytest.raises(SpecError, match=wanted):
        carried_out(task, stages, site, tmp_path / "out")


def test_a_layer_that_raises_is_named(
    task: Task, stages: dict[str, Path], site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_ones_own(checkpoint: Path, tokenizer: Any, **options: Any) -> Any:
        first = Llama(n_layers=1, d_model=32, n_heads=2, max_seq_len=64)
        layer = replace(first.blocks[0], mixer=Faulty(module="evaluation"))
        module = replace(first, blocks=(layer,)).build(tokenizer.vocab_size, seed=0)
        model = load_language_model(checkpoint, tokenizer, **options)
        model.module = module
        return model

    monkeypatch.setattr(stage, "load_language_model", of_ones_own)
    wanted = (
        r"^model\.blocks\.0\.mixer, FaultyModule\.forward: found ValueError: no luck \(own_parts\.py:\d+\)"
    )
    with pytest.raises(SpecError, match=wanted):
        carried_out(task, stages, site, tmp_path / "out")
