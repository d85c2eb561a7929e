"""`factory check` tells the faults of a file in one answer, whichever step of it finds them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from modelfactory.cli import main
from tests.test_loading import GOOD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OWN = '''\
from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Halved:
    """A layer whose count is no whole number."""

    def n_parameters(self, d_model):
        return d_model / 3

    def flops_per_token(self, d_model, seq_len):
        return 0

    def build(self, context):
        return None


def halved(model):
    return replace(model, blocks=(replace(model.blocks[0], mixer=Halved()),))
'''
FAULTY = """

def faulty(name: str, **changes) -> Experiment:
    return replace(variant(name, 1), name=name, **changes)


def started(where: str) -> Training:
    return replace(GOOD.training, start=Pretrained(path=where))


GOOD = variant("small", 1)
MISSING = replace(SIDES["train"], sources=(replace(SOURCE, root="no_folder"),))


def experiments() -> list[Experiment]:
    return [GOOD, {experiments}]
"""
SMALL_VOCABULARY = 'faulty("a", tokenizer=BPE(vocab_size=100, dataset=SIDES["train"]))'
NO_START = 'faulty("b", training=started("nowhere"))'
NO_COUNT = 'faulty("c", model=halved(GOOD.model))'
NO_FOLDER = 'faulty("d", mixture=Mixture(parts=(Part(dataset=MISSING, weight=1.0),)))'
NO_TOKENIZER = 'faulty("e", tokenizer=TokenizerFile(path="no.json", eos_token="x"))'
NO_REPLICATE = 'replace(GOOD, name="small/seed=2")'


@pytest.fixture
def faults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., list[dict[str, str]]]]:
    """Return what checks a file of these experiments and returns its faults."""
    monkeypatch.chdir(tmp_path)
    path, before = list(sys.path), set(sys.modules)
    (tmp_path / "own_layer.py").write_text(OWN)
    for n in range(8):
        (tmp_path / f"text_{n}.py").write_text(f"number = {n}\n" * 20)
    start = GOOD.index("def experiments()")
    imports = "from dataclasses import replace\n\nfrom own_layer import halved\n"
    study = GOOD[:start].replace("from modelfactory import C", f"{imports}from modelfactory import C")
    study = study.replace("import BPE, ", "import BPE, TokenizerFile, ").replace(
        "Cosine, ", "Cosine, Pretrained, "
    )

    def found(*experiments: str, words: tuple[str, ...] = ("check",)) -> list[dict[str, str]]:
        text = study + FAULTY.format(experiments=", ".join(experiments))
        (tmp_path / "a_study.py").write_text(text)
        sys.modules.pop("a_study", None)
        capsys.readouterr()
        assert main([*words, "a_study.py", "--workspace", "w", "--json"]) == 2
        told: Any = json.loads(capsys.readouterr().out)
        assert not (tmp_path / "w").exists()
        return list(told["faults"])

    yield found
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def places(found: list[dict[str, str]]) -> list[str]:
    return [fault["place"] for fault in found]


def test_of_three_experiments_with_a_fault_each(faults: Callable[..., list[dict[str, str]]]) -> None:
    vocabulary, start, count = faults(SMALL_VOCABULARY, NO_START, NO_COUNT)
    assert vocabulary["place"].endswith(": BPE.vocab_size (in experiment 'a')")
    assert start["place"] == "training.start: nowhere (in experiment 'b')"
    assert start["found"] == "nothing"
    assert count["place"] == "model.blocks[0].mixer, Halved.n_parameters (in experiment 'c')"
    assert count["found"].startswith("2.66")


def test_every_source_has_its_experiments_and_its_field(faults: Callable[..., list[dict[str, str]]]) -> None:
    another = NO_START.replace('"b"', '"f", model=GOOD.model')
    found = places(faults(NO_FOLDER, NO_TOKENIZER, NO_START, another))
    assert sorted(found) == [
        f"dataset 'a': sources[0]: root {Path.cwd() / 'no_folder'} (in experiment 'd')",
        "tokenizer: no.json (in experiment 'e')",
        "training.start: nowhere (in 2 of 5 experiments: b, f)",
    ]


def test_a_fault_of_many_experiments_is_told_once(faults: Callable[..., list[dict[str, str]]]) -> None:
    seeds = [NO_COUNT.replace('"c"', f'"c, seed={n}"') for n in range(4)]
    seeds = [
        each.replace("model=", f"training=replace(GOOD.training, seed={n}), model=")
        for n, each in enumerate(seeds)
    ]
    (place,) = places(faults(*seeds))
    assert place == (
        "model.blocks[0].mixer, Halved.n_parameters "
        "(in 4 of 5 experiments: 'c, seed=0', 'c, seed=1', 'c, seed=2', ...)"
    )


def test_faults_between_experiments_hide_none_within_one(
    faults: Callable[..., list[dict[str, str]]],
) -> None:
    twins, start = faults(NO_REPLICATE, NO_START)
    assert "small" in twins["place"] + twins["found"]
    assert start["place"] == "training.start: nowhere (in experiment 'b')"


def test_an_experiment_that_cannot_be_built_is_left_out_of_what_comes_later(
    faults: Callable[..., list[dict[str, str]]],
) -> None:
    both = NO_START.replace("training=", 'tokenizer=BPE(vocab_size=100, dataset=SIDES["train"]), training=')
    (vocabulary,) = faults(both)
    assert "BPE.vocab_size" in vocabulary["place"]


def test_options_that_fit_no_run_are_told_together(faults: Callable[..., list[dict[str, str]]]) -> None:
    options = ("plan", "--micro-batch-tokens", "1", "--parallel", "data=3")
    found = places(faults(NO_COUNT, words=options))
    assert len(found) == 3
    assert found[0].endswith("(in experiment 'c')")
    assert found[2] == "--micro-batch-tokens"
