"""`factory coord-check`: numbers, plot, and what it refuses."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest

from modelfactory.cli import coordinates, main
from modelfactory.models import Decoder
from modelfactory.train.coordinate_sizes import KINDS
from modelfactory.train.coordinates import RULES, Coordinate

if TYPE_CHECKING:
    from pathlib import Path

STUDY = '''\
"""Is it wide enough?"""

from modelfactory import Experiment
from modelfactory.data import Dataset, Files, Split
from modelfactory.evaluate import BitsPerByte
from modelfactory.models import Llama
from modelfactory.tokens import BPE, Mixture, Part
from modelfactory.train import AdamW, Constant, Training


def python(part: str) -> Dataset:
    split = Split(part=part, held_out_share=0.25)
    return Dataset(name="python", sources=(Files(root="corpus", pattern="*.py"),), split=split)


def variant(*, d_model: int, seed: int) -> Experiment:
    return Experiment(
        name=f"<{d_model}>/seed={seed}",
        tokenizer=BPE(vocab_size=320, dataset=python("train")),
        mixture=Mixture(parts=(Part(dataset=python("train"), weight=1.0),)),
        model=Llama(n_layers=1, d_model=d_model, n_heads=1, max_seq_len=8),
        training=Training(
            n_tokens=128,
            batch_tokens=32,
            optimizer=AdamW(lr=1e-3, weight_decay=0.1),
            schedule=Constant(warmup_steps=1),
            seed=seed,
        ),
        evaluations=(BitsPerByte(dataset=python("held_out"), max_documents=4, max_bytes=300),),
    )


def experiments() -> list[Experiment]:
    return [variant(d_model=d_model, seed=seed) for d_model in (8, 16) for seed in (1, 2)]
'''


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.py").write_text("print(1)\n")
    file = tmp_path / f"study_of_{re.sub(r'[^a-z0-9]', '_', tmp_path.name.lower())}.py"  # one module each
    file.write_text(STUDY)
    return file


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any, str]:
    code = main(["coord-check", *words, "--json"])
    written = capsys.readouterr()
    return code, json.loads(written.out), written.err


class Page(HTMLParser):
    """Counts panels and lines, and keeps addresses that a browser would ask."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}
        self.asked: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        asked = [value for name, value in attrs if name in ("src", "href") and value]
        self.asked += [value for value in asked if not value.startswith("data:")]


def test_numbers_and_plot(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "made" / "coords.html"
    words = (str(study), "--widths", "16,32,64", "--steps", "2", "-o", str(output))
    code, data, _ = answer(capsys, *words)
    assert code == 0
    assert data["output"] == str(output)
    assert [model["variants"] for model in data["models"]] == [["<8>"], ["<16>"]]
    for model in data["models"]:
        assert len(model["coordinates"]) == 2 * 3 * 3 * len(KINDS)  # rules, widths, steps with step 0
        assert len(model["slopes"]) == 2 * len(KINDS)
    text = output.read_text("utf-8")
    assert "&lt;8&gt;" in text
    page = Page(text)
    assert page.counts["svg"] == 2 * 2 * len(KINDS)
    assert page.counts["polyline"] == 2 * page.counts["svg"]  # after each of two steps
    assert "script" not in page.counts
    assert page.asked == []
    answer(capsys, *words)
    assert output.read_text("utf-8") == text


def test_words_for_a_person(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["coord-check", str(study), "--widths", "16,32", "--steps", "1"]) == 0
    told = capsys.readouterr().out
    assert "muP, change" in told
    assert (tmp_path / "coords.html").is_file()


@pytest.mark.parametrize(
    ("option", "given", "told"),
    [
        ("--widths", "64", "found [64], wanted two or more different ones"),
        ("--widths", "64,64", "found [64, 64], wanted two or more different ones"),
        ("--widths", "64,wide", "found '64,wide', wanted whole numbers with commas"),
        ("--widths", "0,64", "found [0, 64], wanted whole numbers from 1"),
        ("--widths", "64,9999999999", "found [64, 9999999999], wanted whole numbers from 1"),
        ("--widths", "", "found '', wanted whole numbers with commas"),
        ("--steps", "0", "found 0, wanted at least 1"),
        ("--steps", "few", "found 'few', wanted a whole number"),
    ],
)
def test_words_that_cannot_be(
    option: str, given: str, told: str, study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["coord-check", str(study), option, given])
    assert left.value.code == 2
    assert f"coord-check {option}: {told}" in capsys.readouterr().err


def test_a_verdict_in_words_json_and_plot(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinates, "coordinate_check", power_laws)
    words = (str(study), "--widths", "16,32,64", "--steps", "2")
    code, data, _ = answer(capsys, *words)
    assert code == 0
    for model in data["models"]:
        assert model["threshold"] == 0.25
        assert model["stable"] == {"standard": False, "muP": True}
        told = {(each["rule"], each["kind"]): each["verdict"] for each in model["slopes"]}
        assert told["standard", "logits"] == "grows"
        assert told["standard", "mixer"] == "shrinks"
        assert {word for (rule, _), word in told.items() if rule == "muP"} == {"stable"}
    assert main(["coord-check", *words]) == 0
    told = capsys.readouterr().out
    assert "as it is: shrinks: mixer (\N{MINUS SIGN}0.50); grows: logits (+1.00)\nby muP: stable\n" in told
    assert "up to 0.25 either way is stable" in told
    page = (tmp_path / "coords.html").read_text("utf-8")
    assert "shrinks: mixer (\N{MINUS SIGN}0.50); grows: logits (+1.00)" in page
    assert ">10\u207b\u2074</text>" in page  # no 0.0001, for which there is no room
    assert "-0.5" not in page


def power_laws(*_: object, widths: tuple[int, ...], n_steps: int, seed: int) -> list[Coordinate]:
    """Return coordinates whose slopes are known: 1 and -0.5 of two kinds as they are, 0 of all else."""
    del seed
    powers = {("standard", "logits"): 1.0, ("standard", "mixer"): -0.5}
    return [
        Coordinate(
            rule=rule, width=width, step=step, kind=kind, size=1.0,
            change=2e-4 * step * width ** powers.get((rule, kind), 0.0),
        )
        for rule in RULES for width in widths for step in range(n_steps + 1) for kind in KINDS
    ]  # fmt: skip


def with_experiments(study: Path, body: str) -> None:
    head = STUDY.partition("def experiments()")[0]
    study.write_text(head + "def experiments() -> list[Experiment]:\n" + body)


def test_a_model_that_has_mup_is_checked_as_its_base(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = """\
    from dataclasses import replace
    from modelfactory.models.mup import at_width, mup
    base = variant(d_model=16, seed=1)
    wide = mup(at_width(base.model, 32), base=base.model)
    return [base, replace(base, name="wide/seed=1", model=wide)]
"""
    with_experiments(study, body)
    code, data, _ = answer(capsys, str(study), "--widths", "16,32", "--steps", "1")
    assert code == 0
    (model,) = data["models"]
    assert model["variants"] == ["<16>", "wide"]
    size = {(each["rule"], each["kind"]): each["size"]
            for each in model["coordinates"] if (each["width"], each["step"]) == (16, 1)}  # fmt: skip
    assert all(size["standard", kind] == size["muP", kind] for kind in KINDS)  # 16 is the base's width


def test_all_that_cannot_be_checked_is_named_before_any_work(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Decoder, "build", lambda *_: pytest.fail("a model was built"))
    body = """\
    from dataclasses import replace
    from modelfactory.models import Mixtral
    fine = variant(d_model=16, seed=1)
    experts = Mixtral(n_layers=1, d_model=16, n_heads=1, n_kv_heads=1, d_ff=32, n_experts=4, n_active=2,
                      max_seq_len=8)
    by_hand = replace(fine.model, hidden_lr_scale=0.5)
    return [
        fine,
        replace(fine, name="experts/seed=1", model=experts),
        replace(fine, name="by hand/seed=1", model=by_hand),
    ]
"""
    with_experiments(study, body)
    code, data, _ = answer(capsys, str(study), "--widths", "16,32")
    assert code == 2
    assert [fault["place"] for fault in data["faults"]] == [
        "by hand/seed=1: model: Decoder.hidden_lr_scale",
        "experts/seed=1: model: Block.feed_forward",
    ]
    assert not (tmp_path / "coords.html").exists()


def test_a_model_that_diverges_leaves_the_others(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = """\
    from dataclasses import replace
    fine = variant(d_model=16, seed=1)
    wild = replace(fine.training, optimizer=AdamW(lr=1e30, weight_decay=0.1))
    return [replace(fine, name="wild/seed=1", training=wild), fine]
"""
    with_experiments(study, body)
    code, data, told = answer(capsys, str(study), "--widths", "16,32", "--steps", "2")
    assert code == 2
    wild, fine = data["models"]
    assert wild["error"].startswith("wild/seed=1: coordinate check: standard, width 16, step ")
    assert "Lower the learning rate" in wild["error"]
    assert wild["error"] in told
    assert (wild["slopes"], wild["stable"]) == ([], {"standard": False, "muP": False})
    assert fine["error"] == ""
    assert len(fine["slopes"]) == 2 * len(KINDS)
    page = (tmp_path / "coords.html").read_text("utf-8")
    assert "Not checked: wild/seed=1" in page
    assert Page(page).counts["svg"] == 2 * len(KINDS)
    assert main(["coord-check", str(study), "--widths", "16,32", "--steps", "2"]) == 2
    assert "not checked: wild/seed=1" in capsys.readouterr().out


def test_a_width_beyond_memory_is_refused(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, data, _ = answer(capsys, str(study), "--widths", "16,1048576")
    assert code == 2
    first = data["faults"][0]
    assert first["place"] == "--widths 1048576: <8>/seed=1"
    assert first["found"].startswith("a model that takes about ")
    assert "Give narrower widths" in first["remedy"]


def test_memory_that_ends_all_the_same_is_no_fault_of_ours(
    study: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 7 bytes")

    monkeypatch.setattr(coordinates, "coordinate_check", full)
    code, data, _ = answer(capsys, str(study), "--widths", "16,32")
    assert code == 2
    assert data["models"][0]["error"].startswith("<8>/seed=1: found no memory left, wanted enough")


@pytest.mark.parametrize(
    ("place", "found"),
    [("{here}", "a folder"), ("{here}/corpus/a.py/x.html", "no writable"), ("n" * 300, "")],
)
def test_a_plot_that_cannot_be_written_is_refused(
    place: str, found: str, study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = place.format(here=tmp_path)
    code, data, _ = answer(capsys, str(study), "-o", path)
    assert code == 2
    assert data["error"].startswith(f"plot {path}: found {found}")


def test_a_width_that_cuts_a_head_is_refused(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, data, _ = answer(capsys, str(study), "--widths", "16,24")
    assert code == 2
    assert "<16>/seed=1: model: Attention.n_heads" in data["error"]
