"""What of a study a report is told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from modelfactory.findings import checkpoints, trained_steps
from modelfactory.findings.changes import changes
from modelfactory.loading import Study, load_study

FILE = Path(__file__).parents[2] / "experiments" / "first_question.py"


@pytest.fixture(scope="module")
def study() -> Study:
    return load_study(FILE)


def test_a_variant_is_set_against_each_baseline_it_is_compared_with(study: Study) -> None:
    found = list(changes(study))
    pairs = {(change.baseline, change.variant) for change in found}
    assert pairs == {(pair.baseline, pair.variant) for pair in study.comparisons}
    between = {
        pair: {c.path.split(".")[0] for c in found if (c.baseline, c.variant) == pair} for pair in pairs
    }
    # One thing is changed at a time, and that is all that is shown of each comparison.
    assert between["gpt2, deduplicated", "llama, deduplicated"] == {"model"}
    assert between["llama, as found", "llama, deduplicated"] == {"mixture"}


def test_without_comparisons_all_are_set_against_the_first(study: Study) -> None:
    found = list(changes(replace(study, comparisons=())))
    assert {change.baseline for change in found} == {"gpt2, as found"}
    assert {change.variant for change in found} == {
        "gpt2, deduplicated",
        "llama, as found",
        "llama, deduplicated",
    }


class Folders:
    """Stands in for a store: each stage is a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def stage_dir(self, fingerprint: str) -> Path:
        return self.root / fingerprint


def write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def test_a_checkpoint_knows_the_chance_level_of_tasks_that_state_one(study: Study, tmp_path: Path) -> None:
    experiment = study.experiments[0]
    last = experiment.training.checkpoint_steps[-1]
    names = [task.name for task in experiment.evaluations]
    roles = {
        f"{kind}@{at}": f"{kind}-{at}"
        for kind in ("train", *names)
        for at in experiment.training.checkpoint_steps
    }
    write(tmp_path / f"train-{last}" / "model.json", {"n_tokens_seen": 10, "flops_per_token": 2})
    for task in experiment.evaluations:
        facts = {"chance": 0.25} if task.name == "next_line" else {}
        metrics = {task.primary_metric: {"value": 0.5}}
        write(tmp_path / f"{task.name}-{last}" / "result.json", {"metrics": metrics, "facts": facts})
    store: Any = Folders(tmp_path)
    (found,) = checkpoints(experiment, roles, store)
    assert {name: found.results[name]["chance"] for name in names} == {
        "bits_per_byte": None,
        "next_line": 0.25,
        "complete_function": None,
    }


def test_steps_without_a_loss_are_left_out(study: Study, tmp_path: Path) -> None:
    lines = [
        {"step": n, "n_tokens": n, "flops": n, "lr": 0.1, "loss": None if n == 2 else 1.0} for n in (1, 2, 3)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")

    class OneFolder:
        def stage_dir(self, fingerprint: str) -> Path:
            del fingerprint
            return tmp_path

    experiment = study.experiments[0]
    roles = {f"train@{at}": "" for at in experiment.training.checkpoint_steps}
    store: Any = OneFolder()
    assert [step.step for step in trained_steps(experiment, roles, store)] == [1, 3]
