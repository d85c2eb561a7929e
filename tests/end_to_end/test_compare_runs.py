"""`factory compare` over runs of the workspace: leaderboard and items."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.end_to_end.factory import Line


def test_a_leaderboard_has_the_better_first_with_interval_and_compute(line: Line) -> None:
    rows = line.call("compare", "*", "--json").json["leaderboard"]
    assert [row["variant"] for row in rows] == ["high", "low"]
    assert rows[0]["value"] < rows[1]["value"]
    assert rows[0]["interval"][0] < rows[0]["value"] < rows[0]["interval"][1]
    assert rows[0]["runs"] == ["high/seed=1", "high/seed=2"]
    # Equal compute: only the better of the two is on the front.
    assert rows[0]["flops"] == rows[1]["flops"] > 0
    assert [row["pareto"] for row in rows] == [True, False]
    text = line.call("compare", "*").out
    assert "* on the Pareto front" in text
    assert "*  high" in text


def test_words_name_runs_variants_patterns_and_files(line: Line) -> None:
    def runs(*words: object) -> list[str]:
        rows = line.call("compare", *words, "--json").json["leaderboard"]
        return sorted(run for row in rows for run in row["runs"])

    assert runs("low/seed=2") == ["low/seed=2"]
    assert runs("low") == ["low/seed=1", "low/seed=2"]
    assert runs("low/seed=1", "*/seed=2") == ["high/seed=2", "low/seed=1", "low/seed=2"]
    assert len(runs(line.study, "low")) == 4


def test_a_run_that_is_not_there_names_those_that_are(line: Line) -> None:
    answer = line.call("compare", "low/seed=3")
    assert answer.code == 2
    assert "low/seed=2" in answer.err
    answer = line.call("compare", "low", "--step", "7")
    assert answer.code == 2
    assert "step 7" in answer.err


def test_other_items_of_a_task_are_ranked_apart(line: Line) -> None:
    line.edit(line.study, "max_documents=4", "max_documents=3")
    line.edit(line.study, '"low": 1e-3, "high": 3e-3', '"three": 1e-3')
    assert line.run().code == 0
    rows = line.call("compare", "*", "--json").json["leaderboard"]
    assert {(row["variant"], row["n_items"]) for row in rows} == {("low", 4), ("high", 4), ("three", 3)}
    assert len({row["items"] for row in rows}) == 2
    assert [row["pareto"] for row in rows if row["variant"] == "three"] == [True]
    found = line.call("compare", "low/seed=1", "three/seed=1", "--items", "--json").json
    assert found["left_out"] == {"bits_per_byte": "other items, or asked otherwise"}
    assert found["items"] == []


def test_items_where_two_runs_differ_stand_side_by_side(line: Line) -> None:
    found = line.call("compare", "low/seed=1", "high/seed=1", "--items", "--json").json
    assert found["runs"] == ["low/seed=1", "high/seed=1"]
    assert found["n_items"] == {"bits_per_byte": 4}
    gaps = [abs(pair["values"][0] - pair["values"][1]) for pair in found["items"]]
    assert len(gaps) == 4
    assert gaps == sorted(gaps, reverse=True)
    first = found["items"][0]
    assert first["values"][0] == pytest.approx(first["details"][0]["bits"] / first["details"][0]["n_bytes"])
    assert first["item_id"] in line.call("compare", "low/seed=1", "high/seed=1", "--items").out


def test_items_of_other_than_two_runs_are_refused(line: Line) -> None:
    answer = line.call("compare", "low", "high", "--items")
    assert answer.code == 2
    assert "4 runs" in answer.err
