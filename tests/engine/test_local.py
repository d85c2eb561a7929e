import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from modelfactory.engine import Failed, Finished, LocalEngine, Reported, Started
from modelfactory.errors import CommandError


def facts(job):
    text = (Path(job.output_dir) / "out.txt").read_text()
    return dict(line.split("=", 1) for line in text.splitlines())


def alive(pid):
    try:
        status = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(b")")[2].split()[0] not in {b"Z", b"X"}


def until(condition, timeout_s=10.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not become so in time"
        time.sleep(0.02)


def test_a_stage_that_returns_is_finished_and_hashed(engine, job, outcome):
    ended = outcome(engine, job("write", value=3))
    assert isinstance(ended, Finished)
    assert len(ended.content_sha256) == 64
    assert ended.n_bytes == 64


def test_workers_stay_warm(engine, job, outcome):
    first, second = job("facts"), job("facts")
    outcome(engine, first, second)
    one, two = facts(first), facts(second)
    assert (one["pid"], one["imported"]) == (two["pid"], two["imported"])
    assert (one["warm"], two["warm"]) == ("1", "2")


def test_threads_are_divided_and_set_before_imports(job, outcome):
    with LocalEngine(jobs=2, threads_total=6) as engine:
        assert engine.threads == 3
        asked = job("facts")
        outcome(engine, asked)
    assert facts(asked)["OMP_NUM_THREADS"] == facts(asked)["MKL_NUM_THREADS"] == "3"
    assert facts(asked)["PYTHONHASHSEED"] == "0"


def test_a_job_that_steps_back_runs_in_a_process_that_does_and_leaves_the_warm_one_alone(
    engine, job, outcome
):
    own = os.nice(0)
    trains, judges, trains_on = job("facts"), replace(job("facts"), niceness=19), job("facts")
    outcome(engine, trains, judges, trains_on)
    before, beside, after = facts(trains), facts(judges), facts(trains_on)
    assert (before["nice"], before["nice_of_thread"]) == (str(own), str(own))
    assert (beside["nice"], beside["nice_of_thread"]) == ("19", "19")
    assert (after["pid"], after["warm"], after["nice"]) == (before["pid"], "2", str(own))


def test_workers_of_two_priorities_never_work_more_than_jobs_at_once(job, tmp_path):
    with LocalEngine(jobs=2, threads_total=2) as engine:
        for n in range(2):
            asked = job("until_stopped", path=str(tmp_path / str(n)))
            engine.submit(replace(asked, niceness=19 * n))
        assert engine.free() == 0


def test_a_stage_that_raises_fails_with_its_traceback_in_the_log(engine, job, outcome):
    ended = outcome(engine, job("fail", value=8))
    assert isinstance(ended, Failed)
    assert (ended.kind, ended.error) == ("raised", "ValueError: no such luck 8")
    assert "about to fail" in ended.log_tail
    assert 'raise ValueError(f"no such luck {spec.value}")' in ended.log_tail
    assert isinstance(outcome(engine, job("write")), Finished)


def test_a_worker_that_exits_is_replaced(engine, job, outcome):
    ended = outcome(engine, job("leave"))
    assert ended.kind == "killed"
    assert "exit code 7" in ended.error
    assert "leaving" in ended.log_tail
    assert isinstance(outcome(engine, job("write")), Finished)


def test_a_killed_worker_is_replaced(engine, job, outcome):
    ended = outcome(engine, job("die"))
    assert ended.kind == "killed"
    assert "SIGKILL" in ended.error
    assert isinstance(outcome(engine, job("write")), Finished)


def test_a_crash_in_c_is_named(engine, job, outcome):
    assert "SIGSEGV" in outcome(engine, job("crash")).error


def test_a_worker_killed_between_jobs_costs_nothing(engine, job, outcome):
    first = job("facts")
    outcome(engine, first)
    os.kill(int(facts(first)["pid"]), signal.SIGKILL)  # and the next job is sent while it dies
    assert isinstance(outcome(engine, job("write")), Finished)


def test_memory_error(engine, job, outcome):
    ended = outcome(engine, job("out_of_memory"))
    assert ended.kind == "memory"
    assert "fewer --jobs" in ended.error


def test_full_disk_names_path_and_space(engine, job, outcome):
    asked = job("full_disk")
    ended = outcome(engine, asked)
    assert ended.kind == "disk"
    assert f"{asked.output_dir}/part.bin" in ended.error
    assert "GB free" in ended.error


def test_refused_input_is_told_apart(engine, job, outcome):
    ended = outcome(engine, job("refuse"))
    assert ended.kind == "refused"
    assert ended.error == "a.txt: found other bytes, wanted the pinned ones. Plan again."


def test_links_are_refused(engine, job, outcome):
    assert "regular files" in outcome(engine, job("link")).error


def test_an_unknown_module_fails_the_stage_only(engine, job, outcome):
    import dataclasses

    ended = outcome(engine, dataclasses.replace(job("write"), run="nowhere_at_all:run"))
    assert ended.kind == "refused"
    assert "nowhere_at_all" in ended.error


def test_output_of_python_c_and_children_is_in_the_log(engine, job, outcome):
    asked, other = job("speak"), job("speak")
    outcome(engine, asked, other)
    lines = Path(asked.log).read_text().splitlines()
    assert sorted(lines) == sorted(["from Python", "from Python's stderr", "from C", "from a child"])
    assert len(Path(other.log).read_text().splitlines()) == 4


def test_a_stage_that_changes_the_folder_does_not_move_the_next(engine, job, outcome):
    first, second = job("go_elsewhere"), job("go_elsewhere")
    outcome(engine, first, second)
    assert (Path(first.output_dir) / "out.txt").read_text() == (
        Path(second.output_dir) / "out.txt"
    ).read_text()


def test_reports_are_thinned_and_the_last_arrives(engine, job):
    engine.submit(job("report"))
    events = []
    until(lambda: events.extend(engine.wait(0.2)) or any(isinstance(e, Finished) for e in events))
    assert isinstance(events[0], Started)
    reports = [event.progress for event in events if isinstance(event, Reported)]
    assert len(reports) < 100
    assert reports[-1].done == 2_000
    assert reports[-1].metrics == {"loss": 1 / 2_000}


def test_a_continuation_goes_to_the_worker_that_is_warm_for_it(job, outcome):
    with LocalEngine(jobs=2, threads_total=2) as engine:
        one, two = job("facts"), job("facts")
        engine.submit(one)
        engine.submit(two)
        until(lambda: engine.wait(0.1) is not None and engine.free() == 2)
        again_one = job("facts", affinity=one.fingerprint)
        again_two = job("facts", affinity=two.fingerprint)
        outcome(engine, again_two, again_one)
    assert facts(again_one)["pid"] == facts(one)["pid"]
    assert facts(again_two)["pid"] == facts(two)["pid"]
    assert facts(one)["pid"] != facts(two)["pid"]


def test_jobs_run_at_once(job, tmp_path):
    with LocalEngine(jobs=2, threads_total=2) as engine:
        for value in (0, 1):
            engine.submit(job("meet", value=value, path=str(tmp_path)))
        assert engine.free() == 0
        events = []
        until(lambda: events.extend(engine.wait(0.2)) or engine.free() == 2, 30.0)
    assert sum(isinstance(event, Finished) for event in events) == 2


def test_stop_reaches_the_stage(engine, job, tmp_path):
    engine.submit(job("until_stopped", path=str(tmp_path / "up")))
    until((tmp_path / "up").exists)
    engine.stop()
    events = []
    until(lambda: events.extend(engine.wait(0.2)) or any(isinstance(e, Failed) for e in events), 3.0)
    assert events[-1].kind == "stopped"


def test_kill_takes_children_along(engine, job, tmp_path):
    engine.submit(job("deaf", path=str(tmp_path / "pids")))
    until(lambda: (tmp_path / "pids").exists() and (tmp_path / "pids").read_text())
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    engine.kill()
    events = []
    until(lambda: events.extend(engine.wait(0.2)) or any(isinstance(e, Failed) for e in events), 3.0)
    assert events[-1].kind == "stopped"
    until(lambda: not any(map(alive, pids)), 2.0)


def test_close_ends_everything(job, tmp_path):
    engine = LocalEngine(jobs=1, threads_total=1)
    engine.submit(job("deaf", path=str(tmp_path / "pids")))
    until(lambda: (tmp_path / "pids").exists() and (tmp_path / "pids").read_text())
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    engine.close()
    until(lambda: not any(map(alive, pids)), 2.0)


def test_wake_ends_a_wait(engine):
    engine.wake()
    began = time.monotonic()
    assert engine.wait(5.0) == []
    assert time.monotonic() - began < 1.0


@pytest.mark.parametrize(("jobs", "threads"), [(0, 1), (1, 0), (-2, 4)])
def test_nonsense_numbers_are_refused(jobs, threads):
    with pytest.raises(CommandError, match="at least 1"):
        LocalEngine(jobs=jobs, threads_total=threads)
