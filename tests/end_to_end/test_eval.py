"""`factory eval`: any stored checkpoint, any task, kept like the evaluations of experiments."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.end_to_end.factory import Line
from tests.end_to_end.test_damage import flip_a_byte, stages_of
from tests.evaluate.harness_material import write_tasks

if TYPE_CHECKING:
    from tests.end_to_end.factory import Answered

TASKS = '''\
"""Tasks beside the study."""

from modelfactory.evaluate import {imports}
from tiny_study import HELD_OUT

LINES = NextLine(dataset=HELD_OUT, n_items=6, seed=0)
QUIZ = MultipleChoice(name="quiz", items=ItemFile(path="quiz.jsonl"), normalisation="none", n_shot=0)
N_LINES = 6
'''
IMPORTS = "ItemFile, MultipleChoice, NextLine"
ITEMS = [{"query": f"x = {n}\ny =", "choices": [" 1", " x", " x + 1"], "gold": n % 3} for n in range(9)]


@pytest.fixture
def asked(line: Line) -> Line:
    """Return a finished study with a file of tasks beside it."""
    (line.folder / "beside.py").write_text(TASKS.format(imports=IMPORTS))
    (line.folder / "raises.py").write_text("QUIZ = 1 / 0\n")
    write_items(line, ITEMS)
    return line


def write_items(line: Line, items: list[dict[str, object]]) -> None:
    text = "".join(json.dumps(item) + "\n" for item in items)
    (line.folder / "quiz.jsonl").write_text(text)


def evaluate(line: Line, *words: object) -> Answered:
    return line.call("eval", *words, "--json")


def test_scores_are_stored_and_never_asked_again(asked: Line) -> None:
    words = ("high/seed=1", "--task", "beside.py:QUIZ", "--task", "beside.py:LINES")
    first = evaluate(asked, *words)
    assert first.code == 0, first.err
    quiz, lines = first.json["evaluations"]
    assert (quiz["task"], quiz["metric"], quiz["n_items"], quiz["was_stored"]) == (
        "quiz",
        "accuracy",
        9,
        False,
    )
    assert (lines["task"], lines["n_items"]) == ("next_line", 6)
    value = quiz["value"]
    assert quiz["stderr"] == pytest.approx((value * (1 - value) / 8) ** 0.5)
    assert Path(quiz["items"]).is_file()
    again = evaluate(asked, *words)
    assert again.json["ran"] == 0
    assert [each["was_stored"] for each in again.json["evaluations"]] == [True, True]
    text = asked.call("eval", *words).out
    assert "quiz" in text
    assert "stored before" in text


def test_an_experiment_that_asks_it_later_finds_it(asked: Line) -> None:
    assert evaluate(asked, "high/seed=1", "--task", "beside.py:LINES").code == 0
    asked.edit(asked.study, "# more evaluations", "NextLine(dataset=HELD_OUT, n_items=6, seed=0),")
    left = asked.left()
    n_checkpoints = len([s for s in asked.plan()["stages"] if s["kind"] == "train"])
    assert len(left) == n_checkpoints - 1


def test_compare_sees_it_and_gc_and_the_next_run_leave_it(asked: Line) -> None:
    for run in ("low/seed=1", "high/seed=1"):
        assert evaluate(asked, run, "--task", "beside.py:QUIZ").code == 0
    assert asked.run().json["ran"] == 0
    assert asked.call("gc").code == 0
    rows = asked.call("compare", "*", "--json").json["leaderboard"]
    assert {row["variant"] for row in rows if row["task"] == "quiz"} == {"low", "high"}
    assert evaluate(asked, "low/seed=1", "--task", "beside.py:QUIZ").json["ran"] == 0


def test_a_changed_file_of_items_is_asked_anew_and_told_as_that(asked: Line) -> None:
    assert evaluate(asked, "low/seed=1", "--task", "beside.py:QUIZ").code == 0
    write_items(asked, ITEMS[:8])
    found = evaluate(asked, "low/seed=1", "--task", "beside.py:QUIZ").json["evaluations"][0]
    assert (found["n_items"], found["was_stored"]) == (8, False)
    rows = asked.call("compare", "low/seed=1", "--json").json["leaderboard"]
    assert [row["n_items"] for row in rows if row["task"] == "quiz"] == [8]


def test_a_checkpoint_by_its_fingerprint_and_a_yaml_of_lm_eval(asked: Line) -> None:
    pytest.importorskip("lm_eval")
    write_tasks(asked.folder / "tasks")
    trained = [s for s in asked.plan()["stages"] if s["kind"] == "train"]
    yaml = next(iter(sorted((asked.folder / "tasks").glob("*choice*.yaml"))))
    found = evaluate(asked, trained[0]["id"][:12], "--task", yaml, "--limit", "3")
    assert found.code == 0, found.err
    assert found.json["checkpoint"] == trained[0]["id"]
    assert found.json["evaluations"][0]["n_items"] == 3
    assert evaluate(asked, trained[0]["id"][:12], "--task", yaml, "--limit", "3").json["ran"] == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("high/seed=9", "--task", "beside.py:QUIZ"), "high/seed=2"),
        (("high/seed=1", "--task", "beside.py:QIUZ"), "QUIZ"),
        (("high/seed=1", "--task", "beside.py:N_LINES"), "found int"),
        (("high/seed=1", "--task", "beside.py"), "LINES, QUIZ"),
        (("high/seed=1", "--task", "besides.py:QUIZ"), "beside.py"),
        (("high/seed=1", "--task", "beside.py:QUIZ", "--task", "beside.py:QUIZ"), "twice"),
        (("high/seed=1", "--task", "beside.py:QUIZ", "--limit", "3"), "--limit"),
        (("high/seed=1", "--task", "beside.py:QUIZ", "--allow-unsandboxed"), "no task that executes"),
        (("high/seed=1", "--task", "arc_easi"), "arc_easy"),
        (("high/seed=1", "--task", "raises.py:QUIZ"), "raises.py:1: found ZeroDivisionError"),
        (("high/seed=1", "--task", "not_there.yaml"), "not_there.yaml"),
        (("corpus", "--task", "beside.py:QUIZ"), "factory import corpus"),
    ],
)
def test_wrong_words(asked: Line, words: tuple[str, ...], told: str) -> None:
    answer = asked.call("eval", *words)
    assert answer.code == 2, answer.err
    assert told in answer.err


def test_a_folder_of_the_name_of_a_run_is_no_hindrance(asked: Line) -> None:
    (asked.folder / "low").mkdir()
    (asked.folder / "low" / "seed=1").mkdir()
    assert evaluate(asked, "low/seed=1", "--task", "beside.py:QUIZ").code == 0


def test_faulty_items_are_refused_with_their_lines_before_any_work(asked: Line) -> None:
    write_items(asked, [ITEMS[0], {"query": "x", "choices": [" 1", " 2"]}, ITEMS[1] | {"choices": []}])
    answer = asked.call("eval", "high/seed=1", "--task", "beside.py:QUIZ")
    assert answer.code == 2
    assert "quiz.jsonl, line 2" in answer.err


def test_a_damaged_checkpoint_is_refused(asked: Line) -> None:
    trained = stages_of(asked, "train")[-1]
    largest = max(
        (path for path in trained.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size
    )
    flip_a_byte(largest)
    answer = asked.call("eval", trained.name[:12], "--task", "beside.py:QUIZ")
    assert answer.code != 0
    assert "damaged" in answer.err


def test_two_at_once_ask_once_and_a_killed_one_leaves_nothing_broken(asked: Line) -> None:
    words = ("low/seed=2", "--task", "beside.py:QUIZ", "--json")
    killed = asked.start("eval", *words)
    time.sleep(1.0)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    both = [asked.start("eval", *words) for _ in range(2)]
    told = [json.loads(process.communicate(timeout=120)[0]) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum(each["ran"] for each in told) <= 1
    assert told[0]["evaluations"][0]["value"] == told[1]["evaluations"][0]["value"]
    with sqlite3.connect(asked.workspace / "factory.db") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


CODE = """
from modelfactory.evaluate import CodeExecution

CODE = CodeExecution(items=ItemFile(path="code.jsonl"), style="HumanEval", max_new_tokens=4, seed=0)
"""
PROGRAM = {"prompt": "def one():\n", "test": "def check(f):\n    assert f() == 1\n", "entry_point": "one"}


@pytest.fixture
def coding(asked: Line) -> Line:
    """Return the study where no sandbox can be found, with a task that executes programs."""
    file = asked.folder / "beside.py"
    file.write_text(file.read_text() + CODE)
    (asked.folder / "code.jsonl").write_text(json.dumps(PROGRAM | {"task_id": "one"}) + "\n")
    return Line(asked.folder, env={"PATH": str(asked.folder)})


def test_programs_run_without_a_sandbox_only_where_that_is_allowed(coding: Line) -> None:
    words = ("high/seed=1", "--task", "beside.py:CODE", "--json")
    refused = coding.ask("eval", *words)
    assert refused.code == 2, refused.err
    assert "--allow-unsandboxed" in refused.err
    allowed = coding.ask("eval", *words, "--allow-unsandboxed")
    assert allowed.code == 0, allowed.err
    assert allowed.json["evaluations"][0]["n_items"] == 1
    # which of the two it was is no part of what the evaluation is
    assert coding.ask("eval", *words, "--allow-unsandboxed").json["ran"] == 0


def test_a_run_that_executes_programs_says_so_before_it_begins(coding: Line) -> None:
    coding.edit(coding.study, "# more evaluations", "__import__('beside').CODE,")
    (coding.folder / "beside.py").write_text("from modelfactory.evaluate import ItemFile\n" + CODE)
    refused = coding.ask("run", coding.study, "--json")
    assert refused.code == 2, refused.err
    assert "--allow-unsandboxed" in refused.err
    ran = coding.ask("run", coding.study, "--json", "--allow-unsandboxed")
    assert (ran.code, ran.json["failed"]) == (0, 0), ran.err
    assert ran.json["ran"] > 0
    again = coding.ask("run", coding.study, "--json", "--allow-unsandboxed")
    assert (again.code, again.json["ran"]) == (0, 0)
