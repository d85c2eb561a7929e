"""Tasks of lm-evaluation-harness: what is refused, what pins them, and what is kept of each item."""

from __future__ import annotations

import importlib.util
import json
import math
from typing import TYPE_CHECKING

import pytest

from modelfactory.data import MemoryCache, pin_file
from modelfactory.errors import InvalidInput, SourceError, SpecError
from modelfactory.evaluate import Evaluate, Harness
from modelfactory.evaluate import stage as evaluate_stage
from modelfactory.evaluate.harness_model import sampling_of
from modelfactory.evaluate.item_files import item_files
from modelfactory.generate import LanguageModel
from modelfactory.models import Llama
from modelfactory.plan.sources import _pinned_items
from modelfactory.spec import identity_json
from modelfactory.stage import Site
from tests.evaluate.harness_material import write_tasks
from tests.interchange.material import bpe, built

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("lm_eval")
pytestmark = pytest.mark.filterwarnings("ignore")  # of lm-eval and its libraries


def local(folder: Path, task: str = "choice", *, n_shot: int = 0, limit: int = 0) -> Harness:
    return Harness(task=task, n_shot=n_shot, limit=limit, include_path=str(folder))


def test_an_item_has_its_value_weight_and_all_metrics(tmp_path: Path) -> None:
    write_tasks(tmp_path / "tasks")
    spec = Llama(n_layers=2, d_model=32, n_heads=2, max_seq_len=128)
    model = LanguageModel(built(spec), bpe(), max_seq_len=128)
    choice = local(tmp_path / "tasks", limit=4)
    found = choice.answer(choice.prepare({}, bpe()), model).outcomes
    assert len({each.item_id for each in found}) == len({each.cluster for each in found}) == 4
    assert all(each.weight == 1 and each.value == each.detail["acc"] for each in found)
    assert all("acc_norm" in each.detail for each in found)
    rolling = local(tmp_path / "tasks", "rolling")
    first = rolling.answer(rolling.prepare({}, bpe()), model).outcomes[0]
    text = "Once upon a time 0 there was a dog"
    assert first.weight == len(text)
    nats = model.loglikelihood_rolling([text])[0].logprob
    assert first.value == pytest.approx(-nats / math.log(2) / len(text), rel=1e-6)


def test_a_stage_of_a_harness_task(stages: dict[str, Path], tmp_path: Path) -> None:
    data = write_tasks(tmp_path / "tasks")
    task = local(tmp_path / "tasks", "rolling")
    inputs = {name: stages[name] for name in ("checkpoint", "tokenizer")}
    for name, file in item_files(task).items():
        inputs[name] = tmp_path / f"{name}.json"
        pin_file(file.path, MemoryCache()).write(inputs[name])
    site = Site(lake=stages["lake"], threads=1)
    (tmp_path / "out").mkdir()
    evaluate_stage.run(Evaluate(task=task), inputs, tmp_path / "out", site)
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["n_items"] == 6
    assert result["metrics"]["bits_per_byte"]["value"] > 0
    data.write_text(data.read_text() + "\n")
    with pytest.raises(SourceError, match="other content than when it was planned"):
        evaluate_stage.run(Evaluate(task=task), inputs, tmp_path / "out2", site)


def test_few_shot_examples_are_the_same_in_every_call(tmp_path: Path) -> None:
    write_tasks(tmp_path / "tasks")
    spec = Llama(n_layers=2, d_model=32, n_heads=2, max_seq_len=256)
    model = LanguageModel(built(spec), bpe(), max_seq_len=256)
    task = local(tmp_path / "tasks", n_shot=2)
    prepared = task.prepare({}, bpe())
    assert task.answer(prepared, model) == task.answer(prepared, model)


def test_the_metric_and_its_direction_are_the_tasks(tmp_path: Path) -> None:
    write_tasks(tmp_path / "tasks")
    choice, rolling = local(tmp_path / "tasks"), local(tmp_path / "tasks", "rolling")
    assert (choice.primary_metric, choice.unit, choice.higher_is_better) == ("acc", "share", True)
    assert rolling.primary_metric == "bits_per_byte"
    assert not rolling.higher_is_better


def test_a_name_that_is_almost_right_is_refused_with_the_closest(tmp_path: Path) -> None:
    write_tasks(tmp_path / "tasks")
    with pytest.raises(SpecError, match="Did you mean 'choice'"):
        local(tmp_path / "tasks", "choise")


def test_without_lm_eval_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(SpecError, match=r"pip install 'modelfactory\[harness\]'"):
        Harness(task="choice", n_shot=0)


def test_a_task_without_a_metric_of_items_is_refused(tmp_path: Path) -> None:
    write_tasks(tmp_path / "tasks")
    text = "include: choice.yaml\ntask: f1\nmetric_list: [{metric: f1, aggregation: f1}]\n"
    (tmp_path / "tasks" / "f1.yaml").write_text(text)
    with pytest.raises(SpecError, match="a mean over items"):
        local(tmp_path / "tasks", "f1")


def test_data_that_is_not_there_is_refused_at_declaration(tmp_path: Path) -> None:
    write_tasks(tmp_path / "tasks").unlink()
    with pytest.raises(SourceError, match=r"items\.jsonl"):
        local(tmp_path / "tasks")


@pytest.mark.parametrize("changed", ["rolling.yaml", "choice.yaml", "items.jsonl"])
def test_every_file_of_a_task_is_pinned_by_content(changed: str, tmp_path: Path) -> None:
    write_tasks(tmp_path / "tasks")
    task = local(tmp_path / "tasks", "rolling")

    def digests() -> list[str]:
        return [_pinned_items(task, name, MemoryCache()).digest for name in item_files(task)]

    before = digests()
    assert digests() == before
    path = tmp_path / "tasks" / changed
    extra = b"\n" if changed == "items.jsonl" else b"# changed\n"
    path.write_bytes(path.read_bytes() + extra)
    assert sum(a != b for a, b in zip(before, digests(), strict=True)) == 1


def test_where_a_task_lies_is_no_part_of_its_identity(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_tasks(tmp_path / name)
    assert identity_json(local(tmp_path / "a")) == identity_json(local(tmp_path / "b"))
    assert identity_json(local(tmp_path / "a")) != identity_json(local(tmp_path / "a", n_shot=1))


def test_generation_settings_are_those_of_lm_eval() -> None:
    found = sampling_of(
        {"until": "\n", "max_gen_toks": 3, "do_sample": False, "temperature": 0.7, "top_p": 0.9}
    )
    assert (found.stops, found.max_new_tokens, found.temperature, found.top_p) == (("\n",), 3, 0.0, 1.0)
    assert sampling_of({"do_sample": True, "temperature": 0.7, "top_p": 0.9}).top_p == 0.9
    with pytest.raises(InvalidInput, match="Did you mean 'until'"):
        sampling_of({"untill": ["\n"]})
