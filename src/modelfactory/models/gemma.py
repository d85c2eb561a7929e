"""Gemma 2 (Gemma team 2024, arXiv 2408.00118)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, cast

from modelfactory.models.feed_forward import GatedFeedForward
from modelfactory.models.llama import Llama
from modelfactory.models.norms import RMSNorm

if TYPE_CHECKING:
    from modelfactory.models.attention import Attention
    from modelfactory.models.decoder import Decoder


def Gemma2(
    *,
    n_layers: int,
    d_model: int,
    n_heads: int,
    max_seq_len: int,
    d_ff: int,
    window: int | None,
    head_dim: int = 256,
    scale: float | Literal["1/sqrt(head_dim)"] = "1/sqrt(head_dim)",
    norm_eps: float = 1e-6,
    **options: Any,
) -> Decoder:
    """Return a Gemma-2-like decoder.

    Every second layer, the first one included, sees `window` positions (4,096 in the published models), the
    others all (all do if it is None). Norms before and after each layer, with gains of 1 + weight; GEGLU;
    attention scores bounded at 50 and logits at 30; tied, scaled embedding. Further options are those of
    `Llama`: n_kv_heads, rope_theta, rope_scaling.
    """
    own: dict[str, Any] = {"head_dim": head_dim, "d_ff": d_ff, "norm_eps": norm_eps, "tied": True}
    decoder = Llama(
        n_layers=n_layers, d_model=d_model, n_heads=n_heads, max_seq_len=max_seq_len, **own, **options
    )
    norm = RMSNorm(eps=norm_eps, unit_offset=True)
    (plain,) = decoder.blocks
    near = replace(cast("Attention", plain.mixer), softcap=50.0, scale=scale, window=window)
    gated = GatedFeedForward(d_ff=d_ff, activation="gelu_tanh", bias=False)
    block = replace(plain, mixer=near, feed_forward=gated, norm=norm, placement="sandwich")
    whole = replace(block, mixer=replace(near, window=None))
    return replace(
        decoder,
        blocks=(block,) if window is None or n_layers == 1 else (block, whole),
        final_norm=norm,
        embedding_scale=math.sqrt(d_model),
        logit_softcap=30.0,
    )
