"""Mixtral (Jiang et al. 2024, arXiv 2401.04088)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from modelfactory.models.experts import AuxiliaryBalance, Experts
from modelfactory.models.llama import Llama

if TYPE_CHECKING:
    from modelfactory.models.decoder import Decoder
    from modelfactory.models.feed_forward import GatedFeedForward


def Mixtral(
    *,
    n_layers: int,
    d_model: int,
    n_heads: int,
    max_seq_len: int,
    n_experts: int = 8,
    n_active: int = 2,
    rope_theta: float = 1_000_000.0,
    balance: float | None = 0.02,
    **options: Any,
) -> Decoder:
    """Return a Mixtral-like decoder: a Llama with experts, whose weights are a softmax over the chosen ones.

    `d_ff` is that of one expert. `balance` weighs the auxiliary loss, None for none. Further options are
    those of `Llama`: n_kv_heads, head_dim, d_ff, rope_scaling, norm_eps, tied.
    """
    decoder = Llama(
        n_layers=n_layers,
        d_model=d_model,
        n_heads=n_heads,
        max_seq_len=max_seq_len,
        rope_theta=rope_theta,
        **options,
    )
    return with_experts(decoder, n_experts=n_experts, n_active=n_active, balance=balance)


def with_experts(
    decoder: Decoder, *, n_experts: int, n_active: int, balance: float | None, renormalised: bool = True
) -> Decoder:
    """Return the decoder with experts in place of each feed-forward, each of its width."""
    (block,) = decoder.blocks
    experts = Experts(
        n_experts=n_experts,
        n_active=n_active,
        expert=cast("GatedFeedForward", block.feed_forward),
        shared=None,
        score="softmax",
        renormalised=renormalised,
        balance=None if balance is None else AuxiliaryBalance(weight=balance),
    )
    return replace(decoder, blocks=(replace(block, feed_forward=experts),))
