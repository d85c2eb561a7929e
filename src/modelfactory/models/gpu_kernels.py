"""Kernels of other packages that replace the plain form of a mixer on a GPU.

flash-linear-attention (`fla`) has one for Gated DeltaNet, `mamba_ssm` one for Mamba-2. Nothing of them is
imported before a kernel is chosen, and that never happens on a CPU.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


class Kernel(NamedTuple):
    """Where a kernel is found."""

    module: str
    name: str


GATED_DELTA = Kernel("fla.ops.gated_delta_rule", "chunk_gated_delta_rule")
MAMBA2 = Kernel("mamba_ssm.ops.triton.ssd_combined", "mamba_chunk_scan_combined")


def if_installed(kernel: Kernel) -> Kernel | None:
    """Return `kernel`, or None if its package cannot be found; nothing is imported."""
    return kernel if importlib.util.find_spec(kernel.module.partition(".")[0]) else None


def chosen(kernel: Kernel | None, x_BT: torch.Tensor) -> Callable[..., Any] | None:
    """Return the function to call on `x_BT` and its like, or None for the plain form.

    A kernel is taken on a GPU, in bfloat16 or float16 only (fla refuses float32, and the other one would
    round its products to TF32), and for more than one position, since one is all overhead.
    """
    if kernel is None or x_BT.dtype not in {torch.bfloat16, torch.float16} or x_BT.shape[1] == 1:
        return None
    if not is_on_gpu(x_BT):
        return None
    function: Callable[..., Any] = getattr(importlib.import_module(kernel.module), kernel.name)
    return function


def is_on_gpu(x: torch.Tensor) -> bool:
    """Say whether `x` lies on a CUDA device."""
    return x.device.type == "cuda"
