"""OLMo 2 (OLMo team 2024, arXiv 2501.00656)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from modelfactory.models.attention import Attention, QKNorm
from modelfactory.models.llama import Llama
from modelfactory.models.norms import RMSNorm

if TYPE_CHECKING:
    from modelfactory.models.decoder import Decoder


def OLMo2(
    *,
    n_layers: int,
    d_model: int,
    n_heads: int,
    max_seq_len: int,
    rope_theta: float = 500_000.0,
    norm_eps: float = 1e-6,
    **options: Any,
) -> Decoder:
    """Return an OLMo-2-like decoder: a Llama with RMSNorm after each layer, and over all queries, all keys.

    Further options are those of `Llama`: n_kv_heads, head_dim, d_ff, rope_scaling, tied.
    """
    own: dict[str, Any] = {"rope_theta": rope_theta, "norm_eps": norm_eps}
    decoder = Llama(
        n_layers=n_layers, d_model=d_model, n_heads=n_heads, max_seq_len=max_seq_len, **own, **options
    )
    (block,) = decoder.blocks
    qk_norm = QKNorm(norm=RMSNorm(eps=norm_eps), over="width")
    mixer = replace(cast("Attention", block.mixer), qk_norm=qk_norm)
    return replace(decoder, blocks=(replace(block, mixer=mixer, placement="output"),))
