"""Conversations in a mixture: planned, refused, and trained on."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from modelfactory import Experiment
from modelfactory.data import Chats, Dataset, Files, MemoryCache, Split
from modelfactory.errors import InvalidInputs, SpecError
from modelfactory.evaluate import AnswerLoss, BitsPerByte
from modelfactory.models import GPT2
from modelfactory.plan import pin_sources, plan_experiments
from modelfactory.stage import Site
from modelfactory.tokens import BPE, Mixture, Part, TokenizerFile, TokenShard
from modelfactory.train import AdamW, Constant, Training
from tests.tokens.chats import CHATS, EOS, MARKED, conversation, write_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from modelfactory.plan import Plan, PlannedStage

ALL = Split(part="train", held_out_share=0.0)
TALK = Dataset(name="talk", sources=(Chats(root="talk", pattern="*.jsonl"),), split=ALL)
PAGES = Dataset(name="pages", sources=(Files(root="pages", pattern="*.txt"),), split=ALL)


@pytest.fixture(autouse=True)
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("talk", "pages"):
        (tmp_path / name).mkdir()
    lines = [json.dumps({"messages": conversation(chat)}) for chat in CHATS] * 20
    (tmp_path / "talk" / "a.jsonl").write_text("\n".join(lines))
    (tmp_path / "pages" / "a.txt").write_text("a page of text\n" * 200)
    write_tokenizer(tmp_path / "given", MARKED)
    monkeypatch.chdir(tmp_path)


def tuning() -> Experiment:
    return Experiment(
        name="tuning/seed=1",
        tokenizer=TokenizerFile(path="given/tokenizer.json", eos_token=EOS),
        mixture=Mixture(parts=(Part(dataset=TALK, weight=3), Part(dataset=PAGES, weight=1))),
        model=GPT2(n_layers=1, d_model=32, n_heads=2, max_seq_len=16),
        training=Training(
            n_tokens=256,
            batch_tokens=64,
            optimizer=AdamW(lr=1e-3, weight_decay=0.0),
            schedule=Constant(warmup_steps=0),
            seed=1,
            precision="fp32",
            n_checkpoints=1,
            document_masks=True,
        ),
        evaluations=(),
    )


def planned(*experiments: Experiment) -> Plan:
    return plan_experiments(experiments, pin_sources(experiments, MemoryCache()), None, jobs=1, threads=1)


def of_kind(plan: Plan, kind: str) -> dict[str, PlannedStage]:
    return {stage.label.split()[0]: stage for stage in plan.stages if stage.kind == kind}


def test_the_template_is_an_input_of_the_tokens_of_chats_alone() -> None:
    plan = planned(tuning())
    tokens = of_kind(plan, "tokens")
    assert set(tokens["talk"].pins) == {"chat_template", "tokenizer_config"}
    assert set(tokens["pages"].pins) == set()
    assert set(tokens["talk"].pins.values()) <= set(plan.pins)


def test_another_template_makes_other_tokens_of_the_same_documents(tmp_path: Path) -> None:
    before = planned(tuning())
    (tmp_path / "given" / "chat_template.jinja").write_text(MARKED.replace("trim", "upper"))
    after = planned(tuning())
    for kind, name, is_equal in (
        ("documents", "talk", True),
        ("tokens", "pages", True),
        ("tokens", "talk", False),
        ("train", "tuning/seed=1", False),
    ):
        ids = [of_kind(plan, kind)[name].id for plan in (before, after)]
        assert (ids[0] == ids[1]) is is_equal, (kind, name)


def test_chats_without_a_template_are_told_when_planned(tmp_path: Path) -> None:
    (tmp_path / "given" / "chat_template.jinja").unlink()
    with pytest.raises(InvalidInputs, match=r"dataset 'talk': found no Chats\.template"):
        planned(tuning())


def test_conversations_are_for_the_mixture_only() -> None:
    held_out = replace(TALK, split=Split(part="held_out", held_out_share=0.5))
    task = BitsPerByte(dataset=held_out, max_documents=1, max_bytes=9)
    parts = (Part(dataset=PAGES, weight=1),)
    with pytest.raises(SpecError, match=r"evaluations\.bits_per_byte.*found the conversations of 'talk'"):
        replace(tuning(), mixture=Mixture(parts=parts), evaluations=(task,))
    with pytest.raises(SpecError, match=r"tokenizer\.dataset.*found the conversations of 'talk'"):
        replace(tuning(), tokenizer=BPE(vocab_size=300, dataset=TALK))


def test_what_is_planned_trains(tmp_path: Path) -> None:
    """Run the stages as an engine does, each by the function that the plan names."""
    import importlib

    plan = planned(tuning())
    dirs: dict[str, Path] = {}
    for digest, pin in plan.pins.items():
        pin.write(tmp_path / digest)
    for stage in plan.stages:
        module, _, function = stage.run.partition(":")
        dirs[stage.id] = tmp_path / stage.id
        dirs[stage.id].mkdir()
        inputs = {name: dirs[each] for name, each in stage.inputs.items()}
        inputs |= {name: tmp_path / digest for name, digest in stage.pins.items()}
        site = Site(lake=tmp_path / "lake", threads=1, fingerprint=stage.id)
        getattr(importlib.import_module(module), function)(stage.spec, inputs, dirs[stage.id], site)
    shards = {name: TokenShard.open(dirs[stage.id]) for name, stage in of_kind(plan, "tokens").items()}
    assert shards["talk"].loss_mask is not None
    assert shards["pages"].loss_mask is None
    (run,) = of_kind(plan, "train").values()
    lines = [json.loads(line) for line in (dirs[run.id] / "metrics.jsonl").read_text().splitlines()]
    assert [line["n_tokens"] for line in lines] == [64, 128, 192, 256]
    assert all(16 < line["n_labels"] < 64 for line in lines), lines


def test_the_loss_on_held_out_answers_is_planned_with_its_template(tmp_path: Path) -> None:
    """The template is part of what is asked: another one, another evaluation."""
    parts = {
        part: replace(TALK, split=Split(part=part, held_out_share=0.5)) for part in ("train", "held_out")
    }
    mixture = Mixture(parts=(Part(dataset=parts["train"], weight=1),))
    asked = (AnswerLoss(dataset=parts["held_out"], max_documents=4),)
    ids = []
    for _ in range(2):
        plan = planned(replace(tuning(), mixture=mixture, evaluations=asked))
        (stage,) = (stage for stage in plan.stages if stage.kind == "evaluate")
        assert set(stage.pins) == {"chat_template", "tokenizer_config"}
        ids.append(stage.id)
        (tmp_path / "given" / "chat_template.jinja").write_text(MARKED.replace("trim", "upper"))
    assert ids[0] != ids[1]
    with pytest.raises(SpecError, match=r"evaluations.answer_loss.dataset: .* on which the mixture trains"):
        replace(tuning(), evaluations=(AnswerLoss(dataset=TALK, max_documents=4),))
