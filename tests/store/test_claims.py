from __future__ import annotations

import dataclasses
import os
import random
import signal
import time

import pytest

from modelfactory.store import Store, this_process
from modelfactory.store.holder import presence, started_ticks

A, B = "a" * 64, "b" * 64


def test_one_holder_a_stage(store):
    first, second = this_process(), this_process()
    claim = store.claim(A, first)
    assert claim.stored is None
    assert store.claim(A, second) is None
    assert store.claim(A, first) == claim
    assert store.claim(B, second) is not None
    store.release(claim)
    assert store.claim(A, second).number > claim.number


def test_a_dead_process_is_taken_over_at_once(store, bench):
    assert store.claim(A, bench.dead())
    assert [running.alive for running in store.running()] == [False]
    assert store.claim(A, this_process()) is not None
    assert [running.alive for running in store.running()] == [True]


def test_another_process_with_the_same_number_is_not_the_holder(store):
    me = this_process()
    store.claim(A, dataclasses.replace(me, started_ticks=me.started_ticks - 1, token="of before"))
    assert store.claim(A, me) is not None


def test_an_earlier_boot_is_dead_even_when_a_process_has_its_number(store):
    me = this_process()
    store.claim(A, dataclasses.replace(me, boot_id="of before", token="of before"))
    assert store.claim(A, me) is not None


def test_a_zombie_is_dead(store):
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    try:
        deadline = time.monotonic() + 10
        while started_ticks(pid) is not None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert started_ticks(pid) is None
    finally:
        os.waitpid(pid, 0)


def test_a_silent_live_process_of_this_machine_is_never_taken_over(bench, clock):
    with bench.open(clock=clock) as store:
        pid = bench.in_child(lambda: time.sleep(60))
        try:
            other = dataclasses.replace(this_process(), pid=pid, started_ticks=started_ticks(pid))
            assert store.claim(A, other)
            os.kill(pid, signal.SIGSTOP)
            clock.now += 1e6
            assert store.claim(A, this_process()) is None
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        assert store.claim(A, this_process()) is not None


def test_a_holder_elsewhere_is_taken_over_only_after_silence(bench, clock):
    elsewhere = dataclasses.replace(this_process(), host="another", token="theirs")
    with bench.open(clock=clock, heartbeat_timeout_s=30) as store:
        claim = store.claim(A, elsewhere)
        clock.now += 29
        assert store.claim(A, this_process()) is None
        assert store.heartbeat(elsewhere, {A: {"done": 3}}) == set()
        clock.now += 29
        assert store.claim(A, this_process()) is None
        clock.now += 2
        assert store.claim(A, this_process()) is not None
        assert store.heartbeat(elsewhere, {A: {"done": 4}}) == {A}
        store.release(claim)
        assert len(store.running()) == 1, "releasing a lost claim must not end the claim of another"


def test_running_tells_holder_and_progress(bench, clock):
    me = this_process()
    with bench.open(clock=clock) as store:
        store.claim(A, me)
        clock.now += 5
        store.claim(B, me)
        store.heartbeat(me, {A: {"done": 3, "total": 9, "unit": "steps"}, B: '{"done": 1}'})
        first, second = store.running()
    assert (first.fingerprint, first.since, first.heartbeat, first.alive) == (A, 1e6, 1e6 + 5, True)
    assert first.holder == me
    assert first.progress == {"done": 3, "total": 9, "unit": "steps"}
    assert second.progress == {"done": 1}


def test_leaving_gives_everything_back(store):
    me = this_process()
    store.claim(A, me)
    aside = store.new_aside(A)
    store.leave(me)
    assert store.running() == []
    assert not aside.exists()


def test_a_claim_tells_what_was_published_meanwhile(store, bench):
    made = bench.publish(store, A)
    claim = store.claim(A, this_process())
    assert claim.stored == made


def test_asides_of_the_dead_go_at_opening_and_those_of_the_living_stay(store, bench):
    store.claim(A, bench.dead())
    of_the_dead = store.new_aside(A)
    bench.write(of_the_dead, {"deep/x": "1"})
    store.claim(B, this_process())
    of_the_living = store.new_aside(B)
    with Store.open(store.root) as again:
        assert not of_the_dead.exists()
        assert of_the_living.exists()
        assert [running.fingerprint for running in again.running()] == [B]


@pytest.mark.parametrize(("host", "wanted"), [("here", "dead"), ("another", "elsewhere")])
def test_presence_of_the_gone(bench, host, wanted):
    me = this_process()
    gone = bench.dead(host=me.host if host == "here" else host)
    assert presence(gone, me) == wanted
    assert presence(me, me) == "alive"


def test_four_processes_publish_each_of_fifty_stages_exactly_once(bench, tmp_path):
    fingerprints = [bench.fingerprint(n) for n in range(1, 51)]
    bench.open().close()

    def work(worker: int) -> None:
        order = random.Random(worker).sample(fingerprints, len(fingerprints))
        with bench.open() as store, (tmp_path / f"built{worker}").open("w") as built:
            me = this_process()
            while order:
                fingerprint = order.pop(0)
                claim = store.claim(fingerprint, me)
                if claim is None:
                    order.append(fingerprint)
                    time.sleep(0.001)
                elif claim.stored:
                    store.release(claim)
                else:
                    aside = store.new_aside(fingerprint)
                    bench.write(aside, {"x": fingerprint, "observed/by": str(worker)})
                    store.seal(aside)
                    store.publish(claim, aside, bench.record(fingerprint))
                    built.write(f"{fingerprint}\n")

    children = [bench.in_child(lambda worker=worker: work(worker)) for worker in range(4)]
    assert [bench.wait(child) for child in children] == [0, 0, 0, 0]
    built = [line for path in tmp_path.glob("built*") for line in path.read_text().split()]
    assert sorted(built) == sorted(fingerprints)
    assert len([path for path in tmp_path.glob("built*") if path.read_text()]) > 1
    with bench.open() as store:
        assert set(store.states(fingerprints)) == set(fingerprints)
        assert list(store.inspect(deep=True)) == []
        assert list((store.root / "aside").iterdir()) == []
