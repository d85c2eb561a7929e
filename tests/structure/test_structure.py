"""What holds for the whole tree: floors, documents that speak of what exists, planning without torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import modelfactory
from modelfactory import data, evaluate, tokens, train
from modelfactory.experiment import Comparison, Experiment

CHECKOUT = Path(__file__).parents[2]
SOURCE = Path(modelfactory.__file__).parent


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )


def test_imports_go_down_only() -> None:
    found = run("-c", "from importlinter.cli import lint_imports_command; lint_imports_command()")
    assert found.returncode == 0, found.stdout


def test_the_command_reference_is_that_of_the_parser() -> None:
    written = (CHECKOUT / "docs" / "commands.md").read_text(encoding="utf-8")
    made = run("tools/command_reference.py")
    assert made.returncode == 0, made.stderr
    assert made.stdout == written, "run `make docs`"


def test_the_readme_names_the_two_commands() -> None:
    readme = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in readme
    assert "make test" in readme


def test_planning_imports_no_torch() -> None:
    program = (
        "import sys; from modelfactory.cli import main; main(['check', 'experiments/first_question.py']); "
        "heavy = {'torch', 'daft', 'transformers', 'plotly'} & set(sys.modules); assert not heavy, heavy"
    )
    found = run("-c", program)
    assert found.returncode == 0, found.stderr


AUTHORS = (
    *(
        Experiment,
        Comparison,
        data.Dataset,
        data.Files,
        data.Jsonl,
        data.Parquet,
        data.Split,
        data.ExactDedup,
    ),
    *(data.Keep, data.MinLength, data.MaxLength, data.MaxLineLength, data.MinAlphanumeric),
    *(tokens.BPE, tokens.TokenizerFile, tokens.Part, tokens.Mixture),
    *(train.Training, train.AdamW, train.Cosine, train.WSD),
    *(evaluate.BitsPerByte, evaluate.NextLine, evaluate.CompleteFunction),
)
"""Specs that stand in experiment files."""
GLOSSARY = frozenset(
    [
        "dataset",
        "filters",
        "sources",
        "dedup",
        "split",
        "optimizer",
        "schedule",
        "seed",
        "name",
        "training",
        "model",
        "mixture",
        "tokenizer",
        "parts",
        "not_utf8",
        "part",
        "precision",
        "variant",
        "weight_decay",
        "beta1",
        "beta2",
        "eps",
        "warmup_steps",
        "decay_steps",
        "final_share",
        "n_bytes",
        "n_characters",
        "n_items",
        "n_choices",
        "max_new_tokens",
        "unit",
    ]
)
"""Names that mean one thing in the whole package (docs/concepts.md), or that a class docstring is about."""


@pytest.mark.parametrize("spec", AUTHORS, ids=lambda spec: spec.__name__)
def test_a_string_says_what_a_field_means(spec: type) -> None:
    path = Path(sys.modules[spec.__module__].__file__ or "")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    (node,) = [n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == spec.__name__]
    assert ast.get_docstring(node)
    silent = [
        item.target.id
        for item, after in zip(node.body, [*node.body[1:], None], strict=True)
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and not is_string(after)
    ]
    assert set(silent) <= GLOSSARY


def is_string(node: ast.stmt | None) -> bool:
    value = node.value if isinstance(node, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def test_every_verb_is_in_the_documents() -> None:
    from modelfactory.cli.arguments import make_parser

    verbs = next(a.choices for a in make_parser()._actions if a.choices and "run" in a.choices)
    written = (CHECKOUT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert [verb for verb in verbs or () if f"## factory {verb}\n" not in written] == []


def test_completion_is_printed() -> None:
    found = run("-c", "from modelfactory.cli import main; main(['--print-completion', 'bash'])")
    assert found.returncode == 0, found.stderr
    assert "_factory" in found.stdout or "complete" in found.stdout


def test_names_that_authors_import() -> None:
    assert set(modelfactory.__all__) >= {"Experiment", "Comparison"}


def test_nothing_names_this_machine() -> None:
    """Sources hold no absolute paths of homes or work folders."""
    texts = {path: path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")}
    places = tuple(f"/{name}/" for name in ("home", "work", "root"))
    assert [path for path, text in texts.items() if any(place in text for place in places)] == []
