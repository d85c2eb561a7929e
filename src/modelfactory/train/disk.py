"""A full disk, or a file that may not grow, told as such whichever library met it."""

from __future__ import annotations

import errno
import resource
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

from modelfactory.errors import DiskFull

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def full_disk_named(folder: Path) -> Iterator[None]:
    """Raise DiskFull in place of an error inside the block that a full disk was behind.

    One that a limit on the size of files was behind is told as that: making room would not help.
    """
    try:
        yield
    except Exception as error:
        numbers = {each.errno for each in _behind(error) if isinstance(each, OSError)}
        if not numbers & set(_FULL):
            raise
        what, remedy = _too_large() if errno.EFBIG in numbers else _no_space(folder)
        message = (
            f"{folder}: {what}. What was begun is thrown away and earlier checkpoints stand. {remedy}, then "
            "run again."
        )
        raise DiskFull(message) from error


def _no_space(folder: Path) -> tuple[str, str]:
    free = shutil.disk_usage(folder).free
    what = f"no space left while writing ({free:,} bytes free)"
    return what, "Make room (`factory gc --dry-run` shows what nothing needs)"


def _too_large() -> tuple[str, str]:
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit == resource.RLIM_INFINITY:
        return "a file would be larger than the file system allows", "Use another file system"
    return f"a file would be larger than {limit:,} bytes (`ulimit -f`)", "Raise it (`ulimit -f unlimited`)"


def _behind(error: BaseException) -> Iterator[BaseException]:
    """Yield `error` and all that it was raised from or during."""
    pending, seen = [error], set[int]()
    while pending:
        each = pending.pop()
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            pending.extend(cause for cause in (each.__cause__, each.__context__) if cause is not None)
