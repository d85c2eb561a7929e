"""Settings of torch that belong to the whole process, put back when a stage is done."""

from __future__ import annotations

import os
import warnings
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import deterministic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from modelfactory.stage import Device


@contextmanager
def torch_settings(threads: int, device: Device = "cpu") -> Iterator[None]:
    """Use `threads` threads and deterministic algorithms inside the block; put back those and the generator.

    On a GPU, algorithms are deterministic where they can be; the others run too.

    Without the latter, a compiled embedding adds up its gradient in an order that threads race for: with two
    of them every step gave other bytes.
    """
    is_gpu = device == "cuda"
    memory: Any = deterministic  # its attributes are made at run time
    threads_before = torch.get_num_threads()
    was_strict, was_filled = torch.are_deterministic_algorithms_enabled(), memory.fill_uninitialized_memory
    torch.set_num_threads(threads)
    if is_gpu:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS asks for it, or refuses
    torch.use_deterministic_algorithms(True, warn_only=is_gpu)
    memory.fill_uninitialized_memory = False  # costs time, and finds mistakes we do not make
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings() if is_gpu else nullcontext():
            if is_gpu:
                warnings.filterwarnings("ignore", message=".*does not have a deterministic implementation")
            yield
    finally:
        torch.set_num_threads(threads_before)
        torch.use_deterministic_algorithms(was_strict)
        memory.fill_uninitialized_memory = was_filled
