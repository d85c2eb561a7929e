"""Real driver processes: two at once, killed, interrupted."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from modelfactory.store import Store
from tests.run.toys import chain, go, outputs, plan, stage

CHECKOUT = Path(__file__).parents[2]


def drive(root, ran, seconds="0.05", jobs="2", *action):
    return subprocess.Popen(
        [sys.executable, "-m", "tests.run.toys", str(root), str(ran), seconds, jobs, *action],
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ended(driver, timeout_s=60):
    out, error = driver.communicate(timeout=timeout_s)
    assert driver.returncode == 0, error
    return out.splitlines()


def until(condition, timeout_s=15.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not become so in time"
        time.sleep(0.02)


def gone(pids):
    return not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids)


def kill_group(driver):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(driver.pid, signal.SIGKILL)
    driver.communicate()


def test_two_drivers_make_each_stage_once(tmp_path):
    root, ran = tmp_path / "w", tmp_path / "ran"
    Store.open(root).close()
    drivers = [drive(root, ran), drive(root, ran)]
    told = [ended(driver)[-1].split() for driver in drivers]
    assert [int(words[1]) + int(words[3]) for words in told] == [24, 24]
    assert sum(int(words[1]) for words in told) == 24
    assert min(int(words[1]) for words in told) > 0
    made = [line.split()[0] for line in ran.read_text().splitlines()]
    assert len(made) == len(set(made)) == 24


def test_kill_9_of_the_driver_takes_workers_and_children_along(tmp_path):
    root, up = tmp_path / "w", tmp_path / "up"
    driver = drive(root, up, "0", "1", "deaf")
    until(lambda: up.exists() and up.read_text())
    pids = [int(pid) for pid in up.read_text().split()]
    driver.kill()
    driver.communicate()
    until(lambda: gone(pids), 2.0)
    planned = plan(stage("x", action="deaf", path=str(up)))
    with Store.open(root) as store:
        assert store.running() == []
        assert store.claim(planned.stages[0].id, store._here) is not None
    assert list((root / "aside").iterdir()) == []


def test_a_run_after_kill_9_completes(tmp_path):
    root, ran = tmp_path / "w", tmp_path / "ran"
    driver = drive(root, ran, "0.1")
    until(lambda: ran.exists() and len(ran.read_text().splitlines()) > 3)
    kill_group(driver)
    words = ended(drive(root, ran, "0.1"))[-1].split()
    assert int(words[3]) >= 1
    assert int(words[1]) + int(words[3]) == 24


def test_kill_9_of_a_worker_fails_its_stage_only(tmp_path):
    root, up = tmp_path / "w", tmp_path / "up"
    driver = drive(root, up, "0", "1", "until_stopped")
    until(lambda: up.exists() and up.read_text())
    os.kill(int(up.read_text()), signal.SIGKILL)
    assert ended(driver)[-1].startswith("ran 0 stored 0 stopped False")
    with Store.open(root) as store:
        (record,) = store.failures()
    assert "SIGKILL" in record.error


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_stops_cleanly_at_once(tmp_path, number):
    root, up = tmp_path / "w", tmp_path / "up"
    driver = drive(root, up, "0", "1", "until_stopped")
    until(lambda: up.exists() and up.read_text())
    began = time.monotonic()
    os.killpg(driver.pid, number)
    assert "stopped True" in ended(driver)[-1]
    assert time.monotonic() - began < 10.0
    assert gone([int(up.read_text())])
    with Store.open(root) as store:
        assert store.failures() == []
        assert store.running() == []


def test_a_deaf_stage_is_killed_after_the_grace(tmp_path):
    root, up = tmp_path / "w", tmp_path / "up"
    driver = drive(root, up, "0", "1", "deaf", "1")
    until(lambda: up.exists() and up.read_text())
    began = time.monotonic()
    driver.send_signal(signal.SIGINT)
    assert "stopped True" in ended(driver)[-1]
    assert 0.9 < time.monotonic() - began < 10.0
    assert gone([int(pid) for pid in up.read_text().split()])


def test_a_second_ctrl_c_kills_at_once(tmp_path):
    root, up = tmp_path / "w", tmp_path / "up"
    driver = drive(root, up, "0", "1", "deaf")
    until(lambda: up.exists() and up.read_text())
    began = time.monotonic()
    driver.send_signal(signal.SIGINT)
    time.sleep(0.3)
    driver.send_signal(signal.SIGINT)
    assert "stopped True" in ended(driver)[-1]
    assert time.monotonic() - began < 10.0


@pytest.mark.slow
def test_ten_random_kills_end_with_the_same_bytes(tmp_path):
    root, ran = tmp_path / "w", tmp_path / "ran"
    moments = random.Random(7)
    Store.open(root).close()
    n_killed = 0
    for _ in range(10):
        driver = drive(root, ran, "0.25")
        time.sleep(moments.uniform(0.25, 0.9))
        n_killed += driver.poll() is None
        kill_group(driver)
    ended(drive(root, ran, "0.25"))
    assert n_killed >= 8
    planned, calm = chain(str(ran), 0.25), chain(str(tmp_path / "calmly"), 0.0)
    go(tmp_path / "calm", calm)
    assert outputs(root, planned) == outputs(tmp_path / "calm", calm)
    assert len(outputs(root, planned)) == 24
    assert list((root / "aside").iterdir()) == []


def test_an_idle_driver_that_waits_for_another_sleeps(tmp_path):
    root, up = tmp_path / "w", tmp_path / "up"
    one = drive(root, up, "0", "1", "until_stopped")
    until(lambda: up.exists() and up.read_text())
    two = drive(root, up, "0", "1", "until_stopped")
    time.sleep(1.5)
    before = psutil.Process(two.pid).cpu_times()
    time.sleep(1.5)
    after = psutil.Process(two.pid).cpu_times()
    for driver in (two, one):
        os.killpg(driver.pid, signal.SIGINT)
        ended(driver)
    assert after.user + after.system - before.user - before.system < 0.15
