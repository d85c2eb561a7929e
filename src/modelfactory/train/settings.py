"""Settings of torch that belong to the whole process, put back when a stage is done."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import deterministic

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def torch_settings(threads: int) -> Iterator[None]:
    """Use `threads` threads and deterministic algorithms inside the block; put back those and the generator.

    Without the latter, a compiled embedding adds up its gradient in an order that threads race for: with two
    of them every step gave other bytes.
    """
    memory: Any = deterministic  # its attributes are made at run time
    threads_before = torch.get_num_threads()
    was_strict, was_filled = torch.are_deterministic_algorithms_enabled(), memory.fill_uninitialized_memory
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    memory.fill_uninitialized_memory = False  # costs time, and finds mistakes we do not make
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(threads_before)
        torch.use_deterministic_algorithms(was_strict)
        memory.fill_uninitialized_memory = was_filled
