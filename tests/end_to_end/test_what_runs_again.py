"""After an edit, what hangs on it runs again, and nothing else."""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.end_to_end.factory import Line

OPERATOR = "len(text) > SHORTEST"


def kinds(stages: list[dict[str, Any]]) -> dict[str, int]:
    return dict(Counter(stage["kind"] for stage in stages))


def labels(stages: list[dict[str, Any]], kind: str) -> set[str]:
    return {stage["label"] for stage in stages if stage["kind"] == kind}


def test_nothing_runs_again(line: Line) -> None:
    began = time.monotonic()
    answer = line.run()
    assert answer.code == 0
    assert (answer.json["ran"], answer.json["stored"], answer.json["failed"]) == (0, 20, 0)
    assert time.monotonic() - began < 10  # under 3 s on an idle machine; see benchmarks/plan.py


def test_one_learning_rate(line: Line) -> None:
    line.edit(line.study, '"high": 3e-3', '"high": 4e-3')
    left = line.left()
    assert kinds(left) == {"train": 4, "evaluate": 4}
    assert all(" high/" in f" {stage['label']}" for stage in left)
    reasons = {stage["reason"] for stage in left if stage["kind"] == "train"}
    assert reasons == {"field optimizer.lr: 0.003 -> 0.004"}
    assert {s["reason"] for s in left if s["kind"] == "evaluate"} == {"input checkpoint is another"}
    totals = line.plan()["totals"]
    assert (totals["tokens_requested"], totals["tokens_to_train"]) == (4 * 1_024, 2 * 1_024)
    answer = line.run()
    assert (answer.json["ran"], answer.json["stored"]) == (8, 12)
    assert line.left() == []


def test_only_the_steps_that_differ(line: Line) -> None:
    """A cool-down begun two steps later shares the first checkpoint."""
    line.edit(line.study, "decay_steps=2", "decay_steps=1")
    left = line.left()
    assert kinds(left) == {"train": 4, "evaluate": 4}
    assert all(stage["label"].endswith("to step 8") for stage in left if stage["kind"] == "train")
    assert line.plan()["totals"]["tokens_to_train"] == 4 * 512


def test_a_comment_in_a_module_of_the_user(line: Line) -> None:
    line.edit(line.keepers, "SHORTEST = 100\n", "SHORTEST = 100  # characters\n")
    line.edit(line.keepers, '"""Keep what is long enough."""', '"""Keep long texts."""')
    line.edit(line.keepers, 'return text == ""', 'return text != ""')  # nobody calls it
    assert line.left() == []


def test_code_in_a_module_of_the_user(line: Line) -> None:
    """What depends on it is stale, with the reason; equal bytes from the edited code end it there."""
    line.edit(line.keepers, OPERATOR, "len(text) >= SHORTEST")
    left = line.left()
    assert kinds(left) == {"documents": 1, "tokenizer": 1, "tokens": 1, "train": 8, "evaluate": 8}
    assert labels(left, "documents") == {"python (train)"}
    reasons = {stage["kind"]: stage["reason"] for stage in left}
    assert reasons["documents"] == "code: keepers:is_wanted"
    assert reasons["tokens"] == "input documents, tokenizer is rebuilt first; equal bytes keep this"
    answer = line.run()
    assert (answer.json["ran"], answer.json["stored"]) == (1, 19)
    assert line.left() == []


def test_stale_results_are_kept_or_refused_when_asked(line: Line) -> None:
    line.edit(line.keepers, OPERATOR, "len(text) >= SHORTEST")
    refused = line.call("run", line.study, "--on-stale", "fail")
    assert refused.code == 2
    assert "20 stages" not in refused.out
    assert "code: keepers:is_wanted" in refused.err
    kept = line.call("run", line.study, "--on-stale", "keep", "--json")
    assert (kept.code, kept.json["ran"], kept.json["stored"]) == (0, 0, 20)
    assert len(line.left()) == 19


def test_code_that_changes_what_is_kept(line: Line) -> None:
    line.edit(line.keepers, OPERATOR, "len(text) > 6_000")
    answer = line.run()
    assert answer.code == 0
    assert (answer.json["ran"], answer.json["stored"]) == (19, 1)
    assert line.left() == []


def test_a_touched_source(line: Line) -> None:
    for path in line.corpus.iterdir():
        os.utime(path)
    assert line.left() == []


def test_one_byte_of_a_source(line: Line) -> None:
    """Each dataset reads the file, so both are made anew; only the one that holds it has other bytes."""
    held = held_out_file(line)
    held.write_bytes(held.read_bytes() + b"\n")
    left = line.left()
    assert len(left) == 20
    first = {stage["label"]: stage["reason"] for stage in left if stage["kind"] == "documents"}
    assert first == dict.fromkeys(("python (train)", "python (held_out)"), "input source0 is another")


def held_out_file(line: Line) -> Any:
    import hashlib

    from modelfactory.data import Split

    split = Split(part="held_out", held_out_share=0.25)
    files = sorted(line.corpus.iterdir())
    return next(f for f in files if split.holds(hashlib.sha256(f.read_bytes()).hexdigest()))


def test_a_file_that_no_pattern_names(line: Line) -> None:
    (line.corpus / "notes.txt").write_text("not Python\n")
    assert line.left() == []


def test_another_task_evaluates_old_checkpoints(line: Line) -> None:
    task = "NextLine(dataset=HELD_OUT, n_items=6, seed=0),"
    line.edit(line.study, "# more evaluations", task)
    left = line.left()
    assert kinds(left) == {"evaluate": 8}
    assert all(stage["label"].startswith("next_line of ") for stage in left)
    assert line.plan()["totals"]["tokens_to_train"] == 0
    answer = line.run()
    assert answer.code == 0, answer.err
    assert (answer.json["ran"], answer.json["stored"]) == (8, 20)
    compared = line.call("compare", line.study, "--json").json
    assert {each["task"] for each in compared["comparisons"]} == {"bits_per_byte", "next_line"}


def test_longer_runs_go_on_from_what_is_there(line: Line) -> None:
    """The same schedule over its first steps: WSD holds its rate until the end is near."""
    line.edit(line.study, "n_tokens=8 * 128", "n_tokens=16 * 128")
    line.edit(line.study, "n_checkpoints=2", "n_checkpoints=4")
    left = line.left()
    assert kinds(left) == {"train": 12, "evaluate": 12}
    assert not any(stage["label"].endswith("to step 4") for stage in left)
