"""To ask a module without a trace."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def quiet(module: torch.nn.Module) -> Iterator[None]:
    """Let no gradient be taken and no dropout happen inside the block; restore the mode of every submodule.

    `no_grad`, not `inference_mode`: a tensor that a module keeps from inside the latter (a table of
    rotations made at first use) could not be used in training afterwards.
    """
    training = [part for part in module.modules() if part.training]
    try:
        if training:
            module.eval()
        with torch.no_grad():
            yield
    finally:
        for part in training:
            part.training = True
