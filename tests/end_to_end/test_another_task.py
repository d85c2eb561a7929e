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
EXAM = """EXAM = Dataset(
    name="exam",
    sources=(Files(root="exam", pattern="**/*.py", not_utf8="drop"),),
    filters=(),
    dedup=(),
    split=Split(part="held_out", held_out_share=0.5),
)
"""


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
    """No two of the 64 models share the evaluation of a task."""
    evaluated: dict[str, set[str]] = {}
    stages = [stage for stage in study.plan()["stages"] if stage["kind"] == "evaluate"]
    with Store.open(study.workspace) as store:
        for stage in stages:
            record = store.record(stage["id"])
            assert record is not None
            task = stage["label"].partition(" of ")[0]
            evaluated.setdefault(task, set()).add(record.inputs["checkpoint"])
    assert {task: len(found) for task, found in evaluated.items()} == {"bits_per_byte": 64, "next_line": 64}


def test_a_task_whose_documents_changed_is_asked_again_with_the_reason_and_nothing_is_trained(
    tmp_path: Path,
) -> None:
    line = new_line(tmp_path / "line", n_checkpoints=1)
    (line.folder / "exam").mkdir()
    for path in line.corpus.iterdir():
        (line.folder / "exam" / path.name).write_bytes(path.read_bytes() + b"\n# asked\n")
    line.edit(
        line.study,
        "# more evaluations",
        "BitsPerByte(name='exam', dataset=EXAM, max_documents=4, max_bytes=300),",
    )
    line.edit(line.study, "EVALUATIONS = (", EXAM + "EVALUATIONS = (")
    answer = line.run()
    assert answer.code == 0, answer.err
    assert line.left() == []

    one = min((line.folder / "exam").iterdir())
    one.write_bytes(one.read_bytes() + b"# another line\n")
    left = line.left()
    assert kinds(left) == {"documents": 1, "evaluate": 4}
    asked_again = [stage for stage in left if stage["kind"] == "evaluate"]
    assert all(stage["label"].startswith("exam of ") for stage in asked_again)
    assert {stage["reason"] for stage in asked_again} == {"input documents is another"}
