"""Code that is executed: HumanEval's own solutions, samples that misbehave, the arithmetic of pass@k."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from modelfactory.errors import SandboxMissing, SourceError, SpecError
from modelfactory.evaluate import CodeExecution, ItemFile
from modelfactory.evaluate.code_execution import assembled, mean_pass_at_k, pass_at_k, prompt_of
from modelfactory.evaluate.item_files import Row, read_rows
from modelfactory.generate.answers import Completion
from modelfactory.sandbox import require_sandbox

if TYPE_CHECKING:
    from collections.abc import Sequence

HUMANEVAL = Path(__file__).parent / "humaneval" / "HumanEval.jsonl.gz"
TASK = CodeExecution(
    items=ItemFile(path=str(HUMANEVAL)), style="HumanEval", max_new_tokens=8, seed=1, timeout_s=30.0
)
EXAMPLE = Row(
    "example.jsonl",
    1,
    {
        "prompt": "def return1():\n",
        "test": "def check(candidate):\n    assert candidate() == 1\n",
        "entry_point": "return1",
        "canonical_solution": "    return 1\n",
    },
)
MBPP = {"text": "Add two numbers.", "test_list": ["assert add(1, 2) == 3", "assert add(0, 0) == 0"]}


@pytest.fixture(scope="module")
def sandbox() -> None:
    try:
        require_sandbox()
    except SandboxMissing as missing:
        pytest.skip(f"programs cannot be sandboxed here: {missing}")


@pytest.fixture(scope="module")
def rows() -> tuple[Row, ...]:
    return read_rows(HUMANEVAL, HUMANEVAL.read_bytes())


@pytest.mark.slow
@pytest.mark.usefixtures("sandbox")
def test_all_solutions_of_humaneval_pass(rows: tuple[Row, ...]) -> None:
    outcomes = TASK.executed(rows, [row.values["canonical_solution"] for row in rows])
    assert sum(outcome.passed for outcome in outcomes) == len(rows) == 164


@pytest.mark.slow
@pytest.mark.usefixtures("sandbox")
def test_no_empty_solution_of_humaneval_passes(rows: tuple[Row, ...]) -> None:
    assert sum(outcome.passed for outcome in TASK.executed(rows, [""] * len(rows))) == 0


@pytest.mark.usefixtures("sandbox")
def test_samples_that_misbehave_are_half_right(tmp_path: Path) -> None:
    """Six samples of the kinds that human-eval ships as its example."""
    kept = tmp_path / "kept"
    kept.touch()
    samples = [
        f"    import subprocess\n    subprocess.check_output('rm -rf {tmp_path}', shell=True)",
        "    import time\n    time.sleep(60)\n    return 1",
        "    return input('enter a number')",
        "    return 1",
        "  return 1",
        "\treturn 1",
    ]
    task = CodeExecution(items=TASK.items, style="HumanEval", max_new_tokens=8, seed=1, timeout_s=5.0)
    outcomes = task.executed([EXAMPLE] * 6, samples)
    assert [outcome.verdict for outcome in outcomes] == ["failed", "timed out", "failed", *["passed"] * 3]
    assert mean_pass_at_k(1, [outcome.passed for outcome in outcomes], 1) == 0.5
    assert kept.exists()


@pytest.mark.usefixtures("sandbox")
def test_every_sample_of_an_item_is_kept_with_what_became_of_it() -> None:
    task = CodeExecution(
        items=TASK.items, style="HumanEval", max_new_tokens=8, seed=1, n_samples=4, k=(2, 1), temperature=0.8,
        timeout_s=30.0,
    )  # fmt: skip
    texts = ["    return 1", "    return 2", "    return 1", "   retur"]
    prepared = task.prepare({"items": [EXAMPLE]}, Bytes())
    answers = task.answer(prepared, Writes(texts))  # type: ignore[arg-type]
    (outcome,) = answers.outcomes
    assert outcome.value == pytest.approx(5 / 6)
    assert answers.facts["pass_at_k"] == {"2": pytest.approx(5 / 6), "1": 0.5}
    assert answers.facts["verdicts"] == {"failed": 2, "passed": 2}
    assert "AssertionError" in outcome.detail["samples"][1]["stderr"]


class Bytes:
    """A tokenizer of bytes."""

    eos_id = 256
    vocab_size = 257

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [list(text.encode()) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode()


class Writes:
    """A model that writes given texts."""

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts

    def generate_from(self, asked: Sequence[Any], sampling: Any) -> list[Completion]:
        del sampling
        assert len(asked) == len(self.texts)
        return [
            Completion(text=text, ids=tuple(text.encode()), finish="stop", n_cut=0, n_moves=0)
            for text in self.texts
        ]


@pytest.mark.usefixtures("sandbox")
def test_mbpp_is_asked_in_a_docstring_and_tested_by_its_list() -> None:
    row = Row("mbpp.jsonl", 1, MBPP)
    assert prompt_of(row, "MBPP") == '"""\nAdd two numbers.\nassert add(1, 2) == 3\n"""\n'
    task = CodeExecution(items=TASK.items, style="MBPP", max_new_tokens=8, seed=1, timeout_s=30.0)
    right, wrong = task.executed([row, row], ["def add(a, b):\n    return a + b", "def add(a, b): return 3"])
    assert (right.passed, wrong.passed) == (True, False)


@pytest.mark.parametrize(
    ("n", "c", "k", "wanted"), [(10, 3, 5, 0.916667), (200, 20, 10, 0.660226), (5, 0, 5, 0.0), (5, 5, 1, 1.0)]
)
def test_pass_at_k_is_the_unbiased_estimate(n: int, c: int, k: int, wanted: float) -> None:
    assert pass_at_k(n, c, k) == pytest.approx(wanted, abs=5e-7)
    product = 1 - math.prod(1 - k / i for i in range(n - c + 1, n + 1))
    assert pass_at_k(n, c, k) == pytest.approx(product)


def test_the_mean_of_items() -> None:
    assert mean_pass_at_k(2, [0, 1, 2], 1) == 0.5


@pytest.mark.parametrize(
    ("style", "values", "told"),
    [
        ("HumanEval", {"prompt": "def f():\n", "test": "x"}, "entry_point"),
        ("HumanEval", {"prompt": " ", "test": "x", "entry_point": "f"}, "prompt"),
        ("MBPP", {"text": "Add.", "test_list": []}, "test_list"),
        ("MBPP", {"text": "Add.", "test_list": "assert f()"}, "test_list"),
    ],
)
def test_lines_that_are_no_items_are_named(style: Any, values: dict[str, Any], told: str) -> None:
    with pytest.raises(SourceError, match=rf"items.jsonl, line 7.*{told}"):
        assembled(Row("items.jsonl", 7, values), style, "")


def test_without_a_sandbox_it_is_refused_before_work(
    rows: tuple[Row, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxMissing, match="bubblewrap"):
        TASK.check_rows("items", rows)


@pytest.mark.parametrize(
    ("change", "place"),
    [({"k": (2,)}, "k"), ({"k": ()}, "k"), ({"n_samples": 2}, "temperature"), ({"timeout_s": 0.0}, "wall_s")],
)
def test_what_cannot_be_meant_is_refused(change: dict[str, Any], place: str) -> None:
    given: dict[str, Any] = {"items": TASK.items, "style": "HumanEval", "max_new_tokens": 8, "seed": 1}
    with pytest.raises(SpecError, match=place):
        CodeExecution(**(given | change))
