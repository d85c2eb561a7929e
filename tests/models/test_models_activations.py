"""What formulas say that layers keep, against the tensors that autograd saves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from modelfactory.models import (
    Attention,
    AuxiliaryBalance,
    BuildContext,
    Experts,
    FeedForward,
    GatedDelta,
    GatedFeedForward,
    LatentAttention,
    LayerNorm,
    Mamba2,
    QKNorm,
    RMSNorm,
    Rope,
)
from modelfactory.models.activations import Kept, Pass, kept_by_layer, kept_by_norm
from modelfactory.models.initial import gpt2_initial
from modelfactory.models.modules import initialise

D_MODEL, N_ROWS, SEQ_LEN = 64, 4, 128
RMS, ROPE = RMSNorm(eps=1e-5), Rope(theta=10_000.0)
ATTENTION = Attention(n_heads=4, n_kv_heads=2, head_dim=16, qkv_bias=False, out_bias=False, rope=ROPE)
LATENT = LatentAttention(
    n_heads=4, q_rank=24, kv_rank=40, nope_head_dim=16, rope_head_dim=8, v_head_dim=16, rope=ROPE, norm=RMS
)
EXPERTS = Experts(
    n_experts=8,
    n_active=2,
    expert=GatedFeedForward(d_ff=48, activation="silu", bias=False),
    shared=None,
    score="softmax",
    renormalised=True,
    balance=AuxiliaryBalance(weight=0.01),
)
LAYERS: dict[str, Any] = {
    "feed-forward": FeedForward(d_ff=160, activation="gelu", bias=True),
    "relu squared": FeedForward(d_ff=160, activation="relu_squared", bias=False),
    "gated": GatedFeedForward(d_ff=96, activation="silu", bias=False),
    "attention": ATTENTION,
    "no positions": replace(ATTENTION, rope=None, n_kv_heads=4),
    "norm of heads": replace(ATTENTION, qk_norm=QKNorm(norm=RMS, over="head")),
    "norm of widths": replace(ATTENTION, qk_norm=QKNorm(norm=LayerNorm(eps=1e-5, bias=True), over="width")),
    "gate": replace(ATTENTION, gate=True),
    "window in blocks": replace(ATTENTION, window=32),
    "window by a mask": replace(ATTENTION, window=50),
    "bounded": replace(ATTENTION, softcap=30.0),
    "bounded, in a window": replace(ATTENTION, softcap=30.0, window=32),
    "latent": LATENT,
    "latent, wide values": replace(LATENT, q_rank=None, v_head_dim=24),
    "Gated DeltaNet": GatedDelta(
        n_key_heads=2, n_value_heads=4, key_head_dim=16, value_head_dim=16, conv_width=4, norm_eps=1e-5
    ),
    "Mamba-2": Mamba2(
        n_heads=4, head_dim=32, state_dim=64, n_groups=2, conv_width=4, conv_bias=True, bias=False,
        norm_eps=1e-5,
    ),
    "experts": EXPERTS,
    "shared expert": replace(EXPERTS, shared=EXPERTS.expert),
}  # fmt: skip


def saved_bytes(module: torch.nn.Module, *, is_bf16: bool, is_mixer: bool) -> float:
    """Return the bytes that autograd saves for each token, without parameters and copies of them."""
    known = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    copies = sum(2 * p.numel() for p in module.parameters() if p.ndim > 1) if is_bf16 else 0
    found: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            found[storage.data_ptr()] = storage
        return tensor

    x_BTD = torch.randn(N_ROWS, SEQ_LEN, D_MODEL, requires_grad=True) * 1.0
    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_bf16),
    ):
        module(x_BTD, None, None) if is_mixer else module(x_BTD)
    return (sum(storage.nbytes() for storage in found.values()) - copies) / (N_ROWS * SEQ_LEN)


def how(*, is_bf16: bool = True, is_compiled: bool = False, seq_len: int = SEQ_LEN) -> Pass:
    return Pass(seq_len=seq_len, n_rows=N_ROWS, is_bf16=is_bf16, is_compiled=is_compiled)


@pytest.mark.parametrize("is_bf16", [True, False], ids=["bf16", "fp32"])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_keep_what_the_formula_says(name: str, is_bf16: bool) -> None:
    layer, initial = LAYERS[name], gpt2_initial(n_layers=1, d_model=D_MODEL)
    module = layer.build(BuildContext(d_model=D_MODEL, max_seq_len=SEQ_LEN, initial=initial))
    initialise(module, 0)
    saved = saved_bytes(module, is_bf16=is_bf16, is_mixer=hasattr(module, "new_cache"))
    estimated = kept_by_layer(layer, D_MODEL, how(is_bf16=is_bf16)).n_bytes(is_bf16=is_bf16)
    assert estimated == pytest.approx(saved, rel=0.07)


@pytest.mark.parametrize("norm", [RMS, RMSNorm(eps=1e-5, unit_offset=True), LayerNorm(eps=1e-5, bias=True)])
def test_norms_keep_what_the_formula_says(norm: Any) -> None:
    module = norm.build(D_MODEL)
    initialise(module, 0)
    saved = saved_bytes(module, is_bf16=False, is_mixer=False)
    assert kept_by_norm(norm, D_MODEL, how()).n_bytes(is_bf16=True) == pytest.approx(saved, rel=0.03)


def test_compiled_attention_on_a_cpu_keeps_weights_of_whole_blocks_of_queries() -> None:
    """Two blocks of 128 queries: the first meets 128 keys, the second 256; 2 bytes for each weight."""
    long = kept_by_layer(ATTENTION, D_MODEL, how(is_compiled=True, seq_len=256))
    fused = kept_by_layer(ATTENTION, D_MODEL, how(is_compiled=True, seq_len=32))
    weights = 4 * (128 + 256) / 2
    assert long.wide == 0
    assert long.product == D_MODEL + 2 * 64 + 2 * 32 + weights
    assert fused.wide == 4, "short rows go to torch's kernel, which keeps no weights"


def test_a_layer_of_ones_own_may_say_what_it_keeps() -> None:
    class Bare:
        def n_parameters(self, d_model: int) -> int:
            return 10 * d_model

    class Telling(Bare):
        def kept_numbers(self, d_model: int, how: Pass) -> Kept:
            del how
            return Kept(product=3 * d_model)

    bare, telling = (kept_by_layer(kind(), 64, how()) for kind in (Bare, Telling))  # type: ignore[arg-type]
    assert bare == Kept(product=64 + 10)
    assert telling == Kept(product=192)
