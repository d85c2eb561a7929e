"""What a job says of how it is to be run."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from modelfactory.run import RunOptions
from modelfactory.run.making import job_of
from modelfactory.store import Store
from tests.run.toys import go, outputs, plan, stage


@pytest.mark.parametrize(
    ("kind", "jobs", "niceness"),
    [("evaluate", 2, 19), ("evaluate", 1, 0), ("train", 2, 0), ("tokens", 2, 0)],
)
def test_evaluations_step_back_where_others_may_train_beside(tmp_path, kind, jobs, niceness):
    engine = SimpleNamespace(jobs=jobs, threads=1)
    with Store.open(tmp_path) as store:
        made = job_of(stage("one", kind=kind), Path("aside"), store, engine, RunOptions())
    assert made.niceness == niceness


def test_the_niceness_is_in_force_while_a_run_evaluates(tmp_path):
    trained = stage("trained", kind="train", action="facts")
    planned = plan(trained, stage("judged", trained, kind="evaluate", action="facts"))
    assert go(tmp_path, planned, jobs=2).complete
    found = {
        label: dict(line.split("=", 1) for line in text.decode().splitlines())["nice"]
        for label, text in outputs(tmp_path, planned).items()
    }
    assert found["judged"] == "19"
    assert int(found["trained"]) < 19
