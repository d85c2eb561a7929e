"""A full disk, told as such whichever library met it."""

from __future__ import annotations

import errno
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
    """Raise DiskFull in place of an error inside the block that a full disk was behind."""
    try:
        yield
    except Exception as error:
        if not any(isinstance(each, OSError) and each.errno in _FULL for each in _behind(error)):
            raise
        free = shutil.disk_usage(folder).free
        message = (
            f"{folder}: no space left while writing ({free:,} bytes free), or a limit on the size of files "
            "(`ulimit -f`). What was begun is thrown away and earlier checkpoints stand. Make room "
            "(`factory gc --dry-run` shows what nothing needs), then run again."
        )
        raise DiskFull(message) from error


def _behind(error: BaseException) -> Iterator[BaseException]:
    """Yield `error` and all that it was raised from or during."""
    pending, seen = [error], set[int]()
    while pending:
        each = pending.pop()
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            pending.extend(cause for cause in (each.__cause__, each.__context__) if cause is not None)
