"""Bounds on what the process of the tests may do, for as long as a block lasts."""

from __future__ import annotations

import resource
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def files_of_at_most(n_bytes: int) -> Iterator[None]:
    """As under `ulimit -f`. Around the call alone, never in a fixture: where pytest writes to a file, the
    bound holds for that file too, and a longer one ends pytest without a word."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
