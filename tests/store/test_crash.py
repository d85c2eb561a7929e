"""kill -9 before every call that reaches the operating system or SQLite, one run of the line for each."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from modelfactory.store import this_process

OLD = {"model": "old", "shared": "old"}
NEW = {"model": "new", "deep/weights": "new" * 1000, "observed/timing": "1 s"}
# All that changes anything outside the process: files and directories, SQLite, and Python's own file objects.
_CHANGING = frozenset(
    {"open", "write", "close", "fsync", "mkdir", "rename", "replace", "unlink", "rmdir", "execute"}
) | {"executemany"}
_OWN = {"manifest.json", "record.json"}


def _reaches_out(function) -> bool:
    return function.__name__ in _CHANGING


class KillAt:
    """Profile hook that ends this process just before the nth call that reaches out."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.seen = 0

    def __call__(self, _, event, function) -> None:
        if event == "c_call" and _reaches_out(function):
            self.seen += 1
            if self.seen == self.n:
                os.kill(os.getpid(), signal.SIGKILL)


def _line(bench, fingerprint, hook) -> None:
    with bench.open() as store:
        sys.setprofile(hook)
        claim = store.claim(fingerprint, this_process())
        aside = store.new_aside(fingerprint)
        bench.write(aside, NEW)
        store.seal(aside)
        store.publish(claim, aside, bench.record(fingerprint, label="new"))
        sys.setprofile(None)


def _read(directory) -> dict[str, str]:
    found = {str(path.relative_to(directory)): path for path in directory.rglob("*") if path.is_file()}
    return {name: path.read_text() for name, path in found.items() if name not in _OWN}


def _count(bench) -> int:
    read, write = os.pipe()

    def work() -> None:
        hook = KillAt(-1)
        _line(bench, bench.fingerprint(9999), hook)
        os.write(write, str(hook.seen).encode())

    assert bench.wait(bench.in_child(work)) == 0
    os.close(write)
    with os.fdopen(read) as pipe:
        return int(pipe.read())


@pytest.mark.parametrize("rebuild", [False, True], ids=["new", "rebuild"])
def test_a_kill_at_any_point_leaves_nothing_or_a_whole_stage(bench_in_memory, rebuild):
    bench = bench_in_memory
    n_calls = _count(bench)
    assert n_calls > 60, "the hook sees the calls it is there for"
    outcomes = {"nothing": 0, "old": 0, "new": 0}
    for n in range(1, n_calls + 1):
        fingerprint = bench.fingerprint(n)
        if rebuild:
            with bench.open() as store:
                bench.publish(store, fingerprint, OLD, label="old")
        child = bench.in_child(lambda f=fingerprint, n=n: _line(bench, f, KillAt(n)))
        assert bench.wait(child) in {-signal.SIGKILL, 0}
        outcomes[_check(bench, fingerprint, rebuild=rebuild)] += 1
    # Each of the states a kill may leave was met, so the loop did go through the dangerous part.
    assert outcomes["new"] > 0
    assert outcomes["old" if rebuild else "nothing"] > 0


def _check(bench, fingerprint, *, rebuild: bool) -> str:
    with bench.open() as store:
        assert list((store.root / "aside").iterdir()) == []
        assert store.running() == []
        record = store.states([fingerprint]).get(fingerprint)
        if record is None:
            assert not store.stage_dir(fingerprint).exists()
            state = "nothing"
        else:
            state = record.label
            assert store.check_served(fingerprint) == []
            assert store.verify(fingerprint, deep=True) == []
            assert _read(store.stage_dir(fingerprint)) == (NEW if state == "new" else OLD)
            assert rebuild or state == "new"
        bench.publish(store, fingerprint, NEW)
        assert store.verify(fingerprint, deep=True) == []
    return state


def test_a_directory_renamed_but_not_recorded_is_adopted(bench):
    """The moment between rename and commit, hit on purpose."""
    fingerprint = bench.fingerprint(1)

    def work() -> None:
        from modelfactory.store import records

        def die(*_, **__):
            os.kill(os.getpid(), signal.SIGKILL)

        records.put = die
        _line(bench, fingerprint, None)

    with bench.open() as store:
        assert bench.wait(bench.in_child(work)) == -signal.SIGKILL
        assert store.stage_dir(fingerprint).is_dir()
        assert store.states([fingerprint]) == {}, "not recorded: not stored"
        claim = store.claim(fingerprint, this_process())
        assert claim.stored.label == "new", "adopted when the claim is taken over"
        store.release(claim)
        assert store.check_served(fingerprint) == []


def test_a_damaged_orphan_is_not_adopted(bench):
    fingerprint = bench.fingerprint(1)
    with bench.open() as store:
        bench.publish(store, fingerprint, NEW)
        with store._database.write() as connection:
            connection.execute("DELETE FROM records")
        (store.stage_dir(fingerprint) / "model").unlink()
        assert store.claim(fingerprint, this_process()).stored is None
