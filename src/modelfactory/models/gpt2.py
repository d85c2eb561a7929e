"""GPT-2 (Radford et al. 2019, "Language models are unsupervised multitask learners")."""

from __future__ import annotations

from typing import Literal

from modelfactory.models.attention import Attention
from modelfactory.models.checks import head_dim, require_whole
from modelfactory.models.decoder import Block, Decoder
from modelfactory.models.feed_forward import FeedForward
from modelfactory.models.initial import gpt2_initial
from modelfactory.models.norms import LayerNorm


def GPT2(
    *,
    n_layers: int,
    d_model: int,
    n_heads: int,
    max_seq_len: int,
    d_ff: int | Literal["4 * d_model"] = "4 * d_model",
    bias: bool = True,
    tied: bool = True,
) -> Decoder:
    """Return a GPT-2-like decoder; (12, 768, 12, 1024) at a vocabulary of 50,257 is the published smallest.

    Learned positions, biases everywhere, LayerNorm before each layer, GELU in its tanh form, tied head.
    Two departures: no dropout (one pass over the data does not call for it), and a vocabulary matrix that
    starts smaller at widths above 400 (see `gpt2_initial`).
    """
    require_whole("GPT2", n_layers=n_layers, d_model=d_model, n_heads=n_heads)
    norm = LayerNorm(eps=1e-5, bias=bias)
    attention = Attention(
        n_heads=n_heads,
        n_kv_heads=n_heads,
        head_dim=head_dim("GPT2", d_model, n_heads),
        qkv_bias=bias,
        out_bias=bias,
        rope=None,
    )
    wide = 4 * d_model if d_ff == "4 * d_model" else d_ff
    feed_forward = FeedForward(d_ff=wide, activation="gelu_tanh", bias=bias)
    return Decoder(
        n_layers=n_layers,
        d_model=d_model,
        max_seq_len=max_seq_len,
        blocks=(Block(mixer=attention, feed_forward=feed_forward, norm=norm),),
        learned_positions=True,
        final_norm=norm,
        tied=tied,
        initial=gpt2_initial(n_layers=n_layers, d_model=d_model),
    )
