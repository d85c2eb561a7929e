"""What README and docs say is run: experiment files are checked, Python is executed, commands are parsed.

A fenced block counts when the line before it is `<!-- runnable -->` (Python, executed; the blocks of a page
are one program) or `<!-- runnable: NAME.py -->` (a file of that name; `factory check` when it declares
experiments). All pages share one folder, in which the first experiment's texts lie.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from modelfactory.cli import main
from modelfactory.cli.arguments import make_parser

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GENERATED = DOCS / "commands.md"
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *DOCS.rglob("*.md")])
TUTORIAL = DOCS / "first-experiment.md"
TO_FOLLOW = {ROOT / "README.md", TUTORIAL, *(DOCS / "how-to").glob("*.md")}
"""Pages whose every snippet a reader types in."""

BLOCK = re.compile(
    r"^<!-- runnable(?:: (?P<name>\w+\.py))? -->\n+```python\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


class Block(NamedTuple):
    page: Path
    name: str
    """Of a file; empty where the block is executed."""
    text: str


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


BLOCKS = [
    Block(page, found["name"] or "", found["text"])
    for page in PAGES
    for found in BLOCK.finditer(page.read_text(encoding="utf-8"))
]
FILES = [block for block in BLOCKS if block.name]
EXPERIMENTS = [block for block in FILES if "def experiments()" in block.text]
PROGRAMS = {page: "\n".join(b.text for b in BLOCKS if b.page == page and not b.name) for page in PAGES}

RUNNER = """
import json, sys, traceback
failed = {}
for page, program in json.load(sys.stdin).items():
    try:
        exec(compile(program, page, "exec"), {"__name__": "__main__"})
    except BaseException:
        failed[page] = traceback.format_exc()
print(json.dumps(failed))
"""


def execute(pages: list[Path], folder: Path) -> dict[str, str]:
    """Run the program of each page, all in one process, which imports torch once; return what failed."""
    done = subprocess.run(
        [sys.executable, "-c", RUNNER],
        input=json.dumps({name_of(page): PROGRAMS[page] for page in pages}),
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    failed: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return failed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reader's folder after all files of all pages were written, and the texts of the first experiment."""
    folder = tmp_path_factory.mktemp("reader")
    for block in FILES:
        (folder / block.name).write_text(block.text, encoding="utf-8")
    assert execute([TUTORIAL], folder) == {}
    return folder


def test_files_of_different_pages_have_different_names() -> None:
    names = [block.name for block in FILES]
    assert len(set(names)) == len(names)


def test_snippets_run(folder: Path) -> None:
    pages = [page for page in PAGES if PROGRAMS[page] and page != TUTORIAL]
    assert pages
    assert execute(pages, folder) == {}


@pytest.mark.parametrize("block", EXPERIMENTS, ids=lambda block: block.name)
def test_experiment_files_have_no_fault(block: Block, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if PROGRAMS[block.page] and "TokenizerFile" in block.text:
        assert execute([block.page], folder) == {}  # its page makes the file it names
    modules = {Path(each.name).stem for each in FILES}
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(["check", block.name])
    finally:
        for module in modules & sys.modules.keys():
            del sys.modules[module]
    assert code == 0, f"{name_of(block.page)}: {err.getvalue()}"


@pytest.mark.parametrize("page", [page for page in PAGES if page in TO_FOLLOW], ids=name_of)
def test_pages_to_follow_hold_nothing_that_is_not_run(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert len(PYTHON.findall(text)) == sum(block.page == page for block in BLOCKS)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_snippets_import_what_exists(page: Path) -> None:
    """Reference pages hold fragments: they cannot be run, but they are Python and their imports are there."""
    for text in PYTHON.findall(page.read_text(encoding="utf-8")):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("modelfactory"):
                module = importlib.import_module(node.module or "")
                missing = [alias.name for alias in node.names if not hasattr(module, alias.name)]
                assert missing == [], node.module


def command_lines(page: Path) -> list[str]:
    consoles = CONSOLE.findall(page.read_text(encoding="utf-8"))
    return [line[2:] for text in consoles for line in text.splitlines() if line.startswith("$ factory")]


@pytest.mark.parametrize("page", [page for page in PAGES if command_lines(page)], ids=name_of)
def test_command_lines_are_understood(page: Path) -> None:
    for line in command_lines(page):
        try:
            make_parser().parse_args(shlex.split(line, comments=True)[1:])
        except SystemExit as error:
            pytest.fail(f"{name_of(page)}: {line} ({error})")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_resolve(page: Path) -> None:
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    targets = [target for target in LINK.findall(text) if not re.match(r"[a-z]+:", target)]
    broken = []
    for target in targets:
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        if not found.exists():
            broken.append(target)
        elif anchor and found.suffix == ".md" and anchor not in anchors(found):
            broken.append(f"{target} (no such heading)")
    assert not broken


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_verb_is_told_about() -> None:
    told = "\n".join(page.read_text(encoding="utf-8") for page in PAGES if page != GENERATED)
    actions = [action for action in make_parser()._actions if action.choices and action.dest != "help"]
    verbs = [verb for action in actions for verb in action.choices if isinstance(action.choices, dict)]
    assert verbs
    assert [verb for verb in verbs if f"factory {verb}" not in told] == []


def test_every_page_is_in_the_index() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    pages = [str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md") if page.name != "README.md"]
    assert [page for page in pages if f"]({page})" not in index] == []


def test_every_benchmark_has_a_section() -> None:
    text = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    scripts = [path.name for path in (ROOT / "benchmarks").glob("*.py") if not path.name.startswith("_")]
    assert [script for script in scripts if f"`benchmarks/{script}`" not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_pages_name_no_machine(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"/(?:work|home|root|Users)/\S*|pypi\.org\S*", text) == []
