from __future__ import annotations

import os
import shutil
import signal

import pytest

from modelfactory.store import this_process

A, B, C, D, E = ("a" * 64, "b" * 64, "c" * 64, "d" * 64, "e" * 64)
PIN, OLD_PIN = "1" * 64, "2" * 64


def _names(garbage) -> set[tuple[str, str]]:
    return {(each.kind, each.name.removesuffix(".log").removesuffix(".json")) for each in garbage}


@pytest.fixture
def filled(bench):
    """A, B, C are the line of a named experiment; D, E are what an older meaning of the name left."""
    child = bench.in_child(lambda: _fill(bench))
    assert bench.wait(child) == 0
    for folder in ("pins", "logs"):
        for path in (bench.root / folder).iterdir():
            os.utime(path, (1e6, 1e6))
    with bench.open() as store:
        yield store


def _fill(bench) -> None:
    with bench.open() as store:
        for digest in (PIN, OLD_PIN):
            store.write_pin(digest, "{}")
        bench.publish(store, A, inputs={"source0": PIN}, kind="documents")
        bench.publish(store, B, inputs={"documents": A}, kind="tokens")
        bench.publish(store, C, inputs={"tokens0": B}, kind="train")
        bench.publish(store, D, inputs={"source0": OLD_PIN}, kind="documents")
        bench.publish(store, E, inputs={"documents": D, "tokens0": B}, kind="tokens")
        for fingerprint in (A, D):
            store.log_path(fingerprint).write_text("log")
        store.name_experiment("x", "x.py", "{}", {"tokens": E})
        store.name_experiment("x", "x.py", "{}", {"checkpoint": C})


def test_what_no_name_and_no_lineage_needs_is_garbage(filled):
    found = filled.gc(set(), dry_run=True)
    assert _names(found) == {("stage", D), ("stage", E), ("log", D), ("pin", OLD_PIN)}
    assert all(each.reason for each in found)
    sizes = {each.name: each.n_bytes for each in found}
    assert sizes[D] == sum(path.stat().st_size for path in filled.stage_dir(D).rglob("*") if path.is_file())
    assert filled.states([A, B, C, D, E]).keys() == {A, B, C, D, E}, "a dry run removes nothing"


def test_removal_removes_what_was_listed_and_nothing_else(filled):
    listed = filled.gc(set(), dry_run=True)
    assert _names(filled.gc(set(), dry_run=False)) == _names(listed)
    assert filled.states([A, B, C, D, E]).keys() == {A, B, C}
    assert not filled.stage_dir(D).exists()
    assert not filled.pin_path(OLD_PIN).exists()
    assert filled.pin_path(PIN).exists()
    assert filled.log_path(A).exists()
    assert not filled.log_path(D).exists()
    assert list((filled.root / "aside").iterdir()) == []
    assert filled.gc(set(), dry_run=False) == []
    assert list(filled.inspect(deep=True)) == []


def test_kept_stages_keep_what_went_into_them(filled):
    assert filled.gc({E}, dry_run=True) == []
    assert _names(filled.gc({OLD_PIN, D}, dry_run=True)) == {("stage", E)}


def test_nothing_is_garbage_while_its_name_stands_and_all_is_after(filled):
    filled.forget_experiment("x")
    assert {name for kind, name in _names(filled.gc(set(), dry_run=True)) if kind == "stage"} == {
        A,
        B,
        C,
        D,
        E,
    }


def test_claimed_stages_and_what_a_living_process_published_stay(filled, bench):
    me = this_process()
    claim = filled.claim(E, me)
    assert claim is not None
    assert _names(filled.gc(set(), dry_run=False)) == set(), "E is claimed and was made from D"
    bench.publish(filled, "f" * 64)
    filled.release(claim)
    assert ("stage", "f" * 64) not in _names(filled.gc(set(), dry_run=True))


def test_a_stage_claimed_after_the_listing_is_not_removed(filled, monkeypatch):
    collector = filled._collector
    real = collector._find

    def find_then_claim(keep, forgotten):
        found = real(keep, forgotten)
        assert filled.claim(D, this_process())
        return found

    monkeypatch.setattr(collector, "_find", find_then_claim)
    assert ("stage", D) not in _names(filled.gc(set(), dry_run=False))
    assert D in filled.states([D])


def test_a_stage_named_after_the_listing_is_not_removed(filled, monkeypatch):
    collector = filled._collector
    real = collector._find

    def find_then_name(keep, forgotten):
        found = real(keep, forgotten)
        filled.name_experiment("y", "y.py", "{}", {"tokens": E})
        return found

    monkeypatch.setattr(collector, "_find", find_then_name)
    filled.gc(set(), dry_run=False)
    assert filled.states([D, E]).keys() == {D, E}


def test_pins_stay_while_another_process_runs_and_go_after_though_gc_ran_here_before(filled):
    me = this_process()
    assert filled.claim("f" * 64, me)
    assert ("pin", OLD_PIN) not in _names(filled.gc({D, E}, dry_run=False))
    filled.leave(me)
    assert _names(filled.gc(set(), dry_run=False)) == {
        ("stage", D),
        ("stage", E),
        ("log", D),
        ("pin", OLD_PIN),
    }


def test_failures_go_unless_a_name_stands_for_them(filled, bench):
    for fingerprint in ("3" * 64, "4" * 64):
        child = bench.in_child(lambda fp=fingerprint: _fail(bench, fp))
        assert bench.wait(child) == 0
    filled.name_experiment("y", "y.py", "{}", {"tokens": "3" * 64})
    assert {("failure", "4" * 64), ("log", "4" * 64)} <= _names(filled.gc(set(), dry_run=False))
    assert [record.fingerprint for record in filled.failures()] == ["3" * 64]
    assert filled.log_path("3" * 64).exists()


def _fail(bench, fingerprint) -> None:
    with bench.open() as store:
        store.log_path(fingerprint).write_text("Traceback")
        store.fail(store.claim(fingerprint, this_process()), bench.record(fingerprint, error="no"))


def test_asides_of_nobody_go_when_they_are_old(filled):
    young, old = filled.root / "aside" / "young", filled.root / "aside" / "old"
    for path in (young, old):
        path.mkdir()
    os.utime(old, (1e6, 1e6))
    assert ("aside", "old") in _names(filled.gc(set(), dry_run=False))
    assert young.exists()
    assert not old.exists()


def test_records_without_a_directory_go(filled):
    shutil.rmtree(filled.stage_dir(E))
    assert ("record", E) in _names(filled.gc(set(), dry_run=False))
    assert list(filled.inspect(deep=False)) == []


def test_an_orphan_that_is_whole_is_known_again_before_anything_goes(filled):
    with filled._database.write() as connection:
        connection.execute("DELETE FROM records WHERE fingerprint = ?", (C,))
    filled.gc(set(), dry_run=False)
    assert C in filled.states([C])


def test_what_a_stage_owns_elsewhere_is_dropped_with_its_directory_still_there(filled):
    dropped = []
    filled.gc(
        set(),
        dry_run=False,
        dropping=lambda kind, path: dropped.append((kind, (path / "tokens.bin").exists())),
    )
    assert sorted(dropped) == [("documents", True), ("tokens", True)]


def test_a_gc_that_is_killed_is_finished_by_the_next(filled, bench):
    def die(*_) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def work() -> None:
        with bench.open() as store:
            store.gc(set(), dry_run=False, dropping=die)

    assert bench.wait(bench.in_child(work)) == -signal.SIGKILL
    dropped = []
    with bench.open() as store:
        assert len(list((store.root / "aside").iterdir())) == 1, (
            "waits for gc, because something must be dropped"
        )
        store.gc(set(), dry_run=False, dropping=lambda kind, _: dropped.append(kind))
        assert sorted(dropped) == ["documents", "tokens"]
        assert store.states([A, B, C, D, E]).keys() == {A, B, C}
        assert list((store.root / "aside").iterdir()) == []
