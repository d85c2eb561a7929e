"""What became of a program."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from modelfactory.sandbox.limits import Limits

Verdict = Literal["passed", "failed", "timed out", "memory", "crashed"]
Hit = Literal["", "output", "processes", "network", "file size", "exit"]

_REFUSALS: tuple[tuple[Hit, tuple[str, ...]], ...] = (
    ("processes", ("Resource temporarily unavailable", "can't start new thread", "Cannot fork")),
    (
        "network",
        (
            "Network is unreachable",
            "Connection refused",
            "socket.gaierror",
            "Cannot assign requested address",
        ),
    ),
    ("file size", ("File too large", "No space left on device")),
)
"""The system's words for what the sandbox refuses, as they stand in a traceback."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one program."""

    verdict: Verdict
    """*passed* only if it came to its end: a program that leaves early, even with code 0, has *failed*."""
    hit: Hit
    """The limit or refusal it ran into, where its end or its standard error tells; else empty."""
    stderr: str
    """The end of its standard error; bytes that are not UTF-8 are shown as \\xNN."""
    seconds: float
    """From the start of its sandbox to its end."""

    @property
    def passed(self) -> bool:
        """Whether the program ran to its end without an error."""
        return self.verdict == "passed"


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What was seen of a program from outside."""

    word: bytes
    """What the runner in the sandbox reported: `passed`, `failed`, `memory`, `exit`, or nothing."""
    code: int
    """Exit code; negative, or 128 and more, for a signal."""
    stderr: bytes
    """The end of its standard error."""
    killed: Literal["", "time", "output"]
    """Why we killed it."""
    seconds: float
    """From start to end."""


def judge(ended: Ended, limits: Limits) -> Outcome:
    """Say what became of a program from what was seen of it."""
    stderr = ended.stderr.decode("utf-8", "backslashreplace")
    verdict, hit = _judge(ended, stderr)
    if ended.killed == "time":
        stderr += f"[killed after {limits.wall_s:g} s]\n"
    if ended.killed == "output":
        stderr += f"[killed after {limits.output_bytes:,} bytes of output]\n"
    return Outcome(verdict=verdict, hit=hit, stderr=stderr, seconds=ended.seconds)


def _judge(ended: Ended, stderr: str) -> tuple[Verdict, Hit]:
    if ended.killed:
        return ("timed out", _refused(stderr)) if ended.killed == "time" else ("failed", "output")
    if ended.word == b"passed" and ended.code == 0:
        return "passed", _refused(stderr)
    if ended.word == b"memory":
        return "memory", ""
    if ended.word == b"failed":
        return "failed", _refused(stderr)
    if ended.word == b"exit" or not _is_signal(ended.code):
        return "failed", "exit"
    return "crashed", _refused(stderr)


def _is_signal(code: int) -> bool:
    return code < 0 or 128 < code <= 128 + signal.NSIG


def _refused(stderr: str) -> Hit:
    return next((hit for hit, words in _REFUSALS if any(word in stderr for word in words)), "")
