"""Where pages are written: refused before the work, not after it."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from modelfactory.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def check_place(path: Path, what: str) -> None:
    """Refuse a place for a page that cannot take it.

    Raises:
        CommandError: a folder, a file or folder that cannot be written, or a name that no file can have.
    """
    try:
        folder = next(parent for parent in path.absolute().parents if parent.exists())
        if path.is_dir():
            raise _no_place(path, what, "a folder")
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            raise _no_place(path, what, f"no writable folder {folder}")
        if path.exists() and not os.access(path, os.W_OK):
            raise _no_place(path, what, "a file that may not be written")
    except (OSError, ValueError) as error:  # a name that is too long, or holds a null character
        raise _no_place(path, what, _reason(error)) from error


@contextmanager
def place_named(path: Path, what: str) -> Iterator[None]:
    """Raise CommandError, naming the page, where the block cannot write it."""
    try:
        yield
    except OSError as error:
        raise _no_place(path, what, _reason(error)) from error


def _no_place(path: Path, what: str, found: str) -> CommandError:
    """Return the error for a place that cannot take `what`."""
    return CommandError(
        place=f"{what} {path}", found=found, wanted="a file that can be written", remedy="Give another path."
    )


def _reason(error: Exception) -> str:
    """Return in words why a file could not be written."""
    return getattr(error, "strerror", None) or str(error)
