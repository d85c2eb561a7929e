from __future__ import annotations

import errno
import json
import os

import pytest

from modelfactory.errors import ClaimLost, DiskFull, StageFailed
from modelfactory.store import Holder, manifest, this_process

A, B = "a" * 64, "b" * 64


def test_a_published_stage_is_stored_whole_and_its_claim_ends(store, bench):
    made = bench.publish(store, A, {"tokens.bin": "12345", "observed/timing.json": "{}"}, tokens=5)
    assert store.states([A, B]) == {A: made}
    assert store.record(A) == made
    assert made.n_bytes == 7
    assert (store.stage_dir(A) / "tokens.bin").read_text() == "12345"
    assert store.verify(A, deep=True) == []
    assert store.running() == []
    assert list((store.root / "aside").iterdir()) == []


def test_nothing_is_stored_before_publication(store, bench):
    assert store.claim(A, this_process())
    aside = store.new_aside(A)
    bench.write(aside, {"x": "1"})
    store.seal(aside)
    assert store.states([A]) == {}
    assert store.record(A) is None
    assert not store.stage_dir(A).exists()


def test_content_leaves_out_what_is_observed(store, bench):
    first = bench.publish(store, A, {"x": "1", "observed/t": "12 s"})
    second = bench.publish(store, B, {"x": "1", "observed/t": "9 s"})
    third = bench.publish(store, bench.fingerprint(3), {"x": "2", "observed/t": "9 s"})
    assert first.content_sha256 == second.content_sha256 != third.content_sha256


def test_publishing_again_replaces_the_whole_directory(store, bench):
    bench.publish(store, A, {"old": "1", "both": "1"})
    made = bench.publish(store, A, {"new": "2", "both": "2"})
    names = {path.name for path in store.stage_dir(A).iterdir()}
    assert names == {"new", "both", "manifest.json", "record.json"}
    assert store.record(A) == made
    assert store.verify(A, deep=True) == []
    assert list((store.root / "aside").iterdir()) == []


def test_a_holder_that_lost_its_claim_may_not_publish(bench, store):
    stopped = bench.dead()
    claim = store.claim(A, stopped)
    aside = store.new_aside(A)
    bench.write(aside, {"x": "late"})
    store.seal(aside)
    bench.publish(store, A, {"x": "in time"})
    with pytest.raises(ClaimLost, match="taken over"):
        store.publish(claim, aside, bench.record(A))
    assert not aside.exists()
    assert (store.stage_dir(A) / "x").read_text() == "in time"
    with pytest.raises(ClaimLost):
        store.fail(claim, bench.record(A, error="late"))
    assert store.failures() == []


def test_the_claim_is_looked_at_again_inside_the_transaction(bench, store, monkeypatch):
    claim = store.claim(A, bench.dead())
    aside = store.new_aside(A)
    bench.write(aside, {"x": "late"})
    store.seal(aside)
    monkeypatch.setattr(type(store._publisher), "_check_claim", lambda *_: None)
    taken = store.claim(A, this_process())
    assert taken is not None
    with pytest.raises(ClaimLost):
        store.publish(claim, aside, bench.record(A))
    assert not aside.exists()
    assert not store.stage_dir(A).exists()
    assert [running.holder for running in store.running()] == [taken.holder]


def test_an_unsealed_directory_is_refused(store, bench):
    claim = store.claim(A, this_process())
    aside = store.new_aside(A)
    bench.write(aside, {"x": "1"})
    with pytest.raises(StageFailed, match="not sealed"):
        store.publish(claim, aside, bench.record(A))


def test_a_file_written_after_sealing_is_refused(store, bench):
    claim = store.claim(A, this_process())
    aside = store.new_aside(A)
    bench.write(aside, {"x": "1"})
    store.seal(aside)
    bench.write(aside, {"y": "2"})
    with pytest.raises(StageFailed, match=r"changed after.*y: extra"):
        store.publish(claim, aside, bench.record(A))


def test_a_failure_is_recorded_with_its_log_until_the_stage_is_published(store, bench):
    claim = store.claim(A, this_process())
    aside = store.new_aside(A)
    store.log_path(A).write_text("Traceback ...")
    failed = bench.record(A, state="failed", error="ValueError: no", log=str(store.log_path(A)), attempt=2)
    store.fail(claim, failed)
    assert store.failures() == [failed]
    assert store.record(A) == failed
    assert store.states([A]) == {}
    assert not aside.exists()
    assert store.running() == []
    bench.publish(store, A)
    assert store.failures() == []


def test_a_failed_rebuild_leaves_the_stored_stage(store, bench):
    made = bench.publish(store, A)
    store.fail(store.claim(A, this_process()), bench.record(A, state="failed", error="no"))
    assert store.record(A) == made
    assert [each.error for each in store.failures()] == ["no"]


def test_no_space_while_publishing_leaves_nothing_visible_and_the_claim(store, bench, monkeypatch):
    claim = store.claim(A, this_process())
    aside = store.new_aside(A)
    bench.write(aside, {"x": "1"})
    store.seal(aside)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(DiskFull, match="no space left"):
            store.publish(claim, aside, bench.record(A))
    assert store.states([A]) == {}
    assert [running.fingerprint for running in store.running()] == [A]
    store.publish(claim, aside, bench.record(A))
    assert store.verify(A, deep=True) == []


def test_a_stage_may_leave_only_regular_files(store, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "link").symlink_to(tmp_path)
    with pytest.raises(StageFailed, match="link: a stage may leave only regular files"):
        store.seal(tmp_path / "out")


@pytest.mark.parametrize("name", ["manifest.json", "record.json"])
def test_names_of_the_store_are_refused(name, bench, tmp_path):
    bench.write(tmp_path, {name: '{"files": 3}'})
    with pytest.raises(StageFailed, match="kept for the store"):
        manifest.seal(tmp_path)


def test_sealing_again_sees_what_changed(bench, tmp_path):
    bench.write(tmp_path, {"x": "1", "deep/er/y": "2", "deep/manifest.json": "mine"})
    first = manifest.seal(tmp_path)
    assert [each.path for each in first.files] == ["deep/er/y", "deep/manifest.json", "x"]
    assert manifest.seal(tmp_path) == first
    bench.write(tmp_path, {"x": "3"})
    assert manifest.seal(tmp_path).content_sha256 != first.content_sha256
    assert manifest.Manifest.from_json(json.loads((tmp_path / "manifest.json").read_text())) != first


def test_an_empty_stage_can_be_published(store, bench):
    claim = store.claim(A, this_process())
    aside = store.new_aside(A)
    store.seal(aside)
    store.publish(claim, aside, bench.record(A))
    assert store.verify(A, deep=True) == []


def test_an_aside_without_a_claim_belongs_to_this_process(store):
    aside = store.new_aside(A)
    assert aside.is_dir()
    store.close()
    assert not aside.exists()
    assert isinstance(this_process(), Holder)
