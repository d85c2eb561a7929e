"""A stage on several processes: how they start, tell, fail and end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import psutil
import pytest

from modelfactory.errors import CommandError, NonFiniteLoss, SpecError, StageFailed, Stopped
from modelfactory.spec import to_json
from modelfactory.stage import Parallel, Progress
from modelfactory.train import AdamW
from modelfactory.train.launch import Order
from tests.train.faults import FailsOnRank1
from tests.train.material import spec, train
from tests.train.world import ROOT, column

if TYPE_CHECKING:
    from pathlib import Path

ON_2 = Parallel(shard=2)


def ranks_here() -> list[psutil.Process]:
    children = psutil.Process().children()
    return [each for each in children if "modelfactory.train.launch" in " ".join(each.cmdline())]


@pytest.mark.slow
def test_a_stage_starts_its_ranks_and_passes_on_what_they_say(
    inputs: dict[str, Path], tmp_path: Path
) -> None:
    heard: list[Progress] = []
    one = train(spec(), inputs, tmp_path / "one")
    two = train(spec(), inputs, tmp_path / "two", parallel=ON_2, report=heard.append)
    assert column(two, "loss") == pytest.approx(column(one, "loss"), abs=1e-5)
    assert heard[-1].done == heard[-1].total == 10
    assert ranks_here() == []
    assert sorted(path.name for path in two.iterdir()) == sorted(path.name for path in one.iterdir())


@pytest.mark.slow
def test_a_rank_that_raises_is_named(inputs: dict[str, Path], tmp_path: Path) -> None:
    bad = spec(optimizer=FailsOnRank1(lr=1e-3, weight_decay=0.0, lacks_memory=True))
    with pytest.raises(StageFailed, match="rank 1 of 2: MemoryError: no luck"):
        train(bad, inputs, tmp_path / "two", parallel=ON_2)
    assert ranks_here() == []


@pytest.mark.slow
def test_a_part_of_ones_own_that_raises_on_a_rank_is_named(inputs: dict[str, Path], tmp_path: Path) -> None:
    bad = spec(optimizer=FailsOnRank1(lr=1e-3, weight_decay=0.0))
    wanted = r"^optimizer, FailsOnRank1\.build: found ZeroDivisionError: no luck"
    with pytest.raises(SpecError, match=wanted) as caught:
        train(bad, inputs, tmp_path / "two", parallel=ON_2)
    assert caught.value.__notes__ == ["raised by rank 1 of 2"]
    assert ranks_here() == []


@pytest.mark.slow
def test_a_rank_that_is_killed_is_named_and_takes_the_others_along(
    inputs: dict[str, Path], tmp_path: Path
) -> None:
    def kill_one(progress: Progress) -> None:
        second = max(ranks_here(), key=lambda process: process.pid)
        os.kill(second.pid, signal.SIGKILL)

    long = spec(n_tokens=200 * 128, to_step=200)
    with pytest.raises(StageFailed, match=r"rank 1 of 2 was killed by signal 9"):
        train(long, inputs, tmp_path / "two", parallel=ON_2, report=kill_one)
    assert ranks_here() == []


@pytest.mark.slow
def test_numbers_that_are_not_finite_stop_all_ranks(inputs: dict[str, Path], tmp_path: Path) -> None:
    wild = spec(optimizer=AdamW(lr=1e30, weight_decay=0.0))
    with pytest.raises(NonFiniteLoss, match="Documents of the batch"):
        train(wild, inputs, tmp_path / "two", parallel=ON_2)
    assert not (tmp_path / "two" / "checkpoint").exists()


@pytest.mark.slow
def test_a_wish_to_stop_ends_all_ranks(inputs: dict[str, Path], tmp_path: Path) -> None:
    heard = threading.Event()
    long = spec(n_tokens=200 * 128, to_step=200)
    with pytest.raises(Stopped):
        train(
            long,
            inputs,
            tmp_path / "two",
            parallel=ON_2,
            report=lambda progress: heard.set(),
            stopping=heard.is_set,
        )
    assert ranks_here() == []


@pytest.mark.slow
def test_torchrun_starts_ranks_too(inputs: dict[str, Path], tmp_path: Path) -> None:
    one = train(spec(), inputs, tmp_path / "one")
    order = Order(
        spec=to_json(spec()),
        inputs={name: str(path) for name, path in inputs.items()},
        output_dir=str(tmp_path / "two"),
        lake=str(tmp_path / "lake"),
        threads=1,
        parallel="tensor=2",
    )
    order.write(tmp_path / "order.json")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    answer = subprocess.run(
        [*command, "-m", "modelfactory.train.launch", str(tmp_path / "order.json")],
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr[-3_000:]
    assert column(tmp_path / "two", "loss") == pytest.approx(column(one, "loss"), abs=1e-5)


def test_an_order_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "order.json").write_text("{}")
    with pytest.raises(CommandError, match="an order as JSON"):
        Order.read(tmp_path / "order.json")
