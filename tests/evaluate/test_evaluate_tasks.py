"""Items as functions of documents and seed, and outcomes by hand."""

from __future__ import annotations

import ast
import json
import math
import random
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from modelfactory.errors import SourceError, SpecError
from modelfactory.evaluate import BitsPerByte, CompleteFunction, Document, Evaluate, NextLine
from modelfactory.evaluate.bits_per_byte import first_bytes
from modelfactory.evaluate.complete_function import STOPS, body_of, is_won, judged
from modelfactory.evaluate.functions import Function
from modelfactory.evaluate.lines import last_lines
from modelfactory.evaluate.python_source import PythonSource, n_statements, parse
from modelfactory.generate import Completion, RollingScore, Score
from modelfactory.spec import fingerprint, from_json, to_json

from .conftest import document

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from modelfactory.data import Dataset
    from modelfactory.evaluate import Task


def tasks(dataset: Dataset) -> list[Task]:
    return [
        BitsPerByte(dataset=dataset, max_documents=5, max_bytes=100),
        NextLine(dataset=dataset, n_items=20, seed=0),
        CompleteFunction(dataset=dataset, n_items=20, max_new_tokens=8, seed=0),
        CompleteFunction(dataset=dataset, n_items=12, max_new_tokens=8, seed=0, shown="all but the end"),
    ]


@pytest.fixture(params=range(4), ids=["bits_per_byte", "next_line", "complete_function", "the_end"])
def task(request: pytest.FixtureRequest, held_out: Dataset) -> Task:
    return tasks(held_out)[request.param]


def test_a_task_is_a_spec(task: Task) -> None:
    stage = Evaluate(task=task)
    assert from_json(json.loads(json.dumps(to_json(stage)))) == stage
    assert fingerprint(Evaluate(task=replace(task, margin=0.5))) == fingerprint(stage)  # not computed from it
    assert fingerprint(Evaluate(task=replace(task, name="other"))) != fingerprint(stage)


def test_what_tasks_are_called(held_out: Dataset) -> None:
    facts = [(t.name, t.primary_metric, t.unit, t.higher_is_better) for t in tasks(held_out)]
    assert facts == [
        ("bits_per_byte", "bits_per_byte", "bits/byte", False),
        ("next_line", "accuracy", "share", True),
        ("complete_function", "parse_rate", "share", True),
        ("complete_function", "parse_rate", "share", True),
    ]


@pytest.mark.parametrize(
    ("kind", "options", "place"),
    [
        (BitsPerByte, {"max_documents": 0, "max_bytes": 1}, "BitsPerByte.max_documents"),
        (BitsPerByte, {"max_documents": 1, "max_bytes": 0}, "BitsPerByte.max_bytes"),
        (NextLine, {"n_items": 1, "seed": 0, "n_choices": 1}, "NextLine.n_choices"),
        (NextLine, {"n_items": 1, "seed": 0, "margin": -0.1}, "NextLine.margin"),
        (CompleteFunction, {"n_items": 1, "seed": 0, "max_new_tokens": 0}, "CompleteFunction.max_new_tokens"),
        (
            CompleteFunction,
            {"n_items": 1, "seed": 0, "max_new_tokens": 1, "n_samples": 2},
            "CompleteFunction.temperature: .*all samples of an item are equal",
        ),
        (
            CompleteFunction,
            {"n_items": 1, "seed": 0, "max_new_tokens": 1, "temperature": -1.0},
            "CompleteFunction.temperature",
        ),
    ],
)
def test_meaningless_tasks_are_refused(
    kind: Callable[..., Task], options: dict[str, Any], place: str, held_out: Dataset
) -> None:
    with pytest.raises(SpecError, match=place):
        kind(dataset=held_out, **options)


def test_items_do_not_depend_on_the_order_of_documents(
    task: Task, programs: list[Document], tokenizer: Any
) -> None:
    shuffled = [*programs, *programs[:3]]
    random.Random(1).shuffle(shuffled)
    assert task.prepare(shuffled, tokenizer) == task.prepare(programs, tokenizer)


def test_item_ids_are_unique(task: Task, programs: list[Document], tokenizer: Any) -> None:
    items = task.prepare(programs, tokenizer).items
    ids = [getattr(item, "item_id", None) or item.document_id for item in items]
    assert len(set(ids)) == len(ids) == getattr(task, "n_items", 5)


@pytest.mark.parametrize("documents", [[], [document("")]], ids=["none", "empty"])
def test_without_documents_there_is_an_error(task: Task, documents: list[Document], tokenizer: Any) -> None:
    wanted = rf"{task.name}: found 0 .* in {len(documents)} held-out documents.*Hold out more"
    with pytest.raises(SourceError, match=wanted):
        task.prepare(documents, tokenizer)


def test_too_few_items_are_counted(held_out: Dataset, programs: list[Document], tokenizer: Any) -> None:
    documents = [*programs[:2], document("not python ("), document('{"json": 1}'), document("x = 1\0")]
    with pytest.raises(SourceError, match=r"found 8 functions to complete in 5 held-out documents") as raised:
        CompleteFunction(dataset=held_out, n_items=9, max_new_tokens=1, seed=0).prepare(documents, tokenizer)
    assert "2 not Python that parses; 1 without any statement" in str(raised.value)
    assert "ask for 8 at most" in str(raised.value)


def test_skipped_documents_are_counted(held_out: Dataset, programs: list[Document], tokenizer: Any) -> None:
    documents = [*programs, document("no python here")]
    prepared = NextLine(dataset=held_out, n_items=40, seed=0).prepare(documents, tokenizer)
    assert prepared.skipped == {"not Python that parses": 1}


class Scripted:
    """Answers with what it was given."""

    def __init__(self, **answers: Sequence[Any]) -> None:
        self.answers = answers

    def score_texts(self, texts: Sequence[Any], *, min_context: int) -> Sequence[RollingScore]:
        assert min_context == 1
        assert len(texts) == len(self.answers["texts"])
        return self.answers["texts"]

    def score_pairs(self, pairs: Sequence[Any]) -> Sequence[Score]:
        assert len(pairs) == len(self.answers["pairs"])
        return self.answers["pairs"]

    def generate_from(self, prompts: Sequence[Any], sampling: Any) -> Sequence[Completion]:
        self.sampling = sampling
        assert len(prompts) == len(self.answers["completions"])
        return self.answers["completions"]


def test_bits_per_byte_by_hand(held_out: Dataset, tokenizer: Any) -> None:
    documents = [document("abcdefghij"), document("ქართული" * 10)]  # 10 bytes; 3 bytes a letter
    task = BitsPerByte(dataset=held_out, max_documents=9, max_bytes=32)
    prepared = task.prepare(documents, tokenizer)
    n_bytes = {item.document_id: item.n_bytes for item in prepared.items}
    assert n_bytes == {documents[0].document_id: 10, documents[1].document_id: 30}
    model: Any = Scripted(texts=[RollingScore(-item.n_bytes * math.log(8), 5) for item in prepared.items])
    answers = task.answer(prepared, model)
    assert [outcome.value for outcome in answers.outcomes] == pytest.approx([3.0, 3.0])
    assert sorted(outcome.weight for outcome in answers.outcomes) == [10.0, 30.0]
    assert answers.facts == {"n_bytes": 40, "n_tokens": 10}


@pytest.mark.parametrize(
    ("text", "n", "kept"), [("abc", 2, "ab"), ("abc", 9, "abc"), ("aß", 2, "a"), ("\U0001f600", 3, "")]
)
def test_a_cut_never_splits_a_character(text: str, n: int, kept: str) -> None:
    assert first_bytes(text, n) == kept


def next_line_items(held_out: Dataset, programs: list[Document], tokenizer: Any, **options: Any) -> Any:
    task = NextLine(**{"dataset": held_out, "n_items": 60, "seed": 0, **options})
    return task.prepare(programs, tokenizer).items


def test_true_lines_follow_their_context(held_out: Dataset, programs: list[Document], tokenizer: Any) -> None:
    texts = {each.document_id: each.text for each in programs}
    for item in next_line_items(held_out, programs, tokenizer):
        pair = item.pairs[item.answer]
        whole = tokenizer.decode(pair.context) + tokenizer.decode(pair.continuation)
        true = item.choices[item.answer]
        assert whole.endswith("\n" + true)
        assert whole in texts[item.document_id]
        assert texts[item.document_id].split("\n")[item.line - 1] + "\n" == true
        assert len(whole.encode()) <= 512 + len(true.encode())


def test_choices_are_telling_different_and_alike(
    held_out: Dataset, programs: list[Document], tokenizer: Any
) -> None:
    items = next_line_items(held_out, programs, tokenizer)
    for item in items:
        stripped = [choice.strip() for choice in item.choices]
        assert len(set(stripped)) == len(stripped) == 4
        indentations = {len(choice) - len(choice.lstrip()) for choice in item.choices}
        assert len(indentations) == 1
        for line in stripped:
            assert len(line) >= 8
            assert not line.startswith("#")
            assert "looks_like" not in line  # inside a string of several lines
            assert "Do " not in line
    places = [item.answer for item in items]
    assert set(places) == {0, 1, 2, 3}


def test_items_are_spread_over_documents(held_out: Dataset, programs: list[Document], tokenizer: Any) -> None:
    items = next_line_items(held_out, programs, tokenizer, n_items=24)
    counts = [sum(item.document_id == each.document_id for item in items) for each in programs]
    assert counts == [2] * 12


def test_another_seed_asks_other_questions(
    held_out: Dataset, programs: list[Document], tokenizer: Any
) -> None:
    one, other = (
        {item.item_id for item in next_line_items(held_out, programs, tokenizer, seed=seed)}
        for seed in (0, 1)
    )
    assert one != other


def test_next_line_needs_enough_different_lines(held_out: Dataset, tokenizer: Any) -> None:
    text = "import os\n\n\n\n" + "print('again')\n" * 50
    with pytest.raises(SourceError, match="found 0 lines to ask about in 1 held-out documents"):
        NextLine(dataset=held_out, n_items=1, seed=0).prepare([document(text)], tokenizer)


def test_the_best_choice_by_byte_is_picked(
    held_out: Dataset, programs: list[Document], tokenizer: Any
) -> None:
    task = NextLine(dataset=held_out, n_items=2, seed=0)
    prepared = task.prepare(programs, tokenizer)
    right, wrong = prepared.items
    per_byte = [[-1.0] * 4, [-1.0] * 4]
    per_byte[0][right.answer] = -0.5
    per_byte[1][(wrong.answer + 1) % 4] = -0.9
    scores = [
        Score(per_byte[n][c] * len(choice.encode()), False, 1, n_cut=n)
        for n, item in enumerate(prepared.items)
        for c, choice in enumerate(item.choices)
    ]
    model: Any = Scripted(pairs=scores)
    answers = task.answer(prepared, model)
    assert [outcome.value for outcome in answers.outcomes] == [1.0, 0.0]
    assert answers.facts["chance"] == 0.25
    assert answers.facts["n_items_with_cut_context"] == 1
    assert answers.outcomes[1].detail["chosen"] == (wrong.answer + 1) % 4


@pytest.mark.parametrize(
    ("lines", "n", "context"),
    [
        (["a", "bb", "ccc"], 7, "bb\nccc\n"),
        (["a", "bb", "ccc"], 99, "a\nbb\nccc\n"),
        (["a", "", ""], 2, "\n\n"),
        (["long line"], 5, "line\n"),
        (["über"], 4, "ber\n"),
        (["ß"], 2, "\n"),
        ([], 5, ""),
    ],
)
def test_the_last_lines(lines: list[str], n: int, context: str) -> None:
    assert last_lines(lines, n) == context


def functions(held_out: Dataset, documents: list[Document], tokenizer: Any, n: int) -> Any:
    task = CompleteFunction(dataset=held_out, n_items=n, max_new_tokens=8, seed=0)
    return task.prepare(documents, tokenizer).items


def test_prompts_are_beginnings_of_functions(
    held_out: Dataset, programs: list[Document], tokenizer: Any
) -> None:
    for item in functions(held_out, programs, tokenizer, 48):
        prompt = item.function.prompt
        text = next(each.text for each in programs if each.document_id == item.document_id)
        assert prompt.splitlines()[-1] in (
            '    """',
            *(line for line in text.splitlines() if "= other" in line),
        )
        assert prompt == prompt.rstrip()
        assert prompt.split("def ")[1] in text
        if item.function.indentation:
            assert prompt.startswith("class Holder")


SHAPES = '''
class Long(
    object,
):
    def skipped(self):
        """The class has no line of its own."""
        return 1

@decorator
def decorated(a):
    first = a
    return first

def block(a):
    # a comment
    for b in a:
        print(b)

def only_one(a):
    return a

def in_a_line(a): return a; print(a)

def stub(a):
    """Only a docstring."""

def outer():
    def inner():
        x = 1
        return x
    return inner
'''


def test_which_functions_are_asked_about(held_out: Dataset, tokenizer: Any) -> None:
    items = functions(held_out, [document(SHAPES)], tokenizer, 3)
    assert {item.function.prompt for item in items} == {
        "def decorated(a):\n    first = a",
        "def block(a):\n    # a comment",
        "def outer():",
    }


FUNCTION = Function(1, 'def f(a):\n    """Say."""', 0)
SIGNATURE = Function(1, "def f(a):", 0)
METHOD = Function(2, "class A:\n    def f(self):\n        a = 1", 4)


@pytest.mark.parametrize(
    ("function", "completion", "won"),
    [
        (FUNCTION, "", False),  # parses, but nothing was added
        (FUNCTION, "\n", False),
        (FUNCTION, "\n    pass", False),
        (FUNCTION, "\n    ...", False),
        (FUNCTION, '\n    "words"', False),
        (FUNCTION, "\n    # words", False),
        (FUNCTION, "\n    return a", True),
        (FUNCTION, "\n  return a", False),
        (FUNCTION, "\n    return (a", False),
        (FUNCTION, "\n    if a:\n        pass", True),
        (FUNCTION, "\n    return '\\d'", True),  # a warning is no error
        (FUNCTION, "\n    return '\0'", False),
        (FUNCTION, "\n    return " + "(" * 10_000, False),
        (FUNCTION, "\n    return \ufffd", False),
        (SIGNATURE, "", False),
        (SIGNATURE, " pass", False),
        (SIGNATURE, " return a", True),
        (SIGNATURE, "\n    return a", True),
        (METHOD, "", False),
        (METHOD, "\n        return a", True),
        (METHOD, "\n    return a", True),  # parses, as a part of the class; `body_of` takes it away before
    ],
)
def test_what_wins(function: Function, completion: str, won: bool) -> None:
    assert is_won(function, completion) is won


@pytest.mark.parametrize(
    ("text", "finish", "indentation", "body"),
    [
        ("\n    return a", "eos", 0, "\n    return a"),
        ("\n    return a", "length", 0, ""),
        ("\n    b = a\n    retu", "length", 0, "\n    b = a"),
        ("\n    b = a\n", "length", 0, "\n    b = a"),
        ("\n    b = a\nc = 1\n    retu", "length", 0, "\n    b = a"),
        ("\n        b = a\n    def g", "length", 4, "\n        b = a"),
        (
            "\n        b = [\n    ]\n\n  # c\n        d",
            "eos",
            4,
            "\n        b = [\n    ]\n\n  # c\n        d",
        ),
        (" return a", "stop", 0, " return a"),
    ],
)
def test_where_a_function_ends(text: str, finish: Any, indentation: int, body: str) -> None:
    assert body_of(Completion(text=text, ids=(), finish=finish), indentation) == body


def test_completions_by_hand(held_out: Dataset, programs: list[Document], tokenizer: Any) -> None:
    task = CompleteFunction(dataset=held_out, n_items=3, max_new_tokens=8, seed=0)
    prepared = task.prepare(programs, tokenizer)
    pad = " " * (prepared.items[0].function.indentation + 4)
    made = [
        Completion(text=f"\n{pad}return 1", ids=(1, 2), finish="stop"),
        Completion(text="", ids=(), finish="eos", n_cut=2),
        Completion(text=" (", ids=(3,), finish="length", n_moves=1),
    ]
    model: Any = Scripted(completions=made)
    answers = task.answer(prepared, model)
    assert [outcome.value for outcome in answers.outcomes] == [1.0, 0.0, 0.0]
    assert answers.facts == {
        "n_characters": len(made[0].text),
        "n_items_with_cut_prompt": 1,
        "n_items_past_the_context": 1,
    }


ENDS = """
def kept(a):
    for b in a:
        print(b)  # cut within this line, never within the comment

def over_lines(a):
    return (
        a
    )

def only_words(a):
    "nothing to complete"

def in_a_line(a): return a

def two_on_a_line(a):
    b = a; return b

class Wide:
    def method(self):
        if self:
            return self.größe
"""


def test_a_function_is_cut_within_its_last_statement_where_it_does_not_parse(
    held_out: Dataset, tokenizer: Any
) -> None:
    seen = set()
    for seed in range(40):
        task = CompleteFunction(
            dataset=held_out, n_items=2, max_new_tokens=8, seed=seed, shown="all but the end"
        )
        prompts = {item.function.prompt for item in task.prepare([document(ENDS)], tokenizer).items}
        assert all(parse(prompt) is None for prompt in prompts)
        seen |= prompts
    assert {prompt.rsplit("\n", 1)[1].strip() for prompt in seen} == {"print(", "print(b", "return self."}
    assert all(prompt.startswith(("def kept(a):", "class Wide:\n    def method")) for prompt in seen)


@pytest.mark.parametrize(
    ("text", "finish", "won"),
    [
        (")", "stop", True),
        ("b)", "eos", True),
        ("b)", "length", False),  # the statement might have gone on
        ("b", "stop", False),
        ("", "stop", False),
        ("b) + 1", "stop", True),
        ("b)\nprint(", "eos", False),
    ],
)
def test_what_wins_at_the_end(text: str, finish: Any, won: bool) -> None:
    shown = Function(1, "def f(b):\n    print(", 0)
    assert judged(shown, Completion(text=text, ids=(1,), finish=finish), "all but the end")["won"] is won


@pytest.mark.parametrize(
    ("text", "end"),
    [("a)\n", 2), ("a,\n  b)\n", 7), ("\n  a)\n", 5), ("a +\n b)\n", 7), ("a", None)],
)
def test_where_a_statement_can_end(text: str, end: int | None) -> None:
    found = re.search(STOPS["all but the end"], text)
    assert (found and found.start()) == end


def test_an_item_is_worth_the_share_of_its_samples_that_win(
    held_out: Dataset, programs: list[Document], tokenizer: Any
) -> None:
    task = CompleteFunction(
        dataset=held_out, n_items=2, max_new_tokens=8, seed=3, n_samples=2, temperature=0.5
    )
    prepared = task.prepare(programs, tokenizer)
    pad = " " * (prepared.items[0].function.indentation + 4)
    good = Completion(text=f"\n{pad}return 1", ids=(1, 2), finish="stop")
    bad = Completion(text=" (", ids=(3,), finish="stop")
    model: Any = Scripted(completions=[good, bad, bad, bad])
    answers = task.answer(prepared, model)
    assert [outcome.value for outcome in answers.outcomes] == [0.5, 0.0]
    assert [sample["won"] for sample in answers.outcomes[0].detail["samples"]] == [True, False]
    assert (model.sampling.temperature, model.sampling.seed) == (0.5, 3)


def test_statements_are_counted_through_all_blocks() -> None:
    source = (
        "try:\n  a = 1\nexcept E:\n  pass\nelse:\n  b = 2\nfinally:\n  ...\n"
        "match a:\n  case 1:\n    x = lambda: 1\n  case _:\n    'text'\n"
        "async def f():\n  async for a in b:\n    c()\n  else:\n    with a:\n      d = [e for e in f]\n"
    )
    tree = parse(source)
    assert tree is not None
    expected = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt)
        and not isinstance(node, ast.Pass)
        and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    ]
    assert n_statements(tree) == len(expected) == 10


def test_lines_inside_strings_and_line_ends() -> None:
    source = PythonSource.of('a = 1\r\nb = f"""x\n{a}\n""" + \'\'\'\r\n\'\'\'\rc = "\x0c"\nd = """one"""\n')
    assert isinstance(source, PythonSource)
    assert source.inside_strings == {2, 3, 4, 5}
    assert source.lines[5] == 'c = "\x0c"'
    assert source.text(6, 7) == 'c = "\x0c"\nd = """one"""'
