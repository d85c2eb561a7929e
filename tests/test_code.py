"""Which edits of a user's module count."""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import TYPE_CHECKING

import pytest

from modelfactory.code import Parsed, changes, trace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MODULE = '''
"""A user's module."""
import math
from other_code import shared as imported
import other_code

LIMIT = 3

def keep(text: str) -> bool:
    """Keep long texts."""
    return helper(text) > LIMIT

def helper(text):
    # count
    return len(text) + imported() + other_code.by_attribute()

def unrelated():
    return 1
'''
OTHER = """
def shared():
    return 0

def by_attribute():
    return 0

def nobody_calls():
    return 0
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "user_code.py").write_text(MODULE)
    (tmp_path / "other_code.py").write_text(OTHER)
    sys.path.insert(0, str(tmp_path))
    importlib.invalidate_caches()
    yield tmp_path
    sys.path.remove(str(tmp_path))
    sys.modules.pop("user_code", None)
    sys.modules.pop("other_code", None)


def edited(folder: Path, name: str, before: str, after: str) -> list[str]:
    """Return what the trace says changed when `before` becomes `after`."""
    old = trace(["user_code:keep"])
    path = folder / name
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 1_000_000))
    return changes(old.definitions, trace(["user_code:keep"]).definitions)


def test_reaches_what_is_called(folder: Path) -> None:
    assert set(trace(["user_code:keep"]).definitions) == {
        "user_code:keep",
        "user_code:helper",
        "user_code:LIMIT",
        "other_code:shared",
        "other_code:by_attribute",
    }


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("user_code.py", "# count", "# count the characters"),
        ("user_code.py", "Keep long texts.", "Keep texts that are long."),
        ("user_code.py", "> LIMIT", ">  LIMIT"),
        ("user_code.py", "text: str", "text: 'str'"),
        ("user_code.py", "return 1", "return 2"),
        ("other_code.py", "def nobody_calls():\n    return 0", "def nobody_calls():\n    return 9"),
    ],
)
def test_what_does_not_count(folder: Path, name: str, before: str, after: str) -> None:
    assert edited(folder, name, before, after) == []


@pytest.mark.parametrize(
    ("name", "before", "after", "named"),
    [
        ("user_code.py", "> LIMIT", ">= LIMIT", "user_code:keep"),
        ("user_code.py", "LIMIT = 3", "LIMIT = 4", "user_code:LIMIT"),
        ("user_code.py", "len(text)", "2 * len(text)", "user_code:helper"),
        ("other_code.py", "def shared():\n    return 0", "def shared():\n    return 1", "other_code:shared"),
        (
            "other_code.py",
            "by_attribute():\n    return 0",
            "by_attribute():\n    return 1",
            "other_code:by_attribute",
        ),
    ],
)
def test_what_counts(folder: Path, name: str, before: str, after: str, named: str) -> None:
    assert edited(folder, name, before, after) == [named]


def test_libraries_have_versions() -> None:
    found = trace(["modelfactory.data.stage:run"]).libraries
    assert "pyarrow" in found
    assert "json" not in found


def test_a_class_variable_is_code(folder: Path) -> None:
    text = """
from dataclasses import dataclass
from typing import ClassVar

@dataclass(frozen=True)
class Spec:
    x: int = 1
    flag: ClassVar[bool] = True
"""
    (folder / "user_code.py").write_text(text)
    first = trace(["user_code:Spec"]).definitions
    (folder / "user_code.py").write_text(text.replace("x: int = 1", "x: int = 2; y: int = 3"))
    os.utime(folder / "user_code.py", ns=(1, 1))
    assert trace(["user_code:Spec"]).definitions == first
    (folder / "user_code.py").write_text(text.replace("= True", "= False"))
    os.utime(folder / "user_code.py", ns=(2, 2))
    assert trace(["user_code:Spec"]).definitions != first


def test_what_was_parsed_is_kept_by_size_and_time(folder: Path) -> None:
    for name in ("user_code.py", "other_code.py"):
        os.utime(folder / name, ns=(1, 10**18))  # long ago
    parsed = Parsed()
    fresh = trace(["user_code:keep"], parsed)
    assert parsed.has_grown
    kept = json.loads(json.dumps(parsed.to_json()))
    again = Parsed(kept)
    assert trace(["user_code:keep"], again) == fresh
    assert not again.has_grown
    text = (folder / "user_code.py").read_text()
    (folder / "user_code.py").write_text(text.replace("LIMIT = 3", "LIMIT = 4"))
    edited_code = trace(["user_code:keep"], Parsed(kept))
    assert changes(fresh.definitions, edited_code.definitions) == ["user_code:LIMIT"]


def test_a_file_just_written_is_not_kept(folder: Path) -> None:
    parsed = Parsed()
    trace(["user_code:keep"], parsed)
    assert not parsed.has_grown


def test_what_another_reader_parsed_is_not_used(folder: Path) -> None:
    for name in ("user_code.py", "other_code.py"):
        os.utime(folder / name, ns=(1, 10**18))
    parsed = Parsed()
    trace(["user_code:keep"], parsed)
    kept = {**parsed.to_json(), "reader": "Python 2"}
    again = Parsed(kept)
    trace(["user_code:keep"], again)
    assert again.has_grown
