"""What a stage raised, and how its process died, in words that help."""

from __future__ import annotations

import errno
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from modelfactory.engine import memory
from modelfactory.errors import DiskFull, FactoryError, InvalidInput, NonFiniteLoss, Stopped, is_out_of_memory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from modelfactory.engine.protocol import FailureKind

_NO_SPACE = ("no space left on device", "database or disk is full", "disk quota exceeded")


def classify(error: BaseException) -> FailureKind:
    """Return the kind of failure that `error`, or what caused it, stands for."""
    chain = list(_causes(error))
    if any(isinstance(cause, Stopped) for cause in chain):
        return "stopped"
    if isinstance(error, InvalidInput | NonFiniteLoss):
        return "refused"
    if any(_is_disk(cause) for cause in chain):
        return "disk"
    if any(is_out_of_memory(cause) for cause in chain):
        return "memory"
    return "raised"


def describe(error: BaseException, kind: FailureKind, output_dir: str) -> str:
    """Return the error in one paragraph, with the facts and the remedy for a full disk or memory."""
    text = str(error) if isinstance(error, FactoryError) else f"{type(error).__name__}: {error}"
    if kind == "disk" and not isinstance(error, DiskFull):  # which has the facts, and what to do
        return f"{text}. {_disk_facts(error, output_dir)}"
    if kind == "memory":
        return f"{text or type(error).__name__}. {_memory_remedy()}"
    return text


def describe_death(exit_code: int, peak_bytes: int, n_oom_kills_before: int) -> tuple[str, FailureKind]:
    """Return in words how a worker process died, and whether memory was probably why.

    Args:
        exit_code: as `subprocess` gives it, negative for a signal.
        peak_bytes: the most memory that the process held.
        n_oom_kills_before: `memory.n_oom_kills()` when the job began.
    """
    if exit_code >= 0:
        text = f"the worker process ended with exit code {exit_code} in the middle of the stage"
        return f"{text}. A stage must return or raise, never call exit.", "killed"
    name = _signal_name(-exit_code)
    held = f"it held up to {memory.gigabytes(peak_bytes)} of {memory.gigabytes(memory.limit())}"
    text = f"the worker process was killed by {name}; {held}"
    out_of_memory = memory.was_out_of_memory(n_oom_kills_before=n_oom_kills_before, peak_bytes=peak_bytes)
    if exit_code == -signal.SIGKILL and out_of_memory:
        return f"{text}: probably out of memory. {_memory_remedy()}", "memory"
    return f"{text}.", "killed"


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        yield following
        following = following.__cause__ or following.__context__


def _is_disk(error: BaseException) -> bool:
    if isinstance(error, DiskFull):
        return True
    if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return True
    return any(words in str(error).lower() for words in _NO_SPACE)


def _disk_facts(error: BaseException, output_dir: str) -> str:
    """Name what was being written and how much space there is."""
    names = [cause.filename for cause in _causes(error) if isinstance(cause, OSError) and cause.filename]
    written = str(names[0]) if names else output_dir
    free = shutil.disk_usage(_existing(Path(output_dir))).free
    return (
        f"The disk is full: writing {written}, {memory.gigabytes(free)} free. "
        "Make room (`factory gc` removes what no named experiment needs), then run again."
    )


def _existing(path: Path) -> Path:
    return path if path.exists() or path == path.parent else _existing(path.parent)


def _memory_remedy() -> str:
    return "Run with fewer --jobs, a smaller micro-batch, or a smaller model."


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
