"""Settings of torch that belong to the whole process, put back when a stage is done."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def torch_settings(threads: int) -> Iterator[None]:
    """Use `threads` threads inside the block; leave them and the global generator as they were."""
    threads_before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(threads_before)
