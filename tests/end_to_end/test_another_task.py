"""A task that is added to a finished study is asked of every checkpoint there is, and nothing is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from modelfactory.store import Store
from tests.end_to_end.factory import Line, new_line
from tests.end_to_end.test_what_runs_again import kinds

if TYPE_CHECKING:
    from pathlib import Path

N_RUNS, N_CHECKPOINTS = 16, 4


@pytest.fixture
def study(tmp_path: Path) -> Line:
    """Return a study of 16 runs with 4 checkpoints each, not carried out yet."""
    line = new_line(tmp_path / "line", n_checkpoints=N_CHECKPOINTS)
    line.edit(line.study, "for seed in (1, 2)]", "for seed in range(1, 9)]")
    return line


def test_a_task_added_to_16_finished_runs_evaluates_64_checkpoints_and_trains_nothing(study: Line) -> None:
    first = study.run()
    assert first.code == 0, first.err
    n_trained = kinds(study.plan()["stages"])["train"]
    assert n_trained == N_RUNS * N_CHECKPOINTS

    study.edit(study.study, "# more evaluations", "NextLine(dataset=HELD_OUT, n_items=6, seed=0),")
    assert kinds(study.left()) == {"evaluate": N_RUNS * N_CHECKPOINTS}
    assert study.plan()["totals"]["tokens_to_train"] == 0
    filled_in = study.run()
    assert (filled_in.code, filled_in.json["ran"]) == (0, 64), filled_in.err
    assert filled_in.json["stored"] == first.json["ran"]
    again = study.run()
    assert (again.code, again.json["ran"], again.json["stored"]) == (0, 0, first.json["ran"] + 64)
    assert_each_answer_is_of_its_own_model(study)


def assert_each_answer_is_of_its_own_model(study: Line) -> None:
    """Every evaluation was made from the checkpoint of its label, and no two models share one."""
    evaluated: dict[str, set[str]] = {}
    stages = [stage for stage in study.plan()["stages"] if stage["kind"] == "evaluate"]
    with Store.open(study.workspace) as store:
        for stage in stages:
            record = store.record(stage["id"])
            assert record is not None
            task = stage["label"].partition(" of ")[0]
            evaluated.setdefault(task, set()).add(record.inputs["checkpoint"])
    assert {task: len(found) for task, found in evaluated.items()} == {"bits_per_byte": 64, "next_line": 64}
