"""Files of questions: what is refused, at which line, and how they become inputs of a stage."""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from modelfactory import Experiment
from modelfactory.data import Dataset, Files, MemoryCache, Split, pin_file
from modelfactory.errors import InvalidInputs, SourceError, SpecError
from modelfactory.evaluate import Evaluate, ItemFile, MultipleChoice
from modelfactory.evaluate import stage as evaluate_stage
from modelfactory.evaluate.item_files import checked_rows, read_rows
from modelfactory.evaluate.multiple_choice import normalised
from modelfactory.evaluate.shots import Shots
from modelfactory.generate import Score
from modelfactory.models import GPT2
from modelfactory.plan import pin_sources, plan_experiments
from modelfactory.spec import from_json, to_json
from modelfactory.stage import Site
from modelfactory.tokens import BPE, Mixture, Part
from modelfactory.train import AdamW, Constant, Training

if TYPE_CHECKING:
    from modelfactory.plan import Plan

    from .conftest import ByteTokenizer

QUESTIONS: list[dict[str, Any]] = [
    {"query": "Question: the colour of snow?\nAnswer:", "choices": ["white", "black as coal"], "gold": 0},
    {"query": "Question: 二の次は?\nAnswer:", "choices": ["五", "三", "九"], "gold": 1},
    {"query": "Question: the sound of a cow?\nAnswer:", "choices": ["moo", "tick tock"], "gold": 0},
]
TASK = MultipleChoice(items=ItemFile(path="q.jsonl"), normalisation="bytes")


@pytest.fixture
def site(stages: dict[str, Path]) -> Site:
    return Site(lake=stages["lake"], threads=1)


def lines(rows: list[dict[str, Any]]) -> bytes:
    return "\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode()


def written(path: Path, content: bytes) -> ItemFile:
    path.write_bytes(content)
    return ItemFile(path=str(path))


@pytest.mark.parametrize(
    ("bad", "place", "told"),
    [
        (b"\xff\xfe{}", "line 4", "no UTF-8"),
        (b"{'query': 1}", "line 4", "no JSON"),
        (b"[1, 2]", "line 4", "a list"),
        (b'{"choices": ["a", "b"], "gold": 0}', "line 4", "no field 'query'"),
        (b'{"query": "q", "choices": ["a", "b"]}', "line 4", "no field 'gold'"),
        (b'{"query": "q", "choices": ["a", "b"], "gold": 2}', "line 4", "from 0 to 1"),
        (b'{"query": "q", "choices": ["a", "b"], "gold": true}', "line 4", "gold = True"),
        (b'{"query": "q", "choices": ["a", "b"], "gold": -1}', "line 4", "gold = -1"),
        (b'{"query": "q", "choices": [], "gold": 0}', "line 4", "choices = []"),
        (b'{"query": "q", "choices": ["a", ""], "gold": 0}', "line 4", "none empty"),
        (b'{"query": 7, "choices": ["a", "b"], "gold": 0}', "line 4", "query = 7"),
    ],
)
def test_a_bad_line_is_named(bad: bytes, place: str, told: str) -> None:
    # the empty third line is left out, yet counted
    content = lines(QUESTIONS[:2]) + b"\n\n" + bad + b"\n" + lines(QUESTIONS[2:])
    with pytest.raises(SourceError) as caught:
        checked_rows(TASK, "items", Path("q.jsonl"), content)
    assert f"q.jsonl, {place}" in str(caught.value)
    assert told in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\n \n", gzip.compress(b"", mtime=0)])
def test_an_empty_file_is_refused(content: bytes) -> None:
    with pytest.raises(SourceError, match="no lines"):
        read_rows(Path("q.jsonl"), content)


def test_a_broken_archive_is_refused() -> None:
    with pytest.raises(SourceError, match="broken gzip"):
        read_rows(Path("q.jsonl.gz"), gzip.compress(lines(QUESTIONS))[:-9])


def test_compressed_lines_are_the_same_rows() -> None:
    plain, packed = lines(QUESTIONS), gzip.compress(lines(QUESTIONS))
    assert read_rows(Path("q"), packed) == read_rows(Path("q"), b"\xef\xbb\xbf" + plain)


def test_a_mistyped_field_gets_the_closest() -> None:
    task = replace(TASK, gold_field="godl")
    with pytest.raises(SourceError, match="gold"):
        checked_rows(task, "items", Path("q"), lines(QUESTIONS))


def test_too_few_shots_are_refused() -> None:
    with pytest.raises(SourceError, match="n_shot = 3"):
        checked_rows(replace(TASK, n_shot=3), "items", Path("q"), lines(QUESTIONS))
    task = replace(TASK, n_shot=4, shots=ItemFile(path="s"))
    with pytest.raises(SourceError, match="n_shot = 4"):
        checked_rows(task, "shots", Path("s"), lines(QUESTIONS))


def test_shots_are_other_items_and_do_not_depend_on_order() -> None:
    rows, turned = read_rows(Path("q"), lines(QUESTIONS)), read_rows(Path("q"), lines(QUESTIONS[::-1]))
    task = replace(TASK, n_shot=2, seed=3)
    for row in rows:
        shots = [shot.identity for shot in Shots(task, {"items": rows}).before(row)]
        assert len(set(shots)) == 2
        assert row.identity not in shots
        assert shots == [shot.identity for shot in Shots(task, {"items": turned}).before(row)]


def test_normalisations_by_hand() -> None:
    scores = [Score(-6.0, False, 3), Score(-4.0, False, 1)]
    bare = [Score(-9.0, False, 3), Score(-1.0, False, 1)]
    assert normalised(["né", "abcd"], scores, bare) == {
        "none": [-6.0, -4.0],
        "characters": [-3.0, -1.0],
        "bytes": [-2.0, -1.0],
        "tokens": [-2.0, -4.0],
        "pmi": [3.0, -3.0],
    }


def test_a_context_is_its_shots_and_the_question(tokenizer: ByteTokenizer) -> None:
    rows = read_rows(Path("q"), lines(QUESTIONS))
    task = replace(TASK, n_shot=1, shots=ItemFile(path="s"))
    item = task.prepare({"items": rows[1:], "shots": rows[:1]}, tokenizer).items[0]
    before = "Question: the colour of snow?\nAnswer: white\n\nQuestion: 二の次は?\nAnswer:"
    assert [tokenizer.decode(pair.context) for pair in item.pairs] == [before] * 3
    assert [tokenizer.decode(pair.continuation) for pair in item.pairs] == [" 五", " 三", " 九"]


@pytest.mark.parametrize("normalisation", ["none", "pmi"])
def test_a_stage_of_an_item_file(
    normalisation: Any, stages: dict[str, Path], site: Site, tmp_path: Path
) -> None:
    file = written(tmp_path / "q.jsonl", lines(QUESTIONS))
    task = MultipleChoice(items=file, normalisation=normalisation, n_shot=1, joint=" ")
    pin_file(file.path, MemoryCache()).write(tmp_path / "pin.json")
    inputs = {name: stages[name] for name in ("checkpoint", "tokenizer")} | {"items": tmp_path / "pin.json"}
    (tmp_path / "out").mkdir()
    evaluate_stage.run(Evaluate(task=task), inputs, tmp_path / "out", site)
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    by_name = result["facts"]["accuracy_by_normalisation"]
    assert result["metrics"]["accuracy"]["value"] == by_name[normalisation]
    assert ("pmi" in by_name) == (normalisation == "pmi")
    assert result["facts"]["chance"] == pytest.approx((1 / 2 + 1 / 3 + 1 / 2) / 3)
    # the context of the checkpoint is 64 tokens: the questions with a shot are longer
    assert result["facts"]["n_items_with_cut_context"] > 0


def test_a_file_that_changed_after_the_plan_is_refused(
    stages: dict[str, Path], site: Site, tmp_path: Path
) -> None:
    file = written(tmp_path / "q.jsonl", lines(QUESTIONS))
    pin_file(file.path, MemoryCache()).write(tmp_path / "pin.json")
    written(tmp_path / "q.jsonl", lines(QUESTIONS[:2]))
    inputs = {name: stages[name] for name in ("checkpoint", "tokenizer")} | {"items": tmp_path / "pin.json"}
    with pytest.raises(SourceError, match="other content than when it was planned"):
        evaluate_stage.run(Evaluate(task=replace(TASK, items=file)), inputs, tmp_path / "out", site)


def test_no_finite_score_is_no_answer(tokenizer: ByteTokenizer) -> None:
    prepared = TASK.prepare({"items": read_rows(Path("q"), lines(QUESTIONS))}, tokenizer)

    class Broken:
        def score_pairs(self, pairs: Any) -> list[Score]:
            return [Score(math.nan, False, len(pair.continuation)) for pair in pairs]

    outcomes = TASK.answer(prepared, Broken()).outcomes  # type: ignore[arg-type]
    assert all(math.isnan(outcome.value) for outcome in outcomes)


def experiment(root: Path, task: Any) -> Experiment:
    (root / "pages").mkdir(exist_ok=True)
    (root / "pages" / "a.txt").write_text("a page of text\n" * 200)
    pages = Files(root=str(root / "pages"), pattern="*.txt")
    dataset = Dataset(name="pages", sources=(pages,), split=Split(part="train", held_out_share=0.0))
    return Experiment(
        name="asked/seed=1",
        tokenizer=BPE(vocab_size=300, dataset=dataset),
        mixture=Mixture(parts=(Part(dataset=dataset, weight=1.0),)),
        model=GPT2(n_layers=1, d_model=32, n_heads=2, max_seq_len=16),
        training=Training(
            n_tokens=256,
            batch_tokens=64,
            optimizer=AdamW(lr=1e-3, weight_decay=0.0),
            schedule=Constant(warmup_steps=0),
            seed=1,
            precision="fp32",
            n_checkpoints=1,
        ),
        evaluations=(task,),
    )


def planned(*experiments: Experiment) -> Plan:
    return plan_experiments(experiments, pin_sources(experiments, MemoryCache()), None, jobs=1, threads=1)


def test_an_item_file_is_an_input_by_content(tmp_path: Path) -> None:
    task = replace(TASK, items=written(tmp_path / "q.jsonl", lines(QUESTIONS)))
    assert from_json(json.loads(json.dumps(to_json(task)))) == task
    plans = [planned(experiment(tmp_path, task))]
    (tmp_path / "moved").mkdir()
    moved = replace(task, items=written(tmp_path / "moved" / "q.jsonl", lines(QUESTIONS)))
    plans.append(planned(experiment(tmp_path, moved)))
    written(tmp_path / "q.jsonl", lines(QUESTIONS[:2]))
    plans.append(planned(experiment(tmp_path, task)))
    stages = [next(stage for stage in plan.stages if stage.kind == "evaluate") for plan in plans]
    assert set(stages[0].inputs) == {"checkpoint", "tokenizer"}
    assert set(stages[0].pins) == {"items"}
    assert stages[0].id == stages[1].id != stages[2].id


def test_bad_lines_are_told_by_the_plan(tmp_path: Path) -> None:
    file = written(tmp_path / "q.jsonl", lines(QUESTIONS) + b'\n{"query": "q", "choices": ["a", "b"]}')
    with pytest.raises(InvalidInputs) as caught:
        planned(experiment(tmp_path, replace(TASK, items=file)))
    told = str(caught.value)
    assert "evaluations.multiple_choice" in told
    assert "q.jsonl, line 4" in told
    gone = replace(TASK, items=ItemFile(path=str(tmp_path / "no-such.jsonl")))
    with pytest.raises(InvalidInputs, match=r"no-such\.jsonl"):
        planned(experiment(tmp_path, gone))


def test_a_task_about_nothing_is_refused(tmp_path: Path) -> None:
    from .own_tasks import AboutNothing

    with pytest.raises(SpecError, match="asks about nothing"):
        experiment(tmp_path, AboutNothing())
