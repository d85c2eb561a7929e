import itertools
import time
from pathlib import Path

import pytest

from modelfactory.engine import Failed, Finished, Job, LocalEngine
from modelfactory.spec import to_json
from tests.engine.toys import Toy

CHECKOUT = str(Path(__file__).parents[2])


@pytest.fixture
def engine():
    with LocalEngine(jobs=1, threads_total=1) as engine:
        yield engine


@pytest.fixture
def job(tmp_path):
    numbers = itertools.count()

    def make(action, affinity="", **fields):
        name = f"{next(numbers):04d}"
        output_dir = tmp_path / f"aside-{name}"
        output_dir.mkdir()
        return Job(
            fingerprint=name,
            run="tests.engine.toys:run",
            spec_json=to_json(Toy(action=action, **fields)),
            inputs={},
            output_dir=str(output_dir),
            log=str(tmp_path / f"{name}.log"),
            lake=str(tmp_path / "lake"),
            threads=1,
            affinity=affinity,
            sys_path=(CHECKOUT,),
        )

    return make


@pytest.fixture
def outcome():
    """Submit jobs one after the other and return how the last one ended."""

    def wait_for(engine, *jobs, timeout_s=20.0):
        last = None
        for job in jobs:
            engine.submit(job)
            last = ended(engine, job, timeout_s)
        return last

    return wait_for


def ended(engine, job, timeout_s=20.0):
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        for event in engine.wait(0.5):
            if isinstance(event, Finished | Failed) and event.fingerprint == job.fingerprint:
                return event
    raise AssertionError(f"{job.fingerprint} did not end within {timeout_s} s")
