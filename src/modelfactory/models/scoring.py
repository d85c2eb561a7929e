"""How attention scores are made, and which of them count.

Shapes: B batch, T queries, S keys, the last T of which stand at the places of the queries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from modelfactory.models.architecture import Packing


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """What a mixer's module does with scores, beside causality."""

    scale: float | None = None
    """Multiplies the scores; None is 1 / sqrt(Q)."""
    softcap: float | None = None
    """Bounds the scaled scores by c * tanh(score / c) (Gemma 2, arXiv 2408.00118)."""
    window: int | None = None
    """Positions that each one sees, itself included."""


def seen(T: int, S: int, window: int | None, packing: Packing | None, device: torch.device) -> torch.Tensor:
    """Return which keys each query may see, mask_TS, or mask_B1TS where documents are kept apart."""
    if packing is not None and window is None:
        return packing.mask_B1TT
    queries, keys = (torch.arange(n, S, device=device, dtype=torch.int32) for n in (S - T, 0))
    distance_TS = queries[:, None] - keys
    near_TS = distance_TS >= 0
    if window is not None:
        near_TS &= distance_TS < window
    return near_TS if packing is None else near_TS & packing.mask_B1TT
