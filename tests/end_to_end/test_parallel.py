"""`factory run --parallel`: the engine's worker starts the ranks of a training stage."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.end_to_end.factory import Line, kill_group, new_line

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


@pytest.fixture
def one_run(tmp_path: Path) -> Line:
    """Return a study of one run of one segment."""
    line = new_line(tmp_path / "line", n_steps=6, n_checkpoints=1)
    line.edit(line.study, '{"low": 1e-3, "high": 3e-3}', '{"low": 1e-3}')
    line.edit(line.study, "for seed in (1, 2)", "for seed in (1,)")
    return line


def losses(line: Line) -> list[float]:
    (path,) = line.workspace.glob("stages/**/metrics.jsonl")
    return [json.loads(text)["loss"] for text in path.read_text().splitlines()]


def test_a_run_on_two_processes_is_the_run_on_one(one_run: Line) -> None:
    other = one_run.copy_to(one_run.folder.with_name("other"))
    alone = one_run.ask("run", one_run.study, "--json", "--compile", "off")
    assert alone.code == 0, alone.err
    many = other.ask("run", other.study, "--json", "--compile", "off", "--parallel", "shard=2")
    assert many.code == 0, many.err
    assert many.json["ran"] == alone.json["ran"]
    assert losses(other) == pytest.approx(losses(one_run), abs=1e-5)
    again = other.ask("run", other.study, "--json", "--compile", "off")
    assert again.json["ran"] == 0, "how it ran is no part of what it is"


def test_sizes_that_do_not_divide_are_refused_before_any_work(one_run: Line) -> None:
    answer = one_run.call("run", one_run.study, "--compile", "off", "--parallel", "data=3")
    assert answer.code == 2
    assert "3, which does not divide the 4 rows of a batch" in answer.err
    assert not list(one_run.workspace.glob("stages/**/metrics.jsonl"))


def test_gpus_that_are_not_there_are_refused_before_any_work(
    one_run: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    answer = one_run.call("run", one_run.study, "--device", "cuda", "--parallel", "data=2")
    assert answer.code == 2
    told = answer.err.replace("\n", " ")
    assert "--device cuda: found 0 GPUs that torch" in told
    assert "wanted 2, one for each process" in told
    assert not list(one_run.workspace.glob("stages/*"))
    planned = one_run.call("plan", one_run.study, "--device", "cuda")
    assert planned.code == 0
    assert "can be planned here, but not run" in planned.err.replace("\n", " ")


@pytest.mark.parametrize("verb", ["plan", "run"])
def test_a_micro_batch_below_a_row_is_refused(one_run: Line, verb: str) -> None:
    answer = one_run.call(verb, one_run.study, "--micro-batch-tokens", "31")
    assert answer.code == 2
    wanted = "--micro-batch-tokens: found 31, wanted at least 32, the tokens of a row (max_seq_len)"
    assert wanted in answer.err.replace("\n", " ")
    assert not list(one_run.workspace.glob("stages/*"))
    assert one_run.call("plan", one_run.study, "--micro-batch-tokens", "32").code == 0


def test_ranks_die_with_the_driver(one_run: Line) -> None:
    one_run.edit(one_run.study, "n_tokens=6 * 128", "n_tokens=4_000 * 128")
    process = one_run.start("run", one_run.study, "--json", "--compile", "off", "--parallel", "shard=2")
    try:
        deadline = time.monotonic() + 100
        while not any(one_run.workspace.glob("aside/*/metrics.jsonl")):
            assert process.poll() is None, process.stderr.read() if process.stderr else ""
            assert time.monotonic() < deadline
            time.sleep(0.1)
        ranks = [
            each
            for each in psutil.Process(process.pid).children(recursive=True)
            if "modelfactory.train.launch" in " ".join(each.cmdline())
        ]
        assert len(ranks) == 2
        os.kill(process.pid, signal.SIGKILL)
        gone, alive = psutil.wait_procs(ranks, timeout=10)
        assert (len(gone), alive) == (2, [])
    finally:
        kill_group(process)
