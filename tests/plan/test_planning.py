"""Experiments to stages: merging, states, reasons, prices. Stages are stored without being run."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import tokenizers

from modelfactory.data import MemoryCache
from modelfactory.engine.protocol import Finished
from modelfactory.errors import InvalidInputs, SourceError
from modelfactory.evaluate import BitsPerByte
from modelfactory.plan import Way, note_speed, pin_sources, plan_experiments
from modelfactory.plan.cost import ASSUMED
from modelfactory.run.making import record_of
from modelfactory.spec import canonical_json
from modelfactory.stage import Parallel
from modelfactory.store import Store, this_process
from modelfactory.tokens import BPE, Mixture, Part, TokenizerFile
from modelfactory.train import WSD
from tests.test_experiment import HELD_OUT, SOURCE, TRAIN, TRAINING, experiment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from modelfactory import Experiment
    from modelfactory.plan import Plan, PlannedStage

LONG = replace(TRAINING, n_tokens=256, n_checkpoints=4)


@pytest.fixture(autouse=True)
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(40):
        (folder / f"{number}.txt").write_text(f"text {number} " * 10)
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "w") as opened:
        yield opened


def planned(
    *experiments: Experiment,
    store: Store | None = None,
    jobs: int = 1,
    threads: int = 1,
    way: Way | None = None,
) -> Plan:
    sources = pin_sources(experiments, MemoryCache())
    return plan_experiments(experiments, sources, store, jobs=jobs, threads=threads, way=way)


def publish(plan: Plan, store: Store, *, kinds: str = "", text: str = "", **changes: object) -> None:
    """Store the stages of a plan that are missing, each a small file."""
    contents: dict[str, str] = {}
    for each in plan.experiments:
        store.name_experiment(each.name, "a.py", canonical_json(each), plan.roles[each.name])
    for stage in plan.stages:
        known = store.states([stage.id]).get(stage.id)
        if known is None or stage.kind in kinds.split():
            contents[stage.id] = publish_one(stage, store, contents, text, changes)
        else:
            contents[stage.id] = known.content_sha256


def publish_one(
    stage: PlannedStage, store: Store, contents: dict[str, str], text: str, changes: dict[str, object]
) -> str:
    claim = store.claim(stage.id, this_process())
    assert claim is not None
    aside = store.new_aside(stage.id)
    (aside / "made").write_text(text or stage.id)
    sha256 = store.seal(aside).content_sha256
    contents[stage.id] = sha256
    result = Finished(fingerprint=stage.id, content_sha256=sha256, n_bytes=9, started=0.0, seconds=1.0)
    record = record_of(stage, result, contents, host="h", log=store.log_path(stage.id), attempt=1)
    store.publish(claim, aside, replace(record, **changes))
    return sha256


def kinds(plan: Plan) -> dict[str, int]:
    return dict(Counter(stage.kind for stage in plan.stages))


def reasons(plan: Plan) -> dict[str, str]:
    return {stage.kind: stage.reason for stage in plan.stages if stage.state != "stored"}


def test_equal_stages_are_one() -> None:
    plan = planned(experiment("a/seed=1"), experiment("a/seed=2", 2), experiment("b/seed=1"))
    assert kinds(plan) == {"documents": 2, "tokenizer": 1, "tokens": 1, "train": 8, "evaluate": 8}
    shared = next(stage for stage in plan.stages if stage.kind == "tokens")
    assert shared.experiments == ("a/seed=1", "a/seed=2", "b/seed=1")
    first = next(stage for stage in plan.stages if stage.kind == "train")
    assert first.experiments == ("a/seed=1", "b/seed=1")


def test_parents_come_first() -> None:
    plan = planned(experiment("a/seed=1"), experiment("a/seed=2", 2))
    seen: set[str] = set()
    for stage in plan.stages:
        assert set(stage.parents()) <= seen
        seen.add(stage.id)


def test_checkpoints_are_a_chain() -> None:
    plan = planned(experiment(training=LONG))
    chain = [stage for stage in plan.stages if stage.kind == "train"]
    assert [stage.resumes for stage in chain] == ["", *(stage.id for stage in chain[:-1])]
    assert [stage.tokens for stage in chain] == [64, 64, 64, 64]
    assert (plan.totals.tokens_requested, plan.totals.tokens_to_train) == (256, 256)


def test_the_same_first_steps_are_one_training() -> None:
    """Two lengths of the cool-down share all before it."""
    one, two = (replace(LONG, schedule=WSD(warmup_steps=2, decay_steps=n)) for n in (2, 3))
    plan = planned(experiment("a/seed=1", training=one), experiment("b/seed=1", training=two))
    assert kinds(plan)["train"] == 3 + 2
    assert plan.totals.tokens_requested == 512
    assert plan.totals.tokens_to_train == 256 + 64


def test_names_and_where_are_no_identity(texts: Path) -> None:
    before = planned(experiment("a"))
    texts.rename(texts.with_name("moved"))
    elsewhere = replace(SOURCE, root="moved")
    train, held = (replace(dataset, name="z", sources=(elsewhere,)) for dataset in (TRAIN, HELD_OUT))
    moved = experiment(
        "b",
        judged=held,
        tokenizer=BPE(vocab_size=300, dataset=train),
        mixture=Mixture(parts=(Part(dataset=train, weight=3.0),)),
    )
    assert [stage.id for stage in planned(moved).stages] == [stage.id for stage in before.stages]


def test_nothing_is_stored_without_a_store() -> None:
    plan = planned(experiment())
    assert {stage.state for stage in plan.stages} == {"to run"}
    assert {stage.reason for stage in plan.stages} == {"new"}


def test_all_is_stored(store: Store) -> None:
    publish(planned(experiment(), store=store), store)
    plan = planned(experiment(), store=store)
    assert {stage.state for stage in plan.stages} == {"stored"}
    assert plan.totals.seconds == 0
    assert plan.totals.disk_bytes == 0


def test_a_field_says_why(store: Store) -> None:
    publish(planned(experiment(), store=store), store)
    changed = experiment(training=replace(TRAINING, optimizer=replace(TRAINING.optimizer, lr=2e-3)))
    assert reasons(planned(changed, store=store)) == {
        "train": "field optimizer.lr: 0.001 -> 0.002",
        "evaluate": "input checkpoint is another",
    }


def test_a_source_says_why(store: Store, texts: Path) -> None:
    publish(planned(experiment(), store=store), store)
    (texts / "0.txt").write_text("other")
    found = reasons(planned(experiment(), store=store))
    assert found["documents"] == "input source0 is another"
    assert found["tokenizer"] == "input documents is another"
    assert found["tokens"] == "input documents, tokenizer is another"


def test_code_says_why_and_names_few(store: Store) -> None:
    plan = planned(experiment(), store=store)
    publish(plan, store)
    tokens = next(stage for stage in plan.stages if stage.kind == "tokens")
    old = dict(tokens.code) | dict.fromkeys([*tokens.code][:5], "0" * 16)
    publish(plan, store, kinds="tokens", text=tokens.id, code=old)
    found = planned(experiment(), store=store)
    (stale,) = [stage for stage in found.stages if stage.kind == "tokens"]
    assert stale.state == "stale"
    assert stale.reason.startswith("code: modelfactory.")
    assert stale.reason.endswith(" +2 more")
    assert stale.reason.count(":") == 4


def test_a_library_says_why(store: Store) -> None:
    plan = planned(experiment(), store=store)
    publish(plan, store)
    libraries = dict(plan.stages[0].libraries) | {"pyarrow": "1.0"}
    publish(plan, store, kinds="tokenizer", libraries=libraries)
    (stale,) = [stage for stage in planned(experiment(), store=store).stages if stage.kind == "tokenizer"]
    assert "library: " in stale.reason
    assert "pyarrow 1.0 -> " in stale.reason


def test_a_default_that_changed_makes_stale(store: Store) -> None:
    """The fingerprint leaves out what holds its default, so only the record tells of the old one."""
    plan = planned(experiment(), store=store)
    publish(plan, store)
    task = next(stage for stage in plan.stages if stage.kind == "evaluate")
    spec = json.loads(json.dumps(task.spec_json))
    spec["task"]["min_context"] = 7
    publish(plan, store, kinds="evaluate", spec_json=json.dumps(spec))
    found = [stage for stage in planned(experiment(), store=store).stages if stage.kind == "evaluate"]
    assert {stage.reason for stage in found} == {"field task.min_context: 7 -> 1 (its default changed)"}


def test_a_field_that_came_later_does_not(store: Store) -> None:
    plan = planned(experiment(), store=store)
    publish(plan, store)
    task = next(stage for stage in plan.stages if stage.kind == "evaluate")
    spec = json.loads(json.dumps(task.spec_json))
    del spec["task"]["min_context"]
    publish(plan, store, kinds="evaluate", spec_json=json.dumps(spec))
    assert planned(experiment(), store=store).count("stored") == len(plan.stages)


def test_what_waits_for_stale_inputs_may_be_kept(store: Store) -> None:
    plan = planned(experiment(), store=store)
    publish(plan, store)
    publish(plan, store, kinds="tokenizer", code={"other:code": "1"})
    by_kind = {stage.kind: stage for stage in planned(experiment(), store=store).stages}
    assert by_kind["documents"].state == "stored"
    assert (by_kind["tokenizer"].state, by_kind["tokenizer"].waits_on) == ("stale", ())
    assert (by_kind["tokens"].state, by_kind["tokens"].waits_on) == ("stale", ("tokenizer",))
    assert by_kind["train"].waits_on == ("tokenizer", "tokens0")
    assert by_kind["evaluate"].waits_on == ("checkpoint", "tokenizer")


def test_other_bytes_of_an_input_make_stale(store: Store) -> None:
    plan = planned(experiment(), store=store)
    publish(plan, store)
    publish(plan, store, kinds="tokens", text="other bytes")
    found = planned(experiment(), store=store)
    assert {stage.reason for stage in found.stages if stage.kind == "train"} == {
        "input tokens0: its bytes changed since"
    }


def test_seconds_follow_the_longest_chain_and_the_jobs() -> None:
    runs = [experiment(f"a/seed={n}", n, training=replace(LONG, seed=n)) for n in range(4)]
    alone, many = planned(*runs, jobs=1), planned(*runs, jobs=4)
    endless = planned(*runs, jobs=1_000)
    assert alone.totals.seconds == pytest.approx(sum(stage.seconds for stage in alone.stages))
    assert alone.totals.seconds > many.totals.seconds >= endless.totals.seconds
    chain = [s for s in endless.stages if s.kind in {"documents", "tokenizer", "tokens"}]
    train = [s for s in endless.stages if s.kind == "train" and s.experiments == ("a/seed=0",)]
    last = max(s.seconds for s in endless.stages if s.kind == "evaluate")
    longest = (
        sum(s.seconds for s in chain if s.label != "texts (held_out)") + sum(s.seconds for s in train) + last
    )
    assert endless.totals.seconds == pytest.approx(longest)
    assert alone.totals.seconds_measured is False
    assert len(alone.assumptions) == len(ASSUMED.keys() - {"import"})


def test_measured_speeds_replace_assumptions(store: Store) -> None:
    plan = planned(experiment(), store=store)
    for stage in plan.stages:
        note_speed(store, stage, seconds=2.0, threads=1)
    again = planned(experiment(), store=store)
    assert again.assumptions == ()
    assert again.totals.seconds_measured is True
    train = next(stage for stage in again.stages if stage.kind == "train")
    assert train.seconds == pytest.approx(2.0)


def test_a_stage_of_quite_another_size_is_no_measurement(store: Store) -> None:
    for stage in planned(experiment(), store=store).stages:
        note_speed(store, stage, seconds=2.0, threads=1)
    longer = replace(LONG, n_tokens=16 * LONG.n_tokens)
    again = planned(experiment(training=longer), store=store)
    assert again.assumptions == ("train: scaled from stages of quite another size",)
    assert again.totals.seconds_measured is False


def test_memory_is_that_of_the_way_it_is_carried_out() -> None:
    def memory(**way: Any) -> int:
        return planned(experiment(), way=Way(**way)).totals.memory_bytes

    assert memory(micro_batch_tokens=8) < memory()
    assert memory(checkpointing="full") < memory()
    assert memory(parallel=Parallel(shard=2)) < memory()
    assert planned(experiment(), way=Way(parallel=Parallel(data=2))).totals.n_processes == 2


def test_flops_are_those_of_the_model() -> None:
    plan = planned(experiment())
    model = experiment().model
    assert plan.totals.flops_to_train == 64 * model.flops_per_token(300, 8)


def tokenizer_file(folder: Path) -> TokenizerFile:
    """Write a vocabulary whose largest id leaves a gap."""
    vocabulary = {"a": 0, "b": 1, "[UNK]": 6}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.add_special_tokens(["<end>"])
    made.save(str(folder / "tokenizer.json"))
    return TokenizerFile(path=str(folder / "tokenizer.json"), eos_token="<end>")


def test_a_vocabulary_with_gaps_ends_after_its_largest_id(tmp_path: Path) -> None:
    known = tokenizer_file(tmp_path)
    largest = max(tokenizers.Tokenizer.from_file(known.path).get_vocab().values())
    plan = planned(experiment(tokenizer=known))
    train = next(stage for stage in plan.stages if stage.kind == "train")
    assert largest + 1 > 4
    assert train.flops == 16 * experiment().model.flops_per_token(largest + 1, 8)
    assert next(stage for stage in plan.stages if stage.kind == "tokenizer").pins.keys() == {"tokenizer_file"}


def test_all_faults_of_sources_at_once(tmp_path: Path) -> None:
    missing = replace(SOURCE, root="nowhere")
    none = replace(SOURCE, pattern="*.rs")
    bad = experiment(
        tokenizer=TokenizerFile(path="no.json", eos_token="x"),
        mixture=Mixture(parts=(Part(dataset=replace(TRAIN, sources=(missing,)), weight=1.0),)),
        evaluations=(BitsPerByte(dataset=replace(HELD_OUT, sources=(none,)), max_documents=1, max_bytes=9),),
    )
    with pytest.raises(InvalidInputs) as caught:
        pin_sources([bad], MemoryCache())
    assert len(caught.value.errors) == 3
    assert all(isinstance(error, SourceError) for error in caught.value.errors)
