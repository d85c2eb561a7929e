"""Runs that are killed, interrupted, doubled: the end is the same."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from typing import TYPE_CHECKING

import pytest

from modelfactory.store import Store
from tests.end_to_end.factory import Line, kill_group, new_line
from tests.end_to_end.outcomes import figures, stage_bytes

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

N_KILLS = 10


def until(condition: Callable[[], bool], process: subprocess.Popen[str], timeout_s: float = 60.0) -> None:
    """Wait for something, or for the end of the process."""
    deadline = time.monotonic() + timeout_s
    while process.poll() is None and not condition():
        assert time.monotonic() < deadline, "it did not become so in time"
        time.sleep(0.01)


def n_published(line: Line) -> int:
    return sum(1 for _ in line.workspace.glob("stages/*/*"))


def is_training(line: Line) -> bool:
    """Say whether a stage that trains is being written."""
    return any(line.workspace.glob("aside/*/metrics.jsonl"))


def killed_at_random(line: Line, chance: random.Random) -> bool:
    """Start a run and kill its process group at a random moment; False when it ended before."""
    before = n_published(line)
    process = line.start("run", line.study, "--jobs", 2)
    if chance.random() < 0.2:
        time.sleep(chance.uniform(0.1, 1.5))  # while it starts and plans
    else:
        more = chance.choice((0, 1, 1, 2))
        until(lambda: n_published(line) >= before + more, process)
        time.sleep(chance.uniform(0.0, 0.4))
    ended = process.poll() is not None
    kill_group(process)
    return not ended


@pytest.mark.slow
def test_kill_9_at_ten_random_moments(tmp_path: Path) -> None:
    """Weights, metrics and figures of the report are those of a run that nobody disturbed, byte for byte."""
    undisturbed = new_line(tmp_path / "undisturbed", n_steps=12, n_checkpoints=4)
    assert undisturbed.run().code == 0
    line = new_line(tmp_path / "killed", n_steps=12, n_checkpoints=4)
    chance = random.Random(20)
    kills = [killed_at_random(line, chance) for _ in range(N_KILLS)]
    answer = line.run()
    assert answer.code == 0, answer.err
    assert sum(kills) == N_KILLS
    assert answer.json["stored"] > 0
    wanted, found = stage_bytes(undisturbed), stage_bytes(line)
    assert wanted.keys() == found.keys()
    assert [name for name in wanted if wanted[name] != found[name]] == []
    assert sum(name.endswith("/metrics.jsonl") for name in wanted) == 16
    assert sum("/checkpoint/" in name for name in wanted) >= 16
    assert figures(undisturbed) == figures(line)
    assert_tidy(line)


def assert_tidy(line: Line) -> None:
    assert list((line.workspace / "aside").iterdir()) == []
    with Store.open(line.workspace) as store:
        assert store.running() == []
        assert list(store.inspect(deep=True)) == []


def test_ctrl_c_and_go_on(saved: tuple[Path, Path], fresh: Line) -> None:
    """As a terminal does it: SIGINT for the whole process group."""
    process = fresh.start("run", fresh.study, "--jobs", 2, "--json")
    until(lambda: n_published(fresh) >= 4 and is_training(fresh), process)
    os.killpg(process.pid, signal.SIGINT)
    began = time.monotonic()
    out, err = process.communicate(timeout=30)
    assert time.monotonic() - began < 10
    assert process.returncode == 130, err
    assert json.loads(out)["stopped"] is True
    assert "Traceback" not in err
    assert json.loads(out)["failed"] == 0
    answer = fresh.run()
    assert answer.code == 0, answer.err
    assert (answer.json["ran"] + answer.json["stored"], answer.json["stopped"]) == (20, False)
    _, copy = saved
    assert stage_bytes(fresh) == stage_bytes(Line(copy))
    assert_tidy(fresh)


def test_two_runs_at_once(saved: tuple[Path, Path], fresh: Line) -> None:
    processes = [fresh.start("run", fresh.study, "--jobs", 1, "--json") for _ in range(2)]
    told = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], told
    counts = [json.loads(out) for out, _ in told]
    assert sum(count["ran"] for count in counts) == 20
    assert [count["ran"] + count["stored"] for count in counts] == [20, 20]
    _, copy = saved
    assert stage_bytes(fresh).keys() == stage_bytes(Line(copy)).keys()
    assert_tidy(fresh)
