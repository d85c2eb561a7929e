"""What stages print goes to their log, at the level of file descriptors, so that C libraries are included."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_TAIL_BYTES = 16_384


@contextlib.contextmanager
def printed_to(path: str) -> Iterator[None]:
    """Send everything this process and its children print to the end of the file `path`, for a while."""
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    before = os.dup(1), os.dup(2)
    _flush()
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.close(target)
    try:
        yield
    finally:
        _flush()
        for fd, saved in zip((1, 2), before, strict=True):
            os.dup2(saved, fd)
            os.close(saved)


def _flush() -> None:
    """Empty Python's and C's buffers, so that no line lands in the log of another stage."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # full disk, closed, or None
            stream.flush()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).fflush(None)


def tail(path: str | Path, n_lines: int = 20) -> str:
    """Return the last lines of a log, or nothing when there is none."""
    try:
        with Path(path).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-n_lines:])
