"""Where documents come from: declarations only; `pins` finds the files and `documents` reads them."""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from typing import Literal

from modelfactory.spec import check_types, not_identity, require

NotUtf8 = Literal["drop", "replace", "refuse"]
"""What happens to a document that is not UTF-8: it is dropped and counted; each bad sequence becomes U+FFFD;
or the plan or the stage stops and names the file and the offset of the first bad byte."""

MAX_DOCUMENT_BYTES = 100_000_000
"""A document of more is, as a rule, a dump or a binary that a pattern caught by mistake: books have 1 MB."""
LARGEST_DOCUMENT = 2**31 - 1
"""Bytes of one text that Parquet and Arrow strings can hold."""


@dataclass(frozen=True, kw_only=True)
class Files:
    """Files, each of which is one document; `.gz` and `.zst` are decompressed.

    Bytes are decoded as UTF-8 and nothing else is changed: no newline is translated, no byte order mark
    removed.
    """

    root: str = not_identity()
    """Folder; relative to the working directory of the plan. Where it lies is no part of what is in it."""
    pattern: str
    """Matched against paths below `root`: `*`, `?`, `[abc]` within a name, `**/` for any folders."""
    exclude: tuple[str, ...] = ()
    """Patterns of paths to leave out; `NAME/**` leaves out a whole folder without looking into it."""
    not_utf8: NotUtf8 = "refuse"
    max_document_bytes: int = not_identity(default=MAX_DOCUMENT_BYTES)
    """Refuse, by name, a file that is larger once decompressed; 1 to 2**31 - 1."""

    def __post_init__(self) -> None:
        """Check types and patterns."""
        check_types(self)
        _require_patterns(self, (self.pattern, *self.exclude))
        _require_size(self, self.max_document_bytes)


@dataclass(frozen=True, kw_only=True)
class Jsonl:
    """Files of JSON lines, each line one document; `.gz` and `.zst` are decompressed.

    Blank lines are skipped. A line whose field is null is dropped and counted; a line that is no JSON
    object, or lacks the field, or holds something else than a string there, is refused by file and line.
    """

    root: str = not_identity()
    """Folder; relative to the working directory of the plan. Where it lies is no part of what is in it."""
    pattern: str
    """Matched against paths below `root`: `*`, `?`, `[abc]` within a name, `**/` for any folders."""
    text_field: str
    """Key of the text in each object."""
    exclude: tuple[str, ...] = ()
    """Patterns of paths to leave out."""
    not_utf8: NotUtf8 = "refuse"
    max_document_bytes: int = not_identity(default=MAX_DOCUMENT_BYTES)
    """Refuse, by file and number, a line that is longer; 1 to 2**31 - 1."""

    def __post_init__(self) -> None:
        """Check types and patterns."""
        check_types(self)
        _require_patterns(self, (self.pattern, *self.exclude))
        _require_size(self, self.max_document_bytes)
        _require_field(self, self.text_field)


@dataclass(frozen=True, kw_only=True)
class Parquet:
    """Parquet files, each row one document; a null text is dropped and counted."""

    root: str = not_identity()
    """Folder; relative to the working directory of the plan. Where it lies is no part of what is in it."""
    pattern: str
    """Matched against paths below `root`: `*`, `?`, `[abc]` within a name, `**/` for any folders."""
    text_field: str
    """Name of the string column that holds the text."""
    exclude: tuple[str, ...] = ()
    """Patterns of paths to leave out."""
    max_document_bytes: int = not_identity(default=MAX_DOCUMENT_BYTES)
    """Refuse, by file and number, a row whose text is longer in UTF-8; 1 to 2**31 - 1."""

    def __post_init__(self) -> None:
        """Check types and patterns."""
        check_types(self)
        _require_patterns(self, (self.pattern, *self.exclude))
        _require_size(self, self.max_document_bytes)
        _require_field(self, self.text_field)


@dataclass(frozen=True, kw_only=True)
class Chats:
    """Files of JSON lines, each line one conversation; `.gz` and `.zst` are decompressed.

    A line is an object whose `messages` are objects of `role` and `content`: a `system` message or none, then
    `user` and `assistant` by turns, at least one of each, none empty. Its other fields are left out. All else
    is refused by file and line. The text of the document is the messages as JSON, so that equal conversations
    are equal documents; filters and deduplication see that text.
    """

    root: str = not_identity()
    """Folder; relative to the working directory of the plan. Where it lies is no part of what is in it."""
    pattern: str
    """Matched against paths below `root`: `*`, `?`, `[abc]` within a name, `**/` for any folders."""
    exclude: tuple[str, ...] = ()
    """Patterns of paths to leave out."""
    template: str | None = not_identity(default=None)
    """File of the template that turns conversations into tokens: Jinja, or a `tokenizer_config.json` with a
    `chat_template`. None: the one that lies beside the experiment's `TokenizerFile`. Its content is part of
    the identity of the tokens, not of the documents."""
    not_utf8: NotUtf8 = "refuse"
    max_document_bytes: int = not_identity(default=MAX_DOCUMENT_BYTES)
    """Refuse, by file and number, a line that is longer; 1 to 2**31 - 1."""

    def __post_init__(self) -> None:
        """Check types and patterns."""
        check_types(self)
        _require_patterns(self, (self.pattern, *self.exclude))
        _require_size(self, self.max_document_bytes)
        require(self.template != "", place="Chats.template", found=self.template, wanted="a file, or None")


Source = Files | Jsonl | Parquet | Chats


def python_standard_library(*, with_tests: bool = True) -> Files:
    """Return the sources of the standard library of the Python that runs this, without installed packages.

    Args:
        with_tests: Whether CPython's own test-suite is part of it, about half of all bytes.
    """
    tests = ("**/test/**", "**/tests/**", "**/idle_test/**")
    packages = ("**/site-packages/**", "**/dist-packages/**", "**/__pycache__/**")
    return Files(
        root=sysconfig.get_path("stdlib"),
        pattern="**/*.py",
        exclude=packages if with_tests else packages + tests,
        not_utf8="drop",
    )


def _require_patterns(source: object, patterns: tuple[str, ...]) -> None:
    for pattern in patterns:
        text = str(pattern)
        require(
            text != "" and not text.startswith("/") and ".." not in text.split("/"),
            place=f"{type(source).__name__}.pattern",
            found=pattern,
            wanted="a pattern of paths below root",
            remedy="Give the folder as root and the rest, such as '**/*.txt', as pattern.",
        )


def _require_size(source: object, n_bytes: int) -> None:
    require(
        1 <= n_bytes <= LARGEST_DOCUMENT,
        place=f"{type(source).__name__}.max_document_bytes",
        found=n_bytes,
        wanted=f"1 to {LARGEST_DOCUMENT:,}, the most that a column of strings can hold",
    )


def _require_field(source: object, text_field: str) -> None:
    require(
        text_field != "",
        place=f"{type(source).__name__}.text_field",
        found=text_field,
        wanted="the name of the field that holds the text",
    )
