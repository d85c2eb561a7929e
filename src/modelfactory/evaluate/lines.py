"""Lines of programs, and others like them."""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING

from modelfactory.evaluate.documents import order

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

MIN_CHARACTERS = 8
"""Of a line without its indentation: `else:` and `return` can be guessed anywhere."""
MAX_CHARACTERS = 120
LIKE_LENGTH = 1.25
"""Distractors are at most this much longer or shorter than the true line."""
MIN_POOL = 32
"""Lines that distractors are drawn from at least, nearest in length first, where there are so many."""


def is_telling(line: str) -> bool:
    """Say whether a line is worth guessing."""
    stripped = line.strip()
    return MIN_CHARACTERS <= len(stripped) <= MAX_CHARACTERS and not stripped.startswith("#")


def last_lines(lines: Sequence[str], n_bytes: int) -> str:
    """Return the last lines that fit into `n_bytes`, each with its line break; at least a part of one."""
    kept: list[str] = []
    left = n_bytes
    for line in reversed(lines):
        left -= len(line.encode("utf-8")) + 1
        if left < 0:
            break
        kept.append(line + "\n")
    if not kept and lines:
        return lines[-1].encode("utf-8")[-max(n_bytes - 1, 1) :].decode("utf-8", "ignore") + "\n"
    return "".join(reversed(kept))


class Pool:
    """Lines without indentation, by length."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = sorted(set(lines), key=lambda line: (len(line), line))
        self._lengths = [len(line) for line in self._lines]

    def like(self, line: str, n: int, key: str) -> list[str]:
        """Draw `n` lines of like length, all different from `line`; fewer if there are not so many."""
        start = bisect.bisect_left(self._lengths, len(line) / LIKE_LENGTH)
        end = bisect.bisect_right(self._lengths, len(line) * LIKE_LENGTH)
        missing = MIN_POOL - (end - start)
        if missing > 0:
            start, end = max(0, start - missing), min(len(self._lines), end + missing)
        near = [other for other in self._lines[start:end] if other != line]
        return [near[number] for number in _drawn(len(near), n, key)]


def _drawn(n_things: int, n: int, key: str) -> Iterator[int]:
    """Yield `n` different numbers below `n_things`, determined by `key` alone."""
    left = list(range(n_things))
    for number in range(min(n, n_things)):
        yield left.pop(int(order(key, number)[:15], 16) % len(left))


def shuffled(true: str, others: Sequence[str], key: str) -> tuple[tuple[str, ...], int]:
    """Give the others the true line's indentation, and the true line its place."""
    indentation = true[: len(true) - len(true.lstrip())]
    choices = [f"{indentation}{other}\n" for other in others]
    answer = int(order(key, "place")[:15], 16) % (len(others) + 1)
    choices.insert(answer, f"{indentation}{true.strip()}\n")
    return tuple(choices), answer
