"""What is exported is written aside, and gets its name once all of it is on disk."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

from modelfactory.errors import CommandError, DiskFull

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

BEGUN = ".factory-export-"
"""Begins the name of a folder beside the target; whoever writes in it holds a lock on it."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, None)
"""numpy's `tofile` raises an OSError without a number where not all could be written."""
_FULL_WORDS = ("No space left", "File too large", "quota exceeded")


def check_place(to: Path) -> None:
    """Refuse, before any work, a place where something is or nothing can be written.

    Raises:
        CommandError: naming it.
    """
    if "\0" in str(to):
        raise _no_place(to, "a path with a null character")
    try:
        str(to).encode("utf-8")
    except UnicodeEncodeError as error:
        raise _no_place(to, "a name that is no UTF-8") from error
    if not to.name:
        raise _no_place(to, "no name")
    try:
        taken = os.path.lexists(to)
        folder = next(parent for parent in to.absolute().parents if parent.exists())
    except OSError as error:  # a name that is too long
        raise _no_place(to, error.strerror or str(error)) from error
    if taken:
        raise CommandError(
            place=str(to),
            found="something of this name",
            wanted="a name that is free: nothing is overwritten",
            remedy="Remove it or give another name.",
        )
    if not folder.is_dir():
        raise _no_place(to, f"{folder}, which is no folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _no_place(to, f"{folder}, a folder this user may not write to")


@contextmanager
def aside(to: Path, *, is_file: bool = False) -> Iterator[Path]:
    """Give a new folder, or the path of a file, which becomes `to` once all of it is on disk.

    What fails leaves nothing; what a killed process left beside `to` is removed.

    Raises:
        CommandError: `to` exists, or nothing can be written there.
        DiskFull: there is no space left.
    """
    check_place(to)
    with _told(to), _begun(to.absolute().parent) as begun:
        place = begun / "made"
        if not is_file:
            place.mkdir()
        yield place
        for path in [place] if is_file else place.iterdir():
            _sync(path)
        check_place(to)
        place.rename(to)
        _sync(to.absolute().parent)


@contextmanager
def _begun(parent: Path) -> Iterator[Path]:
    new = [folder for folder in (parent, *parent.parents) if not folder.exists()]
    parent.mkdir(parents=True, exist_ok=True)
    for left in parent.glob(f"{BEGUN}*"):
        with contextlib.suppress(OSError), _locked(left):  # a lock that is held is an OSError
            shutil.rmtree(left)
    with contextlib.ExitStack() as stack:
        stack.callback(_remove_empty, new)
        begun = _made(parent, stack)
        stack.callback(shutil.rmtree, begun, ignore_errors=True)
        yield begun


def _remove_empty(folders: Iterable[Path]) -> None:
    """Remove folders that were made for an export that failed, the deepest first."""
    with contextlib.suppress(OSError):
        for folder in folders:
            folder.rmdir()


def _made(parent: Path, stack: contextlib.ExitStack) -> Path:
    while True:  # another process may take it for a dead one's before it is locked
        begun = parent / f"{BEGUN}{secrets.token_hex(6)}"
        begun.mkdir()
        with contextlib.suppress(FileNotFoundError, BlockingIOError):
            stack.enter_context(_locked(begun))
            if begun.exists():
                return begun


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _told(to: Path) -> Iterator[None]:
    """Say in our words what the operating system said, whichever library met it."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        is_full = isinstance(error, OSError) and error.errno in _FULL
        if is_full or any(words in str(error) for words in _FULL_WORDS):
            message = (
                f"{to}: no space left while writing, or a limit on the size of files (`ulimit -f`); {error}. "
                "What was begun is removed. Make room or give another place with --to, then export again."
            )
            raise DiskFull(message) from error
        raise _no_place(to, getattr(error, "strerror", None) or str(error)) from error


def _no_place(to: Path, found: str) -> CommandError:
    return CommandError(
        place=f"export to {_shown(to)}",
        found=found,
        wanted="a place that can be written",
        remedy="Give another path with --to.",
    )


def _shown(path: Path) -> str:
    return str(path).encode("utf-8", "backslashreplace").decode("utf-8")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
