"""Attention of every kind, small: what holds for one should hold for all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from modelfactory.models import (
    Attention,
    Block,
    Decoder,
    GatedFeedForward,
    LatentAttention,
    LayerNorm,
    LinearScaling,
    Llama3Scaling,
    QKNorm,
    RMSNorm,
    Rope,
    YaRN,
    gpt2_initial,
)

VOCAB = 61
NORM = RMSNorm(eps=1e-5)
PLAIN = Attention(
    n_heads=4, n_kv_heads=2, head_dim=8, qkv_bias=False, out_bias=False, rope=Rope(theta=10_000.0)
)
LATENT = LatentAttention(
    n_heads=4,
    q_rank=None,
    kv_rank=12,
    nope_head_dim=6,
    rope_head_dim=4,
    v_head_dim=5,
    rope=Rope(theta=10_000.0),
    norm=NORM,
)
STRETCHED = Rope(theta=10_000.0, scaling=YaRN(factor=4.0, original_max_seq_len=16))
LONG = Rope(
    theta=500.0,
    scaling=Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_seq_len=16),
)
MIXERS: dict[str, Any] = {
    "plain": PLAIN,
    "no positions, biases": replace(PLAIN, rope=None, qkv_bias=True, out_bias=True),
    "window": replace(PLAIN, window=5),
    "window in blocks": replace(PLAIN, window=8),
    "softcap, window in blocks": replace(PLAIN, window=9, softcap=0.8),
    "window of one": replace(PLAIN, window=1),
    "softcap": replace(PLAIN, softcap=0.5),
    "softcap, window, scale": replace(PLAIN, softcap=2.0, window=7, scale=1.5),
    "norm of heads": replace(PLAIN, qk_norm=QKNorm(norm=NORM, over="head")),
    "norm of the width": replace(PLAIN, qk_norm=QKNorm(norm=NORM, over="width")),
    "norm with a bias": replace(PLAIN, qk_norm=QKNorm(norm=LayerNorm(eps=1e-5, bias=True), over="width")),
    "gate": replace(PLAIN, gate=True, qkv_bias=True),
    "a part turns": replace(PLAIN, rope=Rope(theta=100.0, share=0.5)),
    "linear": replace(PLAIN, rope=Rope(theta=100.0, scaling=LinearScaling(factor=3.0))),
    "yarn": replace(PLAIN, rope=STRETCHED),
    "llama 3": replace(PLAIN, rope=LONG),
    "all at once": replace(
        PLAIN,
        window=6,
        softcap=1.0,
        qk_norm=QKNorm(norm=NORM, over="head"),
        gate=True,
        rope=replace(STRETCHED, share=0.5),
    ),
    "one key head": replace(PLAIN, n_kv_heads=1, window=3),
    "latent": LATENT,
    "latent of queries": replace(LATENT, q_rank=7, scale=0.3, rope=STRETCHED),
}


def decoder(mixer: Any, *more: Any, max_seq_len: int = 64) -> Decoder:
    """Return two layers, or as many as there are mixers."""
    mixers = (mixer, *more)
    feed_forward = GatedFeedForward(d_ff=48, activation="silu", bias=False)
    return Decoder(
        n_layers=max(len(mixers), 2),
        d_model=32,
        max_seq_len=max_seq_len,
        blocks=tuple(Block(mixer=each, feed_forward=feed_forward, norm=NORM) for each in mixers),
        learned_positions=False,
        final_norm=NORM,
        tied=False,
        initial=replace(gpt2_initial(n_layers=2, d_model=32), matrix_std=0.3),
    )
