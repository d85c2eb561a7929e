"""To ask a module without a trace.

Shapes: B rows, T positions, S the size of a state, V vocabulary, N positions of interest.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from modelfactory.models.part_results import part_fault
from modelfactory.train.own_parts import own_parts_named

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def quiet(module: torch.nn.Module) -> Iterator[None]:
    """Let no gradient be taken and no dropout happen inside the block; restore the mode of every submodule.

    `no_grad`, not `inference_mode`: a tensor that a module keeps from inside the latter (a table of
    rotations made at first use) could not be used in training afterwards.

    Raises:
        SpecError: a layer of the user's own raised; it is named.
    """
    training = [part for part in module.modules() if part.training]
    try:
        if training:
            module.eval()
        with torch.no_grad(), own_parts_named(model=module):
            yield
    finally:
        for part in training:
            part.training = True


def logits_of(module: Any, tokens_BT: torch.Tensor, cache: Any = None) -> torch.Tensor:
    """Return logits_BTV; without a cache the module is given the tokens alone.

    Raises:
        PartFault: a module of the user's own returned something else.
    """
    found = module(tokens_BT) if cache is None else module(tokens_BT, cache)
    if isinstance(found, torch.Tensor) and found.ndim == 3 and found.shape[:2] == tokens_BT.shape:
        return found
    B, T = tokens_BT.shape
    shape = f"a tensor of shape {tuple(found.shape)}" if isinstance(found, torch.Tensor) else repr(found)
    raise part_fault(module, "forward", shape, f"logits of shape ({B}, {T}, vocabulary)")


@dataclass(frozen=True)
class Read:
    """What a module made of some tokens; logits are worked out for the positions that are asked for."""

    states: torch.Tensor
    """Of shape (B, T, S)."""
    to_logits: Callable[[torch.Tensor], torch.Tensor]
    """From states_NS to logits_NV."""


def keeps_states(module: Any) -> bool:
    """Say whether a module gives states before logits (`states(tokens_BT, cache)`, `to_logits`)."""
    return hasattr(module, "states") and hasattr(module, "to_logits")


def read(module: Any, tokens_BT: torch.Tensor, cache: Any = None) -> Read:
    """Have a module read tokens.

    Of a module that gives logits alone the states are these.

    Raises:
        PartFault: a module of the user's own returned something else.
    """
    if keeps_states(module):
        return Read(module.states(tokens_BT, cache), module.to_logits)
    return Read(logits_of(module, tokens_BT, cache), lambda logits_NV: logits_NV)
