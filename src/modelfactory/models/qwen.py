"""Qwen 2 (Yang et al. 2024, arXiv 2407.10671), Qwen 3 and its mixture of experts (2025, arXiv 2505.09388)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from modelfactory.models.attention import Attention, QKNorm
from modelfactory.models.llama import Llama
from modelfactory.models.mixtral import with_experts
from modelfactory.models.norms import RMSNorm

if TYPE_CHECKING:
    from modelfactory.models.decoder import Decoder

_THETA = 1_000_000.0


def Qwen2(
    *,
    n_layers: int,
    d_model: int,
    n_heads: int,
    max_seq_len: int,
    rope_theta: float = _THETA,
    norm_eps: float = 1e-6,
    tied: bool = True,
    **options: Any,
) -> Decoder:
    """Return a Qwen-2-like decoder: a Llama with biases of queries, keys and values.

    Further options are those of `Llama`: n_kv_heads, head_dim, d_ff, rope_scaling. The head is tied in the
    published models up to 1.5B.
    """
    own: dict[str, Any] = {"rope_theta": rope_theta, "norm_eps": norm_eps, "tied": tied}
    decoder = Llama(
        n_layers=n_layers, d_model=d_model, n_heads=n_heads, max_seq_len=max_seq_len, **own, **options
    )
    return _with_mixer(decoder, qkv_bias=True)


def Qwen3(
    *,
    n_layers: int,
    d_model: int,
    n_heads: int,
    max_seq_len: int,
    head_dim: int = 128,
    rope_theta: float = _THETA,
    norm_eps: float = 1e-6,
    tied: bool = True,
    **options: Any,
) -> Decoder:
    """Return a Qwen-3-like decoder: a Llama whose queries and keys are normalised head by head.

    Further options are those of `Llama`: n_kv_heads, d_ff, rope_scaling. The head is tied in the published
    models up to 4B.
    """
    own: dict[str, Any] = {"head_dim": head_dim, "rope_theta": rope_theta, "norm_eps": norm_eps, "tied": tied}
    decoder = Llama(
        n_layers=n_layers, d_model=d_model, n_heads=n_heads, max_seq_len=max_seq_len, **own, **options
    )
    return _with_mixer(decoder, qk_norm=QKNorm(norm=RMSNorm(eps=norm_eps), over="head"))


def Qwen3MoE(
    *,
    n_layers: int,
    d_model: int,
    n_heads: int,
    max_seq_len: int,
    n_experts: int = 128,
    n_active: int = 8,
    renormalised: bool = True,
    balance: float | None = 0.001,
    tied: bool = False,
    **options: Any,
) -> Decoder:
    """Return a Qwen-3-like decoder with experts in every layer; `d_ff` is that of one expert.

    `balance` weighs the auxiliary loss, None for none. Further options are those of `Qwen3`.
    """
    decoder = Qwen3(
        n_layers=n_layers, d_model=d_model, n_heads=n_heads, max_seq_len=max_seq_len, tied=tied, **options
    )
    chosen: dict[str, Any] = {"n_experts": n_experts, "n_active": n_active, "renormalised": renormalised}
    return with_experts(decoder, balance=balance, **chosen)


def _with_mixer(decoder: Decoder, **fields: Any) -> Decoder:
    """Return the decoder with these fields of its attention changed."""
    (block,) = decoder.blocks
    mixer = replace(cast("Attention", block.mixer), **fields)
    return replace(decoder, blocks=(replace(block, mixer=mixer),))
