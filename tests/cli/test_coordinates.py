"""`factory coord-check`: numbers, plot, and what it refuses."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest

from modelfactory.cli import main
from modelfactory.train.coordinates import KINDS

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
    assert page.counts["polyline"] == 3 * page.counts["svg"]
    assert "script" not in page.counts
    assert page.asked == []
    answer(capsys, *words)
    assert output.read_text("utf-8") == text


def test_words_for_a_person(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["coord-check", str(study), "--widths", "16,32", "--steps", "1"]) == 0
    told = capsys.readouterr().out
    assert "muP, change" in told
    assert (tmp_path / "coords.html").is_file()


@pytest.mark.parametrize("widths", ["64", "64,64", "64,wide", "0,64", ""])
def test_widths_that_cannot_be(widths: str, study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["coord-check", str(study), "--widths", widths])
    assert left.value.code == 2
    assert "wanted two or more widths, such as 64,128,256" in capsys.readouterr().err


def test_a_width_that_cuts_a_head_is_refused(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, data, _ = answer(capsys, str(study), "--widths", "16,24")
    assert code == 2
    assert "Attention.n_heads" in data["error"]
