"""Llama (Touvron et al. 2023, arXiv 2302.13971 and 2307.09288; Llama 3: arXiv 2407.21783)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from modelfactory.models.attention import Attention, Rope
from modelfactory.models.checks import head_dim as width_of_head
from modelfactory.models.checks import require_whole
from modelfactory.models.decoder import Block, Decoder
from modelfactory.models.feed_forward import GatedFeedForward
from modelfactory.models.initial import gpt2_initial
from modelfactory.models.norms import RMSNorm

if TYPE_CHECKING:
    from modelfactory.models.rope import LinearScaling, Llama3Scaling, YaRN

_MULTIPLE = 64
"""Widths that are a multiple of this fill the vector and matrix units of current processors."""


def Llama(
    *,
    n_layers: int,
    d_model: int,
    n_heads: int,
    max_seq_len: int,
    n_kv_heads: int | Literal["n_heads"] = "n_heads",
    head_dim: int | Literal["d_model / n_heads"] = "d_model / n_heads",
    d_ff: int | Literal["8/3 * d_model"] = "8/3 * d_model",
    rope_theta: float = 10_000.0,
    rope_scaling: LinearScaling | YaRN | Llama3Scaling | None = None,
    norm_eps: float = 1e-5,
    tied: bool = False,
) -> Decoder:
    """Return a Llama-like decoder: rotary positions, RMSNorm before each layer, SwiGLU, no biases.

    The default d_ff is 8/3 d_model rounded up to a multiple of 64, which gives SwiGLU the parameters of a
    4 d_model GELU layer. Published models round otherwise: Llama-2-7B has d_ff 11,008. Initialised like
    GPT-2 (`gpt2_initial`): the papers do not say how Llama was.
    """
    require_whole("Llama", n_layers=n_layers, d_model=d_model, n_heads=n_heads)
    attention = Attention(
        n_heads=n_heads,
        n_kv_heads=n_heads if n_kv_heads == "n_heads" else n_kv_heads,
        head_dim=width_of_head("Llama", d_model, n_heads) if head_dim == "d_model / n_heads" else head_dim,
        qkv_bias=False,
        out_bias=False,
        rope=Rope(theta=rope_theta, scaling=rope_scaling),
    )
    wide = default_d_ff(d_model) if d_ff == "8/3 * d_model" else d_ff
    norm = RMSNorm(eps=norm_eps)
    feed_forward = GatedFeedForward(d_ff=wide, activation="silu", bias=False)
    return Decoder(
        n_layers=n_layers,
        d_model=d_model,
        max_seq_len=max_seq_len,
        blocks=(Block(mixer=attention, feed_forward=feed_forward, norm=norm),),
        learned_positions=False,
        final_norm=norm,
        tied=tied,
        initial=gpt2_initial(n_layers=n_layers, d_model=d_model),
    )


def default_d_ff(d_model: int) -> int:
    """Return 8/3 d_model rounded up to a multiple of 64."""
    return -(-8 * d_model // (3 * _MULTIPLE)) * _MULTIPLE
