from pathlib import Path

import pytest

from modelfactory.errors import CommandError
from modelfactory.run import (
    RunBegan,
    RunEnded,
    StageBegan,
    StageBlocked,
    StageBroke,
    StageDamagedFound,
    StageDone,
    StageProgressed,
    StageRetried,
    StageServed,
)
from modelfactory.store import Store
from tests.run.toys import chain, go, outputs, plan, stage


def labels(planned, fingerprints):
    names = {each.id: each.label for each in planned.stages}
    return sorted(names[fingerprint] for fingerprint in fingerprints)


def test_everything_runs_once_then_is_served(tmp_path):
    planned = chain(str(tmp_path / "ran"), seconds=0.0)
    first = go(tmp_path / "w", planned, jobs=2)
    assert (len(first.ran), len(first.stored), first.complete) == (24, 0, True)
    second = go(tmp_path / "w", planned, jobs=2)
    assert (len(second.ran), len(second.stored), second.complete) == (0, 24, True)
    assert len((tmp_path / "ran").read_text().splitlines()) == 24
    assert second.counts()["stored"] == 24


def test_records_say_where_a_stage_came_from(tmp_path):
    one = stage("one")
    two = stage("two", one, resumes=one, kind="train")
    go(tmp_path / "w", plan(one, two))
    with Store.open(tmp_path / "w") as store:
        made, before = store.record(two.id), store.record(one.id)
    assert made.input_contents == {"input0": before.content_sha256, "checkpoint": before.content_sha256}
    assert (made.resumed_from, made.attempt, made.state) == (one.id, 1, "stored")
    assert made.log.endswith(f"{two.id}.log")
    assert made.started > 1e9


def test_a_failure_blocks_what_hangs_on_it_and_nothing_else(tmp_path):
    bad = stage("bad", action="fail")
    child, good = stage("child", bad), stage("good")
    grandchild, other = stage("grandchild", child, good), stage("other", good)
    events = []
    outcome = go(tmp_path / "w", plan(bad, child, good, grandchild, other), on_event=events.append)
    assert not outcome.complete
    (failure,) = outcome.failed
    assert failure.error == "ValueError: no such luck 0"
    assert "Traceback" in failure.log_tail
    assert "no such luck" in failure.log.read_text()
    assert outcome.blocked == {child.id: ("documents bad",), grandchild.id: ("documents bad",)}
    assert len(outcome.ran) == 2
    assert [e.stage.label for e in events if isinstance(e, StageBlocked)] == ["child", "grandchild"]
    assert sum(isinstance(e, StageBroke) for e in events) == 1
    with Store.open(tmp_path / "w") as store:
        assert [record.label for record in store.failures()] == ["bad"]
        assert store.running() == []
        assert list((tmp_path / "w" / "aside").iterdir()) == []


def test_without_keep_going_nothing_starts_after_a_failure(tmp_path):
    bad, good = stage("bad", action="fail"), stage("good")
    outcome = go(tmp_path / "w", plan(bad, good), keep_going=False)
    assert outcome.left == (good.id,)
    assert not outcome.ran


@pytest.mark.parametrize("action", ["leave", "die", "out_of_memory", "full_disk", "link"])
def test_every_bad_end_is_a_failed_record(tmp_path, action):
    outcome = go(tmp_path / "w", plan(stage("bad", action=action), stage("good")))
    assert [failure.label for failure in outcome.failed] == ["documents bad"]
    assert len(outcome.ran) == 1


def test_a_retry_that_succeeds(tmp_path):
    planned = plan(stage("flaky", action="at_second_try", path=str(tmp_path / "tried")))
    events = []
    outcome = go(tmp_path / "w", planned, retries=1, on_event=events.append)
    assert outcome.complete
    assert sum(isinstance(e, StageRetried) for e in events) == 1
    with Store.open(tmp_path / "w") as store:
        assert store.record(planned.stages[0].id).attempt == 2
        assert store.failures() == []
        assert "the first try always fails" in store.log_path(planned.stages[0].id).read_text()


def test_retries_end(tmp_path):
    outcome = go(tmp_path / "w", plan(stage("bad", action="fail")), retries=2)
    assert outcome.failed[0].attempts == 3


def test_refused_input_is_not_retried(tmp_path):
    outcome = go(tmp_path / "w", plan(stage("bad", action="refuse")), retries=5)
    assert outcome.failed[0].attempts == 1


def test_a_failed_stage_is_tried_again_by_the_next_run(tmp_path):
    planned = plan(stage("flaky", action="at_second_try", path=str(tmp_path / "tried")))
    assert not go(tmp_path / "w", planned).complete
    assert go(tmp_path / "w", planned).complete


def test_early_cut_off(tmp_path):
    """An input made by other code to equal bytes keeps what hangs on it."""
    source = tmp_path / "source"
    source.write_text("one")
    ran = str(tmp_path / "ran")

    def planned(code, child_state="to run"):
        parent_state = "to run" if code == "1" else "stale"
        parent = stage("parent", action="from_file", path=str(source), code=code, state=parent_state)
        waits = ("input0",) if child_state == "stale" else ()
        child = stage("child", parent, action="constant", path=ran, state=child_state, waits=waits)
        return plan(parent, child, stage("grandchild", child, path=ran, state=child_state, waits=waits))

    assert len(go(tmp_path / "w", planned("1")).ran) == 3
    equal = planned("2", "stale")
    outcome = go(tmp_path / "w", equal)
    assert labels(equal, outcome.ran) == ["parent"]
    source.write_text("two")
    other = planned("3", "stale")
    outcome = go(tmp_path / "w", other)
    assert labels(other, outcome.ran) == ["child", "parent"]
    assert labels(other, outcome.stored) == ["grandchild"]


def test_stale_stages_are_rebuilt_kept_or_refused(tmp_path):
    root = tmp_path / "w"
    go(root, plan(stage("one", code="1")))
    stale = plan(stage("one", code="2", state="stale"))
    with pytest.raises(CommandError, match="1 stale stages"):
        go(root, stale, on_stale="fail")
    assert len(go(root, stale, on_stale="keep").stored) == 1
    assert len(go(root, stale).ran) == 1
    assert len(go(root, plan(stage("one", code="2", state="stale"))).stored) == 1


def test_a_damaged_stage_is_made_again_and_what_hangs_on_it_kept(tmp_path):
    root = tmp_path / "w"
    one = stage("one")
    two = stage("two", one)
    before = go(root, plan(one, two)) and outputs(root, plan(one, two))
    with Store.open(root) as store:
        (store.stage_dir(one.id) / "out.txt").write_text("damage")
    again = plan(stage("one", state="stored"), stage("two", one, state="stored"))
    events = []
    outcome = go(root, again, on_event=events.append)
    assert (labels(again, outcome.ran), labels(again, outcome.stored)) == (["one"], ["two"])
    assert sum(isinstance(e, StageDamagedFound) for e in events) == 1
    assert outputs(root, again) == before


def test_a_stored_chain_end_needs_its_beginning_only_when_damaged(tmp_path):
    root = tmp_path / "w"
    one = stage("one", kind="train")
    two = stage("two", kind="train", resumes=one)
    go(root, plan(one, two))
    with Store.open(root) as store:
        store.discard(one.id)
        (store.stage_dir(two.id) / "out.txt").write_text("damage")
    bad = stage("one", kind="train", state="to run")
    again = plan(bad, stage("two", kind="train", resumes=one, state="stored"))
    outcome = go(root, again)
    assert labels(again, outcome.ran) == ["one", "two"]


def test_pins_reach_the_stage(tmp_path):
    class Pin:
        def to_json(self):
            return {"digest": "d" * 64}

    planned = plan(stage("one", pins={"source0": "d" * 64}), pins={"d" * 64: Pin()})
    assert go(tmp_path / "w", planned).complete
    with Store.open(tmp_path / "w") as store:
        assert store.record(planned.stages[0].id).inputs == {"source0": "d" * 64}


def test_events_tell_the_whole_story(tmp_path):
    one = stage("one", action="report")
    events = []
    outcome = go(tmp_path / "w", plan(one), on_event=events.append)
    kinds = [type(event) for event in events]
    assert kinds[:2] == [RunBegan, StageBegan]
    assert kinds[-2:] == [StageDone, RunEnded]
    assert set(kinds[2:-2]) == {StageProgressed}
    assert events[-1].outcome == outcome
    events.clear()
    go(tmp_path / "w", plan(one), on_event=events.append)
    assert [type(event) for event in events] == [RunBegan, StageServed, RunEnded]


def test_a_chain_stays_in_its_worker(tmp_path):
    """Two chains on two workers: each worker sees one chain only."""
    ran = tmp_path / "ran"
    stages = []
    for name in "ab":
        before = None
        for step in range(4):
            before = stage(f"{name}{step}", kind="train", resumes=before, path=str(ran), seconds=0.1)
            stages.append(before)
    assert go(tmp_path / "w", plan(*stages), jobs=2).complete
    names = {each.id: each.label for each in stages}
    pids = {}
    for line in ran.read_text().splitlines():
        fingerprint, pid = line.split()
        pids.setdefault(names[fingerprint][0], set()).add(pid)
    assert [len(found) for found in pids.values()] == [1, 1]


def test_a_full_disk_while_publishing_is_a_failure_and_nothing_is_damaged(tmp_path, monkeypatch):
    from modelfactory.errors import DiskFull

    def full(*args):
        raise DiskFull("no space left")

    one, two = stage("one"), stage("two")
    monkeypatch.setattr(Store, "publish", full)
    outcome = go(tmp_path / "w", plan(one, two))
    assert [failure.kind for failure in outcome.failed] == ["disk", "disk"]
    monkeypatch.undo()
    assert go(tmp_path / "w", plan(one, two)).complete
    assert list(Path(tmp_path / "w" / "aside").iterdir()) == []
