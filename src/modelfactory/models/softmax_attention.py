"""Causal softmax attention by the fastest way that can do what is asked.

Shapes: B batch, T queries, S keys, the last T of which stand at the places of the queries; H heads,
K key/value heads, each shared by H / K query heads; Q width of queries and keys, V width of values.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.nn import functional

from modelfactory.models.flex import by_flex, fits_flex
from modelfactory.models.modules import at_least_float32
from modelfactory.models.query_blocks import by_query_blocks, fits_query_blocks
from modelfactory.models.scoring import Scoring, seen
from modelfactory.models.window_blocks import by_blocks, is_worth_blocks

if TYPE_CHECKING:
    from modelfactory.models.architecture import Packing


def attend(
    q_BHTQ: torch.Tensor,
    k_BKSQ: torch.Tensor,
    v_BKSV: torch.Tensor,
    scoring: Scoring,
    packing: Packing | None = None,
) -> torch.Tensor:
    """Return y_BHTV: for each query, the mean of the values it sees, weighted by the softmax of its scores.

    Args:
        q_BHTQ: queries.
        k_BKSQ: keys; where there are more than queries, the first ones come before all queries.
        v_BKSV: values.
        scoring: scale, bound and window.
        packing: documents of the row, each of which sees itself only; then S = T.
    """
    T, S = q_BHTQ.shape[2], k_BKSQ.shape[2]
    if fits_query_blocks(q_BHTQ, k_BKSQ):
        return by_query_blocks(q_BHTQ, k_BKSQ, v_BKSV, scoring, packing, by_formula)
    if scoring.softcap is not None and fits_flex(q_BHTQ, k_BKSQ):
        return by_flex(q_BHTQ, k_BKSQ, v_BKSV, scoring, packing)
    if scoring.window is not None and is_worth_blocks(T, S, scoring.window):
        return by_blocks(
            (q_BHTQ, k_BKSQ, v_BKSV), scoring.window, packing, attend=partial(_by_mask, scoring=scoring)
        )
    unmasked = packing is None and (scoring.window is None or scoring.window >= S)
    if scoring.softcap is None and unmasked and 1 < T == S:
        return _fused(q_BHTQ, k_BKSQ, v_BKSV, scoring.scale, None, is_causal=True)
    mask = None if unmasked and T == 1 else seen(T, S, scoring.window, packing, q_BHTQ.device)
    return _by_mask(q_BHTQ, k_BKSQ, v_BKSV, mask, scoring)


def _by_mask(
    q_BHTQ: torch.Tensor,
    k_BKSQ: torch.Tensor,
    v_BKSV: torch.Tensor,
    mask: torch.Tensor | None,
    scoring: Scoring,
) -> torch.Tensor:
    if scoring.softcap is None:
        return _fused(q_BHTQ, k_BKSQ, v_BKSV, scoring.scale, mask)
    return by_formula(q_BHTQ, k_BKSQ, v_BKSV, mask, scoring)


def _fused(
    q_BHTQ: torch.Tensor,
    k_BKSQ: torch.Tensor,
    v_BKSV: torch.Tensor,
    scale: float | None,
    mask: torch.Tensor | None,
    *,
    is_causal: bool = False,
) -> torch.Tensor:
    """Call torch's kernels, which write no scores out if queries and values are equally wide."""
    narrower, width = q_BHTQ.shape[-1] - v_BKSV.shape[-1], v_BKSV.shape[-1]
    if narrower > 0:
        v_BKSV = functional.pad(v_BKSV, (0, narrower))
    y_BHTV = functional.scaled_dot_product_attention(
        q_BHTQ,
        k_BKSQ,
        v_BKSV,
        attn_mask=mask,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=k_BKSQ.shape[1] != q_BHTQ.shape[1],
    )
    return y_BHTV[..., :width] if narrower > 0 else y_BHTV


def by_formula(
    q_BHTQ: torch.Tensor,
    k_BKSQ: torch.Tensor,
    v_BKSV: torch.Tensor,
    mask: torch.Tensor | None,
    scoring: Scoring,
) -> torch.Tensor:
    """Write all scores out, in float32 or wider; any device.

    Args:
        q_BHTQ: queries.
        k_BKSQ: keys.
        v_BKSV: values.
        mask: true where a key counts, TS or B1TS; None where all do.
        scoring: scale and bound.
    """
    B, H, T, Q = q_BHTQ.shape
    K, S = k_BKSQ.shape[1:3]
    scale = Q**-0.5 if scoring.scale is None else scoring.scale
    # query heads of one key head lie side by side: as further rows they need no copies of the keys
    scores = q_BHTQ.reshape(B, K, -1, Q) @ k_BKSQ.transpose(2, 3)
    scores_BHTS = scores.view(B, H, T, S)
    if scoring.softcap is not None:
        scores_BHTS = scoring.softcap * torch.tanh(
            scores_BHTS.to(at_least_float32(scores)) * (scale / scoring.softcap)
        )
        scale = 1.0
    weights = cast("torch.Tensor", _Softmax.apply(scores_BHTS, mask, scale, v_BKSV.dtype))  # type: ignore[no-untyped-call]
    return (weights.view(B, K, -1, S) @ v_BKSV).view(B, H, T, -1)


class _Softmax(torch.autograd.Function):
    """Softmax of scaled scores under a mask, of which the weights in a narrower type alone are kept.

    Written as steps it would be kept in both types: three times the bytes in bfloat16. What is masked has a
    weight of zero, and so a gradient of zero: the mask has no part in the backward pass.
    """

    @staticmethod
    def forward(
        ctx: Any, scores_BHTS: torch.Tensor, mask: torch.Tensor | None, scale: float, kind: torch.dtype
    ) -> torch.Tensor:
        rows, masked = scores_BHTS, None if mask is None else ~mask
        if torch.compiler.is_compiling():  # of plain rows it makes one loop and writes nothing in float32
            masked = None if masked is None else masked.expand_as(rows).flatten(0, 2)
            rows = rows.flatten(0, 2)
        rows = rows.to(at_least_float32(rows)) * scale
        if masked is not None:
            rows = rows.masked_fill(masked, float("-inf"))
        weights_BHTS = rows.softmax(dim=-1).to(kind).view(scores_BHTS.shape)
        ctx.save_for_backward(weights_BHTS)
        ctx.scale, ctx.kind = scale, scores_BHTS.dtype
        return weights_BHTS

    @staticmethod
    def backward(ctx: Any, grad_BHTS: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        (weights_BHTS,) = ctx.saved_tensors
        wide = at_least_float32(weights_BHTS)
        weights_BHTS, grad_BHTS = weights_BHTS.to(wide), grad_BHTS.to(wide)
        mean_BHT1 = (weights_BHTS * grad_BHTS).sum(dim=-1, keepdim=True)
        return (weights_BHTS * (grad_BHTS - mean_BHT1) * ctx.scale).to(ctx.kind), None, None, None
