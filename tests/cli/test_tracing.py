"""What is shown of a failed stage's log."""

from __future__ import annotations

import json
import traceback
from typing import TYPE_CHECKING

import pytest

from modelfactory.cli.tracing import telling
from modelfactory.spec.walking import __file__ as ours

if TYPE_CHECKING:
    from pathlib import Path


def nested(levels: int) -> None:
    if levels:
        nested(levels - 1)
    json.loads("not json")


def log_of(levels: int) -> list[str]:
    try:
        nested(levels)
    except ValueError as error:
        return ["a line before", *"".join(traceback.format_exception(error)).splitlines()]
    raise AssertionError


@pytest.mark.parametrize("levels", [0, 3, 30])
def test_the_users_function_and_what_was_raised_are_shown(levels: int) -> None:
    shown = telling(log_of(levels), 10)
    assert shown[0].endswith("in nested")
    assert shown[1].strip() == 'json.loads("not json")'
    assert shown[-2] == "  ..."  # frames of the standard library
    assert shown[-1].startswith("json.decoder.JSONDecodeError: Expecting value")
    assert len(shown) <= 10


def test_the_cause_of_what_was_raised_is_looked_through_as_well() -> None:
    def frame(file: str) -> list[str]:
        return [f'  File "{file}", line 7, in run', "    call()"]

    first = ["Traceback (most recent call last):", *frame(ours), *frame("/home/me/mine.py"), "KeyError: 1"]
    second = ["", "The above exception was ...", "", first[0], *frame(ours), "StageFailed: 1", "of 2"]
    assert telling([*first, *second], 10) == [*frame("/home/me/mine.py"), "  ...", "StageFailed: 1", "of 2"]
    assert telling([*first, *second], 3) == [frame("/home/me/mine.py")[0], "StageFailed: 1", "of 2"]


def test_without_a_frame_of_the_user_the_innermost_is_shown() -> None:
    lines = ["Traceback (most recent call last):", f'  File "{ours}", line 7, in run', "    call()", "E: 1"]
    assert telling(lines, 10) == lines[1:]


@pytest.mark.parametrize(("n", "shown"), [(2, ["b", "c"]), (9, ["a", "b", "c"]), (0, [])])
def test_of_a_log_without_a_traceback_the_end_is_shown(n: int, shown: list[str]) -> None:
    assert telling(["a", "b", "c"], n) == shown


def test_the_file_of_a_study_is_the_users(tmp_path: Path) -> None:
    lines = ["Traceback (most recent call last):", f'  File "{tmp_path}/study.py", line 1, in mine', "E: 1"]
    assert telling(lines, 5)[0] == lines[1]
