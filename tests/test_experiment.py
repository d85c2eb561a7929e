"""Checks that need more than one field, or more than one experiment."""

from __future__ import annotations

from dataclasses import replace

import pytest

from modelfactory import Comparison, Experiment
from modelfactory.data import Dataset, Files, Split
from modelfactory.errors import SpecError
from modelfactory.evaluate import BitsPerByte
from modelfactory.experiment import check_comparisons, check_together, default_comparisons, variant_name
from modelfactory.models import GPT2
from modelfactory.tokens import BPE, Mixture, Part
from modelfactory.train import AdamW, BatchStage, Cosine, Training

SOURCE = Files(root="texts", pattern="*.txt", not_utf8="drop")


def dataset(part: str, share: float = 0.1, *, salt: str = "", source: Files = SOURCE) -> Dataset:
    split = Split(part=part, held_out_share=share, salt=salt)
    return Dataset(name="texts", sources=(source,), filters=(), dedup=(), split=split)


TRAIN, HELD_OUT = dataset("train"), dataset("held_out")
TRAINING = Training(
    n_tokens=64,
    batch_tokens=16,
    optimizer=AdamW(lr=1e-3, weight_decay=0.0),
    schedule=Cosine(warmup_steps=1),
    seed=1,
)


def experiment(name: str = "a/seed=1", seed: int = 1, judged: Dataset = HELD_OUT, **changes) -> Experiment:
    fields = {
        "name": name,
        "tokenizer": BPE(vocab_size=300, dataset=TRAIN),
        "mixture": Mixture(parts=(Part(dataset=TRAIN, weight=1.0),)),
        "model": GPT2(n_layers=1, d_model=8, n_heads=2, max_seq_len=8),
        "training": replace(TRAINING, seed=seed),
        "evaluations": (BitsPerByte(dataset=judged, max_documents=1, max_bytes=10),),
    }
    return Experiment(**(fields | changes))


def test_datasets_are_named_once() -> None:
    assert experiment().datasets == (TRAIN, HELD_OUT)


@pytest.mark.parametrize(
    "judged",
    [TRAIN, dataset("held_out", 0.2), dataset("held_out", salt="x")],
    ids=["the training side", "another share", "another salt"],
)
def test_a_leak_is_refused(judged: Dataset) -> None:
    with pytest.raises(SpecError, match="on which the mixture trains, wanted held-out documents"):
        experiment(judged=judged)


def test_another_corpus_is_no_leak() -> None:
    other = Files(root="elsewhere", pattern="*.txt", not_utf8="drop")
    assert experiment(judged=dataset("train", source=replace(other, pattern="*.md")))


def test_batches_hold_whole_sequences() -> None:
    with pytest.raises(
        SpecError, match=r"batch_tokens: found 20, which is not divisible .* 8, .* Use 16 or 24"
    ):
        experiment(training=replace(TRAINING, batch_tokens=20))


def test_a_batch_below_one_sequence_has_one_remedy() -> None:
    with pytest.raises(SpecError, match=r"batch_tokens: found 4, .* Use 8\.$"):
        experiment(training=replace(TRAINING, batch_tokens=4))


def test_more_checkpoints_than_steps_are_refused() -> None:
    with pytest.raises(SpecError, match=r"n_checkpoints: found 5 in a run of 4 steps, .* Use 4 or fewer"):
        experiment(training=replace(TRAINING, n_checkpoints=5))
    every = experiment(training=replace(TRAINING, n_checkpoints=4))
    assert every.training.checkpoint_steps == (1, 2, 3, 4)


def test_batches_of_the_warm_up_hold_whole_sequences() -> None:
    stages = (BatchStage(n_steps=1, batch_tokens=8), BatchStage(n_steps=1, batch_tokens=12))
    with pytest.raises(SpecError, match=r"training.batch_warmup\[1\].batch_tokens: found 12, .* Use 8 or 16"):
        experiment(training=replace(TRAINING, batch_warmup=stages))


def test_tasks_have_names_of_their_own() -> None:
    task = BitsPerByte(dataset=HELD_OUT, max_documents=1, max_bytes=10)
    with pytest.raises(SpecError, match="2 tasks named 'bits_per_byte'"):
        experiment(evaluations=(task, replace(task, max_bytes=20)))
    assert experiment(evaluations=(task, replace(task, max_bytes=20, name="longer")))


def test_a_name_is_needed() -> None:
    with pytest.raises(SpecError, match=r"Experiment.name"):
        experiment(name=" ")


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        ("a/seed=3", "a"),
        ("a, b, seed=3", "a, b"),
        ("seed=3/a", "a"),
        ("a seed 3 b", "a b"),
        ("a-seed3", "a"),
        ("seed=3", "seed=3"),
        ("linseed=4", "linseed=4"),
        ("a", "a"),
    ],
)
def test_a_variant_is_the_name_without_its_seed(name: str, variant: str) -> None:
    assert variant_name(name) == variant


def test_replicates_differ_in_their_seed_alone() -> None:
    good = [experiment("a/seed=1"), experiment("a/seed=2", 2)]
    assert check_together(good) == []
    other = experiment("a/seed=3", 3, tokenizer=BPE(vocab_size=301, dataset=TRAIN))
    (fault,) = check_together([*good, other])
    assert (fault.place, "differ in more than their seed" in fault.found) == ("variant 'a'", True)


def test_replicates_may_lie_in_other_folders() -> None:
    moved = Part(dataset=dataset("train", source=replace(SOURCE, root="copy")), weight=1.0)
    judged = (
        BitsPerByte(
            dataset=dataset("held_out", source=replace(SOURCE, root="copy")), max_documents=1, max_bytes=10
        ),
    )
    copied = experiment("a/seed=2", 2, mixture=Mixture(parts=(moved,)), evaluations=judged)
    assert check_together([experiment("a/seed=1"), copied]) == []


def test_a_repeated_seed_is_no_replicate() -> None:
    (fault,) = check_together([experiment("a/seed=1"), experiment("a/seed=2", 1)])
    assert "another training.seed for each replicate" in fault.wanted


def test_two_of_one_name() -> None:
    (fault,) = check_together([experiment("a"), experiment("a", 2)])
    assert "2 experiments of this name" in fault.found


def test_comparisons() -> None:
    variants = [experiment("a/seed=1"), experiment("b/seed=1"), experiment("c/seed=1")]
    found = default_comparisons(variants)
    assert [(pair.baseline, pair.variant) for pair in found] == [("a", "b"), ("a", "c")]
    assert check_comparisons(found, variants) == []
    (fault,) = check_comparisons([Comparison(baseline="a", variant="bb")], variants)
    assert fault.remedy in {"Did you mean 'b'?", "Known: a, b, c."}
    with pytest.raises(SpecError, match="another variant than the baseline"):
        Comparison(baseline="a", variant="a")


def test_replicates_that_hide_it_are_found() -> None:
    faults = check_together([experiment(name="a, s1", seed=1), experiment(name="a, s2", seed=2)])
    assert len(faults) == 1
    assert "seed=N" in faults[0].remedy


def test_known_names_with_commas_are_quoted() -> None:
    variants = [experiment("gpt2, as found"), experiment("llama", 2)]
    (fault,) = check_comparisons([Comparison(baseline="llama", variant="xyz")], variants)
    assert fault.remedy == "Known: 'gpt2, as found', 'llama'."
