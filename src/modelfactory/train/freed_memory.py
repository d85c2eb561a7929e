"""Keeping freed memory in the process while it trains.

A step frees and asks for the same large blocks again. glibc hands those back to the system each time, which
then gives them anew page by page, filled with zeros: at 12 x 768 that was a third of a step on a CPU.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
"""Numbers of glibc's parameters in malloc.h."""
_DEFAULTS = {_TRIM_THRESHOLD: 128 * 1024, _MMAP_MAX: 65_536}
_SAID_OTHERWISE = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
_KEEPING = {_TRIM_THRESHOLD: 2**31 - 1, _MMAP_MAX: 0}


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Inside the block blocks of any size are reused; after it, what is free goes back to the system.

    Where the process has another allocator than glibc's, or its environment says otherwise, nothing changes.
    """
    libc: Any = ctypes.CDLL(None)
    is_glibc = hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim")
    if not is_glibc or any(name in os.environ for name in _SAID_OTHERWISE):
        yield
        return
    _set(libc, _KEEPING)
    try:
        yield
    finally:
        _set(libc, _DEFAULTS)
        libc.malloc_trim(0)


def _set(libc: Any, parameters: dict[int, int]) -> None:
    for number, value in parameters.items():
        libc.mallopt(number, value)
