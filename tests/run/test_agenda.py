from dataclasses import replace

from modelfactory.run.agenda import Agenda
from tests.run.toys import stage


def taken(agenda, n):
    return [found.label if (found := agenda.take()) else None for _ in range(n)]


def begin(stages, jobs):
    agenda = Agenda(stages, jobs)
    for each in agenda.free_of_parents():
        agenda.push(each)
    return agenda


def settle(agenda, *stages):
    for each in stages:
        for freed in agenda.settle(each.id, ran_here=True):
            agenda.push(freed)


def chains():
    """Two training chains of three states, each state with one evaluation."""
    stages = {}
    for name in "ab":
        before = None
        for step in "123":
            before = stages[name + step] = stage(name + step, kind="train", resumes=before)
            stages["e" + name + step] = stage("e" + name + step, before, kind="evaluate")
    return stages


def test_one_job_continues_a_chain_then_judges_it_then_begins_the_next():
    stages = chains()
    agenda = begin(list(stages.values()), jobs=1)
    order = []
    while not agenda.is_settled():
        found = agenda.take()
        order.append(found.label)
        settle(agenda, found)
    assert order == ["a1", "a2", "a3", "ea1", "ea2", "ea3", "b1", "b2", "b3", "eb1", "eb2", "eb3"]


def test_with_two_jobs_one_judges_checkpoints_while_the_other_trains():
    stages = chains()
    agenda = begin(list(stages.values()), jobs=2)
    assert taken(agenda, 2) == ["a1", "b1"]
    settle(agenda, stages["a1"])
    assert taken(agenda, 1) == ["ea1"]
    settle(agenda, stages["b1"])
    assert taken(agenda, 1) == ["a2"]
    settle(agenda, stages["ea1"])
    assert taken(agenda, 1) == ["eb1"]


def test_no_job_idles_when_there_is_nothing_to_judge():
    stages = chains()
    for name in list(stages):
        if name.startswith("e"):
            del stages[name]
    agenda = begin(list(stages.values()), jobs=2)
    taken(agenda, 2)
    settle(agenda, stages["a1"])
    assert taken(agenda, 1) == ["a2"]


def test_the_longest_way_ahead_is_taken_first():
    short, one = stage("short"), stage("one")
    two = stage("two", one)
    assert taken(begin([short, one, two], jobs=1), 2) == ["one", "short"]


def test_the_cheapest_evaluation_is_taken_first_then_the_earliest():
    state = stage("state", kind="train", state="stored")
    costs = {"dear": 30.0, "cheap": 0.5, "middling": 4.0, "cheap too": 0.5}
    tasks = [replace(stage(name, state, kind="evaluate"), seconds=s) for name, s in costs.items()]
    agenda = Agenda([state, *tasks], jobs=1)
    settle(agenda, state)
    assert taken(agenda, 5) == ["cheap", "cheap too", "middling", "dear", None]


def test_a_failure_blocks_at_any_distance_and_keeps_every_cause():
    one, other = stage("one"), stage("other")
    two = stage("two", one)
    three = stage("three", two, other)
    agenda = begin([one, other, two, three], jobs=1)
    assert [each.label for each in agenda.fail(one.id)] == ["two", "three"]
    assert agenda.fail(other.id) == []
    assert agenda.blocked == {two.id: {one.id}, three.id: {one.id, other.id}}
    assert agenda.is_settled()


def test_a_stored_state_waits_for_no_earlier_state():
    one = stage("one", kind="train")
    two = stage("two", kind="train", resumes=one, state="stored")
    agenda = Agenda([one, two], 1)
    assert [each.label for each in agenda.free_of_parents()] == ["one", "two"]
    assert agenda.wait_for(two, one.id)
    assert [each.label for each in agenda.settle(one.id, ran_here=True)] == ["two"]
    assert not agenda.wait_for(two, one.id)


def test_a_large_plan_is_cheap():
    import time

    roots = [stage(f"root{n}", value=n) for n in range(10)]
    stages = roots + [stage(f"s{n}", roots[n % 10], value=n) for n in range(5_000)]
    began = time.perf_counter()
    agenda = begin(stages, jobs=2)
    for _ in stages:
        settle(agenda, agenda.take())
    assert time.perf_counter() - began < 1.0
