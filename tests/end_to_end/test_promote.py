"""`factory promote`: a name moves only on evidence, and every reason against is told."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.end_to_end.factory import Answered, Line

RULE = """

def promotion():
    from modelfactory.promote import NotWorse, Rule

    return Rule({fields})
"""
BETTER = "better_on=('bits_per_byte',), not_worse_on=(), max_contaminated=0.0"


def with_rule(line: Line, fields: str = BETTER) -> Line:
    line.study.write_text(line.study.read_text() + RULE.format(fields=fields))
    return line


def promote(line: Line, variant: str) -> Answered:
    return line.call("promote", line.study, "--as", "best", "--variant", variant, "--json")


def test_a_name_moves_to_the_better_and_not_back(line: Line) -> None:
    with_rule(line)
    first = promote(line, "low")
    assert first.code == 0, first.err + first.out
    assert (first.json["first"], first.json["findings"]) == (True, [])
    second = promote(line, "high")
    assert second.code == 0, second.err + second.out
    assert (second.json["first"], second.json["was"]) == (False, first.json["checkpoint"])
    assert [finding["verdict"] for finding in second.json["findings"]] == ["better"]
    back = promote(line, "low")
    assert (back.code, back.json["promoted"]) == (1, False)
    assert back.json["reasons"][0].startswith("bits_per_byte: worse, wanted better")
    again = promote(line, "high")
    assert again.code == 1
    assert "stands for this checkpoint already" in again.json["reasons"][0]
    history = json.loads((line.workspace / "names" / "best.json").read_text())
    assert [each["number"] for each in history] == [1, 2]
    recorded = history[1]["evidence"]
    assert recorded["against"] == 1
    assert recorded["rule"]["better_on"] == ["bits_per_byte"]
    assert recorded["contamination"] == {"bits_per_byte": {"n_documents": 4, "n_contaminated": 0}}
    sampled = line.call("sample", "best", "import ", "--max-new-tokens", "2", "--json").json
    assert sampled["checkpoint"] == second.json["checkpoint"]
    text = line.call("promote", line.study, "--as", "best", "--variant", "low").out
    assert "refused: bits_per_byte: worse" in text
    assert "best was not moved" in text


def test_not_worse_asks_for_the_worse_end_of_the_interval(line: Line) -> None:
    with_rule(line, "better_on=(), not_worse_on=(), max_contaminated=0.0")
    assert promote(line, "low").code == 2  # a rule that asks for nothing
    line.edit(line.study, "better_on=()", "better_on=('bits_per_byte',)")
    assert promote(line, "high").code == 0
    line.edit(
        line.study,
        "not_worse_on=(), max",
        "not_worse_on=(NotWorse(task='bits_per_byte', margin=0.1),), max",
    )
    assert "once" in promote(line, "low").err  # a task is asked about in one way


def test_contaminated_training_is_a_reason(line: Line) -> None:
    for path in list(line.corpus.glob("*.py")):  # most copies of held-out files are trained on
        (line.corpus / f"copy_of_{path.name}").write_text(path.read_text() + "# a copy\n")
    with_rule(line)
    assert line.run().code == 0
    answer = promote(line, "low")
    assert answer.code == 1
    assert answer.json["contamination"]["bits_per_byte"]["n_contaminated"] > 0
    assert any("stand in training" in reason for reason in answer.json["reasons"])
    assert not (line.workspace / "names").exists()


def test_what_was_not_run_is_a_reason(fresh: Line) -> None:
    with_rule(fresh)
    answer = fresh.call("promote", fresh.study, "--as", "best", "--variant", "low", "--json")
    assert answer.code == 2
    assert "no workspace" in answer.err


def test_words_that_name_nothing_are_refused(line: Line) -> None:
    assert "docs/how-to/promote.md" in promote(line, "low").err  # the file has no rule
    with_rule(line, BETTER.replace("bits_per_byte", "bits_per_bite"))
    assert "bits_per_byte" in promote(line, "low").err
    line.edit(line.study, "bits_per_bite", "bits_per_byte")
    assert "lowest" in promote(line, "lowest").err
    answer = line.call("promote", line.study, "--as", "best")
    assert "one of low, high" in answer.err
    assert line.call("promote", line.study, "--as", "beef", "--variant", "low").code == 2
