"""Experiments that start from checkpoints of others."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from modelfactory.data import MemoryCache
from modelfactory.errors import InvalidInputs
from modelfactory.plan import pin_sources, plan_experiments
from modelfactory.train import FromRun, Pretrained
from tests.test_experiment import TRAINING, experiment

if TYPE_CHECKING:
    from pathlib import Path

    from modelfactory import Experiment
    from modelfactory.plan import Plan

BEFORE = experiment("before/seed=1", training=replace(TRAINING, n_checkpoints=4))
"""Four steps of 16 tokens, a checkpoint after each."""


@pytest.fixture(autouse=True)
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(40):
        (folder / f"{number}.txt").write_text(f"text {number} " * 10)
    monkeypatch.chdir(tmp_path)


def after(name: str = "after/seed=1", step: int | None = None, **changes: Any) -> Experiment:
    training = replace(TRAINING, n_checkpoints=2, start=FromRun(experiment=BEFORE, step=step), **changes)
    return experiment(name, training=training)


def planned(*experiments: Experiment) -> Plan:
    sources = pin_sources(experiments, MemoryCache())
    return plan_experiments(experiments, sources, None, jobs=1, threads=1)


def test_a_start_is_trained_up_to_its_checkpoint_and_not_judged() -> None:
    plan = planned(after(step=2))
    assert [stage.label for stage in plan.stages if stage.kind == "train"] == [
        "before/seed=1 to step 1",
        "before/seed=1 to step 2",
        "after/seed=1 to step 2",
        "after/seed=1 to step 4",
    ]
    assert Counter(stage.kind for stage in plan.stages)["evaluate"] == 2
    roles = plan.roles["after/seed=1"]
    assert roles["start"] == roles["start/train@2"]
    own = [plan.stage(roles[f"train@{step}"]) for step in (2, 4)]
    assert [stage.inputs["start"] for stage in own] == [roles["start"]] * 2
    assert [stage.resumes for stage in own] == ["", own[0].id]
    assert all("start" not in plan.stage(roles[f"start/train@{step}"]).inputs for step in (1, 2))
    assert all(stage.experiments == ("after/seed=1",) for stage in plan.stages)
    assert (plan.totals.tokens_requested, plan.totals.tokens_to_train) == (96, 96)


def test_it_is_the_other_experiments_own_run() -> None:
    plan = planned(after(), BEFORE)
    assert plan.roles["after/seed=1"]["start"] == plan.roles["before/seed=1"]["train@4"]
    assert Counter(stage.kind for stage in plan.stages)["train"] == 4 + 2
    assert (plan.totals.tokens_requested, plan.totals.tokens_to_train) == (192, 128)


def test_the_start_is_part_of_the_identity() -> None:
    roles = [planned(each).roles["after/seed=1"] for each in (after(), after(step=1), after(step=4))]
    ids = [each["train@4"] for each in roles]
    assert ids[0] == ids[2] != ids[1]
    plain = planned(experiment("after/seed=1", training=replace(TRAINING, n_checkpoints=2)))
    assert plain.roles["after/seed=1"]["train@4"] not in ids


def test_a_start_may_have_a_start() -> None:
    again = experiment("again/seed=1", training=replace(TRAINING, start=FromRun(experiment=after())))
    plan = planned(again)
    roles = plan.roles["again/seed=1"]
    assert plan.stage(roles["start"]).inputs["start"] == roles["start/start"]
    assert plan.totals.tokens_to_train == 3 * 64


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    training = replace(TRAINING, start=Pretrained(path="empty"))
    with pytest.raises(InvalidInputs, match=r"empty: found no weights"):
        pin_sources([experiment(training=training)], MemoryCache())
