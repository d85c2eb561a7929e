"""Answers found in completions that are given."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from modelfactory.errors import SourceError, SpecError
from modelfactory.evaluate import Evaluate, ExactMatch, ItemFile
from modelfactory.evaluate.item_files import checked_rows
from modelfactory.generate import Completion
from modelfactory.spec import from_json, to_json

if TYPE_CHECKING:
    from modelfactory.evaluate import Row

    from .conftest import ByteTokenizer

TASK = ExactMatch(items=ItemFile(path="m.jsonl"), max_new_tokens=64)
SUMS = (
    {"question": "One and one?", "answer": "1 + 1 = 2\n#### 2"},
    {"question": "A thousand and 五百?", "answer": "They are\n#### 1,500"},
    {"question": "Two less three?", "answer": "Below zero.\n#### -1"},
)


@dataclass
class Writer:
    """Gives prepared completions, in order."""

    texts: list[str]

    def generate_from(self, prompts: Any, sampling: Any) -> list[Completion]:
        assert len(prompts) == len(self.texts)
        return [Completion(text=text, ids=(1,), finish="stop" if text else "length") for text in self.texts]


def rows(task: ExactMatch, *values: dict[str, str]) -> tuple[Row, ...]:
    return checked_rows(task, "items", Path("m.jsonl"), "\n".join(map(json.dumps, values)).encode())


def test_it_is_a_spec() -> None:
    stage = Evaluate(task=TASK)
    assert from_json(json.loads(json.dumps(to_json(stage)))) == stage


def test_answers_are_compared_as_text(tokenizer: ByteTokenizer) -> None:
    model: Any = Writer(["it is #### 2. Or #### 3", "#### 1500", ""])
    answers = TASK.answer(TASK.prepare({"items": rows(TASK, *SUMS)}, tokenizer), model)
    assert [outcome.value for outcome in answers.outcomes] == [1.0, 1.0, 0.0]
    assert [outcome.detail["found"] for outcome in answers.outcomes] == ["2", "1500", None]
    assert answers.facts == {"n_without_answer": 1, "n_ended_by_length": 1, "n_items_with_cut_context": 0}


def test_the_last_match_where_it_is_asked_for() -> None:
    assert TASK.found("#### 2 #### 3") == "2"
    assert replace(TASK, take="last").found("#### 2 #### 3") == "3"


def test_shots_come_first(tokenizer: ByteTokenizer) -> None:
    task = replace(TASK, n_shot=1, shots=ItemFile(path="s.jsonl"))
    found = rows(task, *SUMS)
    item = task.prepare({"items": found[:1], "shots": found[2:]}, tokenizer).items[0]
    assert tokenizer.decode(item.ids) == (
        "Question: Two less three?\nAnswer: Below zero.\n#### -1\n\nQuestion: One and one?\nAnswer:"
    )


def test_an_answer_that_cannot_be_found_is_named() -> None:
    with pytest.raises(SourceError, match="line 4"):
        rows(TASK, *SUMS, {"question": "What?", "answer": "no number"})


@pytest.mark.parametrize(
    "wrong", [{"pattern": "("}, {"pattern": "no group"}, {"stops": ("",)}, {"max_new_tokens": 0}]
)
def test_settings_without_a_meaning_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=next(iter(wrong))):
        replace(TASK, **wrong)
