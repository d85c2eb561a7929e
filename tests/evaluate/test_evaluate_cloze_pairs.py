"""Cloze and minimal pairs by hand, with scores that are given."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from modelfactory.errors import SourceError
from modelfactory.evaluate import Cloze, Evaluate, ItemFile, MinimalPairs, estimate
from modelfactory.evaluate.item_files import checked_rows
from modelfactory.generate import Score
from modelfactory.spec import from_json, to_json

if TYPE_CHECKING:
    from modelfactory.evaluate import Row

    from .conftest import ByteTokenizer

CLOZE = Cloze(items=ItemFile(path="c.jsonl"))
PAIRS = MinimalPairs(items=ItemFile(path="p.jsonl"))


@dataclass
class Scorer:
    """Gives prepared scores, in order."""

    scores: list[Score]

    def score_pairs(self, pairs: list[Any]) -> list[Score]:
        assert len(pairs) == len(self.scores)
        return self.scores


def rows(task: Any, *values: dict[str, Any]) -> dict[str, tuple[Row, ...]]:
    content = "\n".join(json.dumps(each) for each in values).encode()
    return {"items": checked_rows(task, "items", Path("x.jsonl"), content)}


@pytest.mark.parametrize("task", [CLOZE, PAIRS])
def test_they_are_specs(task: Any) -> None:
    stage = Evaluate(task=task)
    assert from_json(json.loads(json.dumps(to_json(stage)))) == stage


def test_an_ending_is_right_if_it_is_greedy(tokenizer: ByteTokenizer) -> None:
    read = rows(
        CLOZE, {"context": "I care about ", "continuation": "signs"}, {"context": "我", "continuation": "们"}
    )
    prepared = CLOZE.prepare(read, tokenizer)
    # the blank at the end of a context moves to what is scored, beside the one that joins
    assert [tokenizer.decode(item.pair.context) for item in prepared.items] == ["I care about", "我"]
    assert [tokenizer.decode(item.pair.continuation) for item in prepared.items] == ["  signs", " 们"]
    model: Any = Scorer([Score(-1.0, True, 5), Score(-3.0, False, 3, 2)])
    answers = CLOZE.answer(prepared, model)
    assert [outcome.value for outcome in answers.outcomes] == [1.0, 0.0]
    assert answers.facts == {
        "mean_logprob": -2.0,
        "perplexity": pytest.approx(math.exp(2.0)),
        "n_items_with_cut_context": 1,
    }


def test_the_likelier_sentence_wins(tokenizer: ByteTokenizer) -> None:
    read = rows(
        PAIRS,
        {"sentence_good": "Cats sleep.", "sentence_bad": "Cats sleeps."},
        {"sentence_good": "He left.", "sentence_bad": "Him left."},
        {"sentence_good": "We are.", "sentence_bad": "We are."},
    )
    prepared = PAIRS.prepare(read, tokenizer)
    assert [len(pair.context) for item in prepared.items for pair in item.pairs] == [0] * 6
    logprobs = [-1.0, -2.0, -2.0, -1.0, -1.0, -1.0]
    model: Any = Scorer([Score(logprob, False, 3) for logprob in logprobs])
    assert [outcome.value for outcome in PAIRS.answer(prepared, model).outcomes] == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("task", [CLOZE, PAIRS])
def test_no_finite_score_is_no_answer(task: Any, tokenizer: ByteTokenizer) -> None:
    fields = {"context": "a", "continuation": "b", "sentence_good": "a", "sentence_bad": "b"}
    prepared = task.prepare(rows(task, fields), tokenizer)
    n = 1 if task is CLOZE else 2
    outcomes = task.answer(prepared, Scorer([Score(math.nan, True, 1)] * n)).outcomes
    assert math.isnan(outcomes[0].value)


@pytest.mark.parametrize(
    ("task", "values", "told"),
    [
        (CLOZE, {"context": "a"}, "no field 'continuation'"),
        (CLOZE, {"context": "a", "continuation": " "}, "continuation = ' '"),
        (PAIRS, {"sentence_good": "a"}, "no field 'sentence_bad'"),
        (PAIRS, {"sentence_good": "a", "sentence_bad": None}, "sentence_bad = None"),
    ],
)
def test_bad_lines_are_named(task: Any, values: dict[str, Any], told: str) -> None:
    with pytest.raises(SourceError, match="line 1") as caught:
        rows(task, values)
    assert told in str(caught.value)


def test_the_error_of_a_share() -> None:
    """sd / sqrt(n) with n - 1 in sd: 14 of 307 has .011926."""
    values = [1.0] * 14 + [0.0] * 293
    found = estimate(values, [1.0] * 307, [str(number) for number in range(307)])
    assert found.stderr == pytest.approx(0.011926, abs=5e-7)
