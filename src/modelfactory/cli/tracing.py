"""What of a failed stage's log helps its author: his own function, and what was raised."""

from __future__ import annotations

import re
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FRAME = re.compile(r'  File "(?P<file>[^"]+)", line \d+, in ')
TRACEBACK = "Traceback (most recent call last):"
BELONGS = ("    ", "  [Previous line repeated ")
OURS = str(Path(__file__).resolve().parents[1])
LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def telling(lines: Sequence[str], n: int) -> list[str]:
    """Return at most `n` lines of a log, as they are to be shown.

    Of a log with a traceback: the innermost frame of the user's own code, or else the innermost of all, and
    the last lines, which say what was raised. The last `n` lines would show frames of libraries only. Of any
    other log its end.
    """
    frames = list(_frames(lines)) if TRACEBACK in lines else []
    if n <= 0 or not frames:
        return list(lines[-n:]) if n > 0 else []
    own = next((frame for frame in reversed(frames) if _is_users(lines[frame.start])), frames[-1])
    raised = lines[frames[-1].stop :][-n:]
    left_out = ["  ..."] if own != frames[-1] else []
    return [*[*lines[own.start : own.stop], *left_out][: n - len(raised)], *raised]


def _frames(lines: Sequence[str]) -> Iterator[range]:
    """Yield the lines of each frame, of all tracebacks that are chained."""
    number = 0
    while number < len(lines):
        first, number = number, number + 1
        if FRAME.match(lines[first]):
            while number < len(lines) and lines[number].startswith(BELONGS):
                number += 1
            yield range(first, number)


def _is_users(frame: str) -> bool:
    found = FRAME.match(frame)
    file = found["file"] if found else ""
    return not file.startswith(("<", OURS, *LIBRARIES))
