"""Questions that come as a file, one JSON object a line."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from modelfactory.errors import SourceError, closest
from modelfactory.spec import check_types, not_identity, require

if TYPE_CHECKING:
    from collections.abc import Mapping

    from modelfactory.evaluate.task import Task

GZIP = b"\x1f\x8b"


@dataclass(frozen=True, kw_only=True)
class ItemFile:
    """A JSONL file of questions, plain or compressed (`.jsonl.gz`): one object a line, empty lines left out.

    It is pinned by content when an experiment is planned, and is an input of the evaluate stage.
    """

    path: str = not_identity()
    """Where it is; its content is what counts. Relative to the working directory."""

    def __post_init__(self) -> None:
        """Check the type; the file is read at plan time."""
        check_types(self)
        require(self.path.strip() != "", place="ItemFile.path", found=self.path, wanted="a path")


class Row(NamedTuple):
    """One line of an item file."""

    path: str
    line: int
    """From 1."""
    values: Mapping[str, Any]
    identity: str = ""
    """SHA-256 of its content, equal wherever the line stands."""

    @property
    def file_name(self) -> str:
        """Name of its file, without the folders."""
        return Path(self.path).name

    @property
    def where(self) -> dict[str, Any]:
        """File and line, for the detail of an outcome."""
        return {"path": self.file_name, "line": self.line}

    def item_id(self, number: int) -> str:
        """Return the id of the item that is row `number` of its file, from 0."""
        return f"{self.identity[:16]}-{number}"

    def fault(self, found: str, wanted: str, remedy: str = "Correct the line.") -> SourceError:
        """Return an error that names the file and the line."""
        return SourceError(place=f"{self.path}, line {self.line}", found=found, wanted=wanted, remedy=remedy)

    def value(self, name: str) -> Any:
        """Return a field.

        Raises:
            SourceError: there is none of that name.
        """
        if name not in self.values:
            known = closest(name, list(self.values))
            remedy = known or "Correct the line, or name the field of the file in the task."
            raise self.fault(f"no field {name!r}", f"{name!r} in every line", remedy)
        return self.values[name]

    def text(self, name: str) -> str:
        """Return a field that is text with at least a character that is no white space.

        Raises:
            SourceError: it is not.
        """
        found = self.value(name)
        if not isinstance(found, str) or not found.strip():
            raise self.fault(f"{name} = {found!r}", "text")
        return found


def item_files(task: Task) -> dict[str, ItemFile]:
    """Return the files that a task reads in place of documents, by input of its stage; none of most tasks."""
    return dict(getattr(task, "item_files", {}))


def reads_whole_files(task: Task) -> bool:
    """Return whether a task reads its files itself, as a property of that name says."""
    return bool(getattr(task, "reads_whole_files", False))


def checked_rows(task: Task, name: str, path: Path, content: bytes) -> tuple[Row, ...]:
    """Return the rows of one file of a task, each looked at by the task's `check_rows`.

    Of a task with a property `reads_whole_files` the file is no JSONL but one row without values.

    Raises:
        SourceError: the file is no JSONL, holds nothing, or a line is not what the task wants.
    """
    if reads_whole_files(task):
        return (Row(str(path), 1, {}, hashlib.sha256(content).hexdigest()),)
    rows = read_rows(path, content)
    check = getattr(task, "check_rows", None)
    if check is not None:
        check(name, rows)
    return rows


def read_rows(path: Path, content: bytes) -> tuple[Row, ...]:
    """Return the objects of a JSONL file.

    Raises:
        SourceError: a line is not UTF-8, no JSON or no object, or there is no line.
    """
    lines = _unpacked(path, content).removeprefix(b"\xef\xbb\xbf").split(b"\n")
    rows = tuple(_row(str(path), number, line) for number, line in enumerate(lines, 1) if line.strip())
    if not rows:
        raise SourceError(
            place=str(path),
            found="no lines",
            wanted="at least one item",
            remedy="Write one JSON object a line.",
        )
    return rows


def _unpacked(path: Path, content: bytes) -> bytes:
    if not content.startswith(GZIP):
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise SourceError(
            place=str(path), found=f"a broken gzip file ({error})", wanted="JSONL", remedy="Copy it again."
        ) from error


def _row(path: str, number: int, line: bytes) -> Row:
    row = Row(path, number, {})
    try:
        values = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise row.fault(f"no UTF-8 ({error.reason} at byte {error.start + 1})", "UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise row.fault(f"no JSON ({error})", "one JSON object a line") from error
    if not isinstance(values, dict):
        raise row.fault(f"a {type(values).__name__}", "a JSON object")
    told = json.dumps(values, sort_keys=True)
    return row._replace(values=values, identity=hashlib.sha256(told.encode("utf-8")).hexdigest())
