"""The loss of a large vocabulary.

Shapes: N positions, D d_model, V vocabulary.
"""

from __future__ import annotations

import torch
from torch.nn import functional

UNCOUNTED = -100
"""Label of a position that gives no loss."""


def cross_entropy_sum(
    x_ND: torch.Tensor,
    head_VD: torch.Tensor,
    labels_N: torch.Tensor,
    *,
    scale: float = 1.0,
    softcap: float | None = None,
) -> torch.Tensor:
    """Return the sum of -log p(label) in nats, float32, over positions whose label is not UNCOUNTED.

    Args:
        x_ND: hidden states.
        head_VD: one row for each token.
        labels_N: int64.
        scale: multiplies the logits.
        softcap: bounds them, see `scaled`.
    """
    logits_NV = scaled(functional.linear(x_ND, head_VD).float(), scale=scale, softcap=softcap)
    return functional.cross_entropy(logits_NV, labels_N, ignore_index=UNCOUNTED, reduction="sum")


def scaled(logits: torch.Tensor, *, scale: float, softcap: float | None) -> torch.Tensor:
    """Return logits times `scale`, bounded to -softcap .. softcap (Gemma 2, arXiv 2408.00118)."""
    if scale != 1.0:
        logits = logits * scale
    return logits if softcap is None else softcap * torch.tanh(logits / softcap)
