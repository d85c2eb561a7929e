from __future__ import annotations

from modelfactory.store import Edge, Record, this_process
from modelfactory.store import records as module

A, B, C, D, PIN = "a" * 64, "b" * 64, "c" * 64, "d" * 64, "1" * 64


def _full(fingerprint: str) -> Record:
    return Record(
        fingerprint=fingerprint, kind="train", label="m/seed=0 step 40", spec_json='{"name": "\\u00e9"}',
        inputs={"tokens0": A, "checkpoint": B}, input_contents={"tokens0": "5" * 64}, resumed_from=C,
        code={"modelfactory.train.loop": {"train": "6" * 64}}, libraries={"torch": "2.13.0"},
        log="logs/x.log", started=1e9, seconds=2.5, attempt=3, host="box", tokens=10**13, flops=6 * 10**24,
    )  # fmt: skip


def test_a_record_comes_back_as_it_went_in(store, bench):
    claim = store.claim(D, this_process())
    aside = store.new_aside(D)
    bench.write(aside, {"x": "123"})
    sealed = store.seal(aside)
    made = store.publish(claim, aside, _full(D))
    assert store.record(D) == made
    assert (made.content_sha256, made.n_bytes) == (sealed.content_sha256, 3)
    assert Record.from_json(made.to_json() | {"of_a_newer_version": 1}) == made


def test_lineage_both_ways(store, bench):
    bench.publish(store, A, inputs={"source0": PIN}, kind="documents")
    bench.publish(store, B, inputs={"documents": A})
    bench.publish(store, C, inputs={"tokens0": B, "documents": A})
    bench.publish(store, D, inputs={"tokens0": B, "checkpoint": C}, resumed_from=C)
    assert store.parents(C) == [
        Edge(child=C, name="documents", parent=A),
        Edge(child=C, name="tokens0", parent=B),
    ]
    assert [(edge.child, edge.name) for edge in store.children(B)] == [(C, "tokens0"), (D, "tokens0")]
    assert (D, module.RESUMED_FROM) in [(edge.child, edge.name) for edge in store.children(C)]
    assert store.ancestors([D]) == {A, B, C, PIN}
    assert store.descendants([PIN]) == {A, B, C, D}
    assert store.ancestors([A, B]) == {A, PIN}
    assert store.ancestors([]) == store.descendants([D]) == set()


def test_publishing_again_replaces_edges(store, bench):
    bench.publish(store, C, inputs={"tokens0": A}, resumed_from=A)
    bench.publish(store, C, inputs={"tokens0": A})
    assert [edge.name for edge in store.parents(C)] == ["tokens0"]


def test_records_by_kind_and_by_beginning(store, bench):
    bench.publish(store, A, kind="train", started=2.0)
    bench.publish(store, B, kind="evaluate", started=1.0)
    bench.publish(store, C, kind="train", started=1.0)
    assert [record.fingerprint for record in store.records("train")] == [C, A]
    assert [record.fingerprint for record in store.records()] == [B, C, A]
    assert store.find("aaa") == [A]
    assert store.find("") == [A, B, C]
    assert store.find("a%") == store.find("_") == []


def test_five_thousand_states(store, bench):
    fingerprints = [bench.fingerprint(n) for n in range(1, 5001)]
    template = _full(A)
    with store._database.write() as connection:
        for fingerprint in fingerprints:
            module.put(connection, Record(**(template.to_json() | {"fingerprint": fingerprint})))
    for fingerprint in fingerprints:
        store.stage_dir(fingerprint).mkdir(parents=True)
    assert len(store.states([*fingerprints, A])) == 5000


def test_a_name_stands_for_its_latest_stages_and_keeps_its_history(bench, clock):
    with bench.open(clock=clock) as store:
        store.name_experiment("first", "first.py", "{}", {"tokenizer": A})
        clock.now += 1
        store.name_experiment("second", "first.py", "{}", {"tokenizer": A})
        store.name_experiment("first", "first.py", "{}", {"tokenizer": A, "tokens": B})
        store.name_experiment("first", "first.py", "{}", {"tokens": B, "tokenizer": A})
        assert [(each.name, dict(each.stages)) for each in store.experiments()] == [
            ("second", {"tokenizer": A}),
            ("first", {"tokenizer": A, "tokens": B}),
        ]
        assert [len(each.stages) for each in store.history("first")] == [1, 2], (
            "the same again is no new meaning"
        )
        assert store.history("first")[1].named == clock.now
        assert store.forget_experiment("first")
        assert not store.forget_experiment("first")
        assert [each.name for each in store.experiments()] == ["second"]
