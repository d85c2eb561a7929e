"""Attention by torch's flex_attention: one kernel that writes no scores out and skips what nobody sees.

Shapes: B batch, T time (position), H heads, K key/value heads, Q width of queries and keys, V of values.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

if TYPE_CHECKING:
    from modelfactory.models.architecture import Packing
    from modelfactory.models.scoring import Scoring

_MIN_HEAD_DIM = 16
"""The kernel takes no narrower heads."""


def fits_flex(q_BHTQ: torch.Tensor, k_BKSQ: torch.Tensor) -> bool:
    """Say whether there is a kernel with a gradient for these: on CUDA, not on the CPU."""
    return q_BHTQ.is_cuda and q_BHTQ.shape[2] == k_BKSQ.shape[2] and q_BHTQ.shape[-1] >= _MIN_HEAD_DIM


def by_flex(
    q_BHTQ: torch.Tensor,
    k_BKTQ: torch.Tensor,
    v_BKTV: torch.Tensor,
    scoring: Scoring,
    packing: Packing | None = None,
) -> torch.Tensor:
    """Return y_BHTV; without a gradient on the CPU."""
    B, H, T, _ = q_BHTQ.shape
    mask = create_block_mask(
        _is_seen(scoring.window, packing), None if packing is None else B, None, T, T, device=q_BHTQ.device
    )
    flex = flex_attention if torch.compiler.is_compiling() or not q_BHTQ.is_cuda else _compiled_flex()
    y_BHTV = flex(
        q_BHTQ,
        k_BKTQ,
        v_BKTV,
        score_mod=_capped(scoring.softcap),
        block_mask=mask,
        scale=scoring.scale,
        enable_gqa=k_BKTQ.shape[1] != H,
    )
    return cast("torch.Tensor", y_BHTV)


def _is_seen(window: int | None, packing: Packing | None) -> Any:
    positions_BT = None if packing is None else packing.positions_BT

    def is_seen(b: Any, _h: Any, t: Any, s: Any) -> Any:
        good = s <= t
        if window is not None:
            good = good & (t - s < window)
        if positions_BT is not None:  # two places are of one document if that has the same first place
            good = good & (t - positions_BT[b, t] == s - positions_BT[b, s])
        return good

    return is_seen


def _capped(softcap: float | None) -> Any:
    if softcap is None:
        return None

    def capped(score: Any, _b: Any, _h: Any, _t: Any, _s: Any) -> Any:
        return softcap * torch.tanh(score / softcap)

    return capped


@functools.cache
def _compiled_flex() -> Any:
    """Compile once: uncompiled, it would write all scores out."""
    return torch.compile(flex_attention, dynamic=False)
