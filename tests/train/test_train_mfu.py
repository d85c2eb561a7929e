"""Model FLOPs utilisation: from what is known of the machine to what a person sees."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from modelfactory.cli import compiling, showing
from modelfactory.cli.planning import _memory_lines
from modelfactory.live.board import Row, how_far
from modelfactory.stage import Progress
from modelfactory.store import Store
from tests.run.toys import stage
from tests.train.material import LLAMA, spec, train

if TYPE_CHECKING:
    from pathlib import Path

SPEED = {
    "threads": 4,
    "eager_flops_per_s": 1e10,
    "compile_speedup": 2.0,
    "compile_seconds": 40.0,
    "bf16_peak_flops_per_s": 4e11,
    "fp32_peak_flops_per_s": 1e11,
    "faster_precision": "bf16",
}


def timings(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "observed" / "timing.jsonl").read_text("utf-8")
    return [json.loads(line) for line in text.splitlines()]


def test_each_step_says_what_share_of_the_peak_it_reached(inputs: dict[str, Path], tmp_path: Path) -> None:
    peaks = {"bf16": 1e20, "fp32": 1e9}
    told: list[Progress] = []
    lines = timings(train(spec(), inputs, tmp_path / "run", peak_flops_per_s=peaks, report=told.append))
    flops = LLAMA.flops_per_token(384, 32)
    for line in lines:
        assert line["mfu"] == pytest.approx(line["tokens_per_s"] * flops / 1e9, rel=0.01, abs=1e-4)
    assert told[-1].metrics["mfu"] == lines[-1]["mfu"] > 0


def test_nothing_is_said_where_the_peak_is_unknown(inputs: dict[str, Path], tmp_path: Path) -> None:
    assert all("mfu" not in line for line in timings(train(spec(), inputs, tmp_path / "run")))


def test_it_is_shown_while_a_run_goes_on_and_by_status() -> None:
    metrics = {"loss": 3.14159, "tokens_per_s": 1_950.2, "mfu": 0.4321}
    progress = Progress(done=50, total=100, unit="steps", rate=5.0, metrics=metrics)
    row = Row(stage=stage("one", kind="train"), since=0.0, progress=progress)
    assert how_far(row) == "steps 50/100, loss 3.142, 1,950 tokens/s, MFU 43.2%"
    told = {"done": 50, "total": 100, "unit": "steps", "rate": 5.0, "metrics": metrics}
    assert showing.how_far(told) == "step 50/100, loss 3.142, 5 steps/s, MFU 43.2%"


def test_the_measured_peak_is_that_of_the_threads_of_a_job(tmp_path: Path) -> None:
    with Store.open(tmp_path / "w") as store:
        assert compiling.known_peaks(store, 2) == {}
        store.cache_put(compiling.KEY, SPEED)
        assert compiling.known_peaks(store, 2) == {"bf16": 2e11, "fp32": 5e10}
        assert compiling.known_peaks(store, 8) == {"bf16": 4e11, "fp32": 1e11}


def test_a_plan_warns_of_more_memory_than_there_is() -> None:
    (line,) = _memory_lines(2 * 10**9, 1, 4 * 10**9)
    assert "WARNING" not in line
    assert "WARNING: that is more than" in _memory_lines(5 * 10**9, 1, 4 * 10**9)[1]
    assert "times 3 processes" in _memory_lines(2 * 10**9, 3, 4 * 10**9)[0]
    assert "WARNING: that is more than" in _memory_lines(2 * 10**9, 3, 4 * 10**9)[1]
    assert _memory_lines(0, 1, 1) == []
