"""Names of promoted checkpoints: moved whole or not at all, by one process at a time, with their history."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from modelfactory.errors import CommandError, WorkspaceError

if TYPE_CHECKING:
    from tests.store.conftest import Bench

    from modelfactory.store import Store


def move(store: Store, checkpoint: str, *, after: int, name: str = "best") -> None:
    store.names.move(name, checkpoint=checkpoint, stages=(), evidence={"why": checkpoint}, after=after)


def test_a_name_stands_for_the_last_and_keeps_its_history(bench: Bench) -> None:
    with bench.open() as store:
        assert store.names.history("best") == []
        move(store, "a" * 64, after=0)
        move(store, "b" * 64, after=1)
        move(store, "c" * 64, after=0, name="other")
    with bench.open() as store:
        assert [(p.number, p.checkpoint[0]) for p in store.names.history("best")] == [(1, "a"), (2, "b")]
        assert store.names.history("best")[0].evidence == {"why": "a" * 64}
        assert [(p.name, p.checkpoint[0]) for p in store.names.current()] == [("best", "b"), ("other", "c")]


def test_what_was_judged_against_an_older_best_is_refused(bench: Bench) -> None:
    with bench.open() as store:
        move(store, "a" * 64, after=0)
        with pytest.raises(CommandError, match="meanwhile"):
            move(store, "b" * 64, after=0)
        assert [p.checkpoint[0] for p in store.names.history("best")] == ["a"]


@pytest.mark.parametrize("name", ["", "beef", "../best", ".best", "a b", "1best", "x" * 65, "é", "best\n"])
def test_names_that_could_be_something_else_are_refused(bench: Bench, name: str) -> None:
    with bench.open() as store, pytest.raises(CommandError):
        move(store, "a" * 64, after=0, name=name)


def test_a_damaged_file_is_told(bench: Bench) -> None:
    with bench.open() as store:
        move(store, "a" * 64, after=0)
        (bench.root / "names" / "best.json").write_text("[{")
        with pytest.raises(WorkspaceError, match="damaged"):
            store.names.history("best")


def test_of_two_processes_at_once_one_moves_the_name(bench: Bench) -> None:
    bench.open().close()

    def try_it(letter: str) -> None:
        with bench.open() as store:
            for _ in range(20):
                number = len(store.names.history("best"))
                try:
                    move(store, letter * 64, after=number)
                except CommandError:
                    time.sleep(0.001)

    children = [bench.in_child(lambda letter=letter: try_it(letter)) for letter in "ab"]
    assert [bench.wait(pid) for pid in children] == [0, 0]
    with bench.open() as store:
        numbers = [each.number for each in store.names.history("best")]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) >= 20


def test_after_a_kill_a_name_stands_for_the_old_or_the_new(bench: Bench) -> None:
    with bench.open() as store:
        move(store, "a" * 64, after=0)

    def go_on() -> None:
        with bench.open() as store:
            while True:
                move(store, "b" * 64, after=len(store.names.history("best")))

    for n in range(5):
        pid = bench.in_child(go_on)
        time.sleep(0.1 + 0.03 * n)
        os.kill(pid, signal.SIGKILL)
        assert bench.wait(pid) == -signal.SIGKILL
        with bench.open() as store:
            history = store.names.history("best")
            assert [each.number for each in history] == list(range(1, len(history) + 1))
            move(store, "c" * 64, after=len(history))


def test_garbage_collection_leaves_what_a_name_stands_for(bench: Bench) -> None:
    kept, evaluated, other = (bench.fingerprint(n) for n in (1, 2, 3))

    def fill() -> None:
        with bench.open() as store:
            for fingerprint in (kept, evaluated, other):
                bench.publish(store, fingerprint)
            store.names.move("best", checkpoint=kept, stages=(evaluated,), evidence={}, after=0)

    assert bench.wait(bench.in_child(fill)) == 0  # what a living process made is kept anyway
    with bench.open() as store:
        store.gc(set(), dry_run=False)
        assert set(store.states([kept, evaluated, other])) == {kept, evaluated}
