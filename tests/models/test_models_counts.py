from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from inspect import isfunction
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from modelfactory import models
from modelfactory.errors import SpecError
from modelfactory.models import (
    GPT2,
    Bamba,
    Block,
    BuildContext,
    Decoder,
    Experts,
    FeedForward,
    GatedDelta,
    GatedFeedForward,
    Gemma2,
    LatentAttention,
    LayerNorm,
    Llama,
    Mamba2,
    Mixtral,
    MultiToken,
    OLMo2,
    Qwen2,
    Qwen3,
    Qwen3MoE,
    RMSNorm,
    Rope,
)
from modelfactory.models.lora import Adapted
from modelfactory.models.modules import initialise

if TYPE_CHECKING:
    from collections.abc import Iterator

GPT2_SMALL = GPT2(n_layers=12, d_model=768, n_heads=12, max_seq_len=1024)
PUBLISHED = {
    "gpt2": (GPT2_SMALL, 50_257, 124_439_808),
    "gpt2-xl": (GPT2(n_layers=48, d_model=1600, n_heads=25, max_seq_len=1024), 50_257, 1_557_611_200),
    "Llama-2-7B": (
        Llama(n_layers=32, d_model=4096, n_heads=32, max_seq_len=4096, d_ff=11_008),
        32_000,
        6_738_415_616,
    ),
    "Llama-3-8B": (
        Llama(
            n_layers=32,
            d_model=4096,
            n_heads=32,
            n_kv_heads=8,
            max_seq_len=8192,
            d_ff=14_336,
            rope_theta=500_000.0,
        ),
        128_256,
        8_030_261_248,
    ),
    "SmolLM-135M": (
        Llama(n_layers=30, d_model=576, n_heads=9, n_kv_heads=3, max_seq_len=2048, d_ff=1536, tied=True),
        49_152,
        134_515_008,
    ),
}
SMALL: dict[str, Any] = {"n_layers": 2, "d_model": 32, "n_heads": 4, "max_seq_len": 64}
ROPE = Rope(theta=10_000.0)
RECURRENT = {
    "Mamba2": Mamba2(
        n_heads=8, head_dim=16, state_dim=24, n_groups=2, conv_width=4, conv_bias=True, bias=True,
        norm_eps=1e-5, chunk=32,
    ),
    "GatedDelta": GatedDelta(
        n_key_heads=2, n_value_heads=4, key_head_dim=8, value_head_dim=16, conv_width=4, norm_eps=1e-5,
        chunk=32,
    ),
}  # fmt: skip
LLAMA = Llama(**SMALL, n_kv_heads=2, d_ff=40)
(BLOCK,) = LLAMA.blocks


def with_block(**changes: Any) -> Decoder:
    return dataclasses.replace(LLAMA, blocks=(dataclasses.replace(BLOCK, **changes),))


EVERY = {
    "Llama": LLAMA,
    "GPT2": GPT2(**SMALL, d_ff=40),
    "Qwen2": Qwen2(**SMALL, n_kv_heads=2, d_ff=40),
    "Qwen3": Qwen3(**SMALL, n_kv_heads=2, d_ff=40, head_dim=8),
    "OLMo2": OLMo2(**SMALL, n_kv_heads=2, d_ff=40),
    "Gemma2": Gemma2(**SMALL, n_kv_heads=2, d_ff=40, head_dim=8, window=16),
    "Mixtral": Mixtral(**SMALL, n_kv_heads=2, d_ff=40),
    "Qwen3MoE": Qwen3MoE(**SMALL, n_kv_heads=2, head_dim=8, d_ff=40, n_experts=8, n_active=2),
    "Bamba": Bamba(**SMALL, attention_layers=(1,), mamba_heads=4, mamba_head_dim=16, state_dim=8),
    "latent": with_block(
        mixer=LatentAttention(
            n_heads=4,
            q_rank=12,
            kv_rank=10,
            nope_head_dim=8,
            rope_head_dim=4,
            v_head_dim=8,
            rope=ROPE,
            norm=RMSNorm(eps=1e-5),
        )
    ),
    "gate": with_block(mixer=dataclasses.replace(BLOCK.mixer, gate=True)),
    "shared expert": with_block(
        feed_forward=Experts(
            n_experts=8,
            n_active=2,
            expert=BLOCK.feed_forward,
            shared=BLOCK.feed_forward,
            shared_gate=True,
            score="sigmoid",
            renormalised=True,
            balance=None,
        )
    ),
    "sandwich of LayerNorms": with_block(norm=LayerNorm(eps=1e-5, bias=True), placement="sandwich"),
    "multi-token": dataclasses.replace(LLAMA, multi_token=MultiToken(n_extra=1, weight=0.3, block=BLOCK)),
    **{name: with_block(mixer=mixer) for name, mixer in RECURRENT.items()},
}
TINY = {
    "gpt2": GPT2(n_layers=2, d_model=32, n_heads=4, max_seq_len=16),
    "gpt2, no bias, untied": GPT2(
        n_layers=3, d_model=48, n_heads=4, max_seq_len=16, bias=False, tied=False, d_ff=100
    ),
    "llama": Llama(n_layers=2, d_model=32, n_heads=4, n_kv_heads=2, max_seq_len=16),
    "llama, tied, multi-query": Llama(
        n_layers=1, d_model=32, n_heads=4, n_kv_heads=1, max_seq_len=16, tied=True
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_published_ones(name: str) -> None:
    model, vocab_size, published = PUBLISHED[name]
    assert model.n_parameters(vocab_size) == published


@pytest.mark.parametrize("name", TINY | EVERY)
def test_formula_counts_what_is_built(name: str) -> None:
    model = (TINY | EVERY)[name]
    module = model.build(97, seed=0)
    assert sum(parameter.numel() for parameter in module.parameters()) == model.n_parameters(97)


def test_every_family_and_every_layer_is_counted() -> None:
    """A new one is to be put into EVERY."""
    families = {name for name in models.__all__ if name[0].isupper() and isfunction(getattr(models, name))}
    assert families <= {name.partition(",")[0] for name in EVERY}
    known = {
        kind
        for name in models.__all__
        if isinstance(kind := getattr(models, name), type)
        and hasattr(kind, "flops_per_token")
        and dataclasses.is_dataclass(kind)
    }
    counted = {type(part) for model in EVERY.values() for part in walked(model)}
    assert known - {Block, Decoder, Adapted} <= counted


def walked(part: Any) -> Iterator[Any]:
    """Yield a spec and all within it."""
    yield part
    inner = (
        part
        if isinstance(part, tuple)
        else [getattr(part, f.name) for f in dataclasses.fields(part)]
        if dataclasses.is_dataclass(part)
        else []
    )
    for each in inner:
        yield from walked(each)


HEAD = 6 * (32 + 97 * 32)
"""FLOPs of the last norm and of the head, of EVERY but the exceptions; and PAIR, of two norms."""
PAIR = 6 * 2 * 32
GATED = 6 * 3 * 32 * 40
ATTENTION = 6 * (32 * (4 + 2 * 2) * 8 + 4 * 8 * 32)
MIXED = 12 * 4 * 8
"""Of one position seen."""
BY_HAND = {
    "Llama": 2 * (ATTENTION + MIXED * 64 + GATED + PAIR) + HEAD,
    "GPT2": 2 * (6 * (32 * 96 + 96 + 32 * 32 + 32) + MIXED * 64 + 6 * (2 * 32 * 40 + 40 + 32) + 2 * PAIR)
    + 6 * (2 * 32 + 97 * 32),
    "Qwen2": 2 * (ATTENTION + 6 * 8 * 8 + MIXED * 64 + GATED + PAIR) + HEAD,
    "Qwen3": 2 * (ATTENTION + 6 * 2 * 8 + MIXED * 64 + GATED + PAIR) + HEAD,
    "OLMo2": 2 * (ATTENTION + 6 * (32 + 16) + MIXED * 64 + GATED + PAIR) + HEAD,
    "Gemma2": 2 * (ATTENTION + GATED + 2 * PAIR) + MIXED * (16 + 64) + HEAD,
    "Mixtral": 2 * (ATTENTION + MIXED * 64 + 6 * 32 * 8 + 2 * GATED + PAIR) + HEAD,
    "Qwen3MoE": 2 * (ATTENTION + 6 * 2 * 8 + MIXED * 64 + 6 * 32 * 8 + 2 * GATED + PAIR) + HEAD,
    "latent": 2
    * (
        6 * (32 * (12 + 10 + 4) + 12 * 4 * 12 + 10 * 4 * (8 + 8) + 22 + 32 * 32)
        + 6 * 4 * (12 + 8) * 64
        + GATED
        + PAIR
    )
    + HEAD,
    "gate": 2 * (ATTENTION + 6 * 32 * 32 + MIXED * 64 + GATED + PAIR) + HEAD,
    "shared expert": 2 * (ATTENTION + MIXED * 64 + 6 * 32 * (8 + 1) + 3 * GATED + PAIR) + HEAD,
    "multi-token": 3 * (ATTENTION + MIXED * 64 + GATED + PAIR) + 2 * HEAD + 6 * (2 * 32 * 32 + 2 * 32),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_flops_are_those_written_out_by_hand(name: str) -> None:
    assert EVERY[name].flops_per_token(97, 64) == BY_HAND[name]


def test_a_window_counts_where_it_is_shorter_than_the_row() -> None:
    model = EVERY["Gemma2"]
    per_token = [model.flops_per_token(97, length) for length in (8, 16, 32)]
    assert per_token[1] - per_token[0] == MIXED * (8 + 8)
    assert per_token[2] - per_token[1] == MIXED * 16, "only one of the two layers sees more"


def test_experts_that_a_token_does_not_meet_cost_nothing() -> None:
    few, many = (Mixtral(**SMALL, n_kv_heads=2, d_ff=40, n_experts=n) for n in (4, 8))
    router = 6 * 32 * 4 * 2
    assert many.flops_per_token(97, 64) - few.flops_per_token(97, 64) == router
    assert many.n_parameters(97) - few.n_parameters(97) == 2 * (4 * 3 * 32 * 40 + 4 * 32)


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_mixers_cost_what_is_multiplied(name: str) -> None:
    """Torch counts matrix products; triangular systems, convolutions and vectors make the rest, under 7 %."""
    layer = RECURRENT[name]
    d_model, batch, length = 64, 2, 128
    module = layer.build(BuildContext(d_model=d_model, max_seq_len=length, initial=TINY["gpt2"].initial))
    initialise(module, 0)
    x_BTD = torch.randn(batch, length, d_model, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        module(x_BTD, None, None).sum().backward()
    counted = counter.get_total_flops() / (batch * length)
    assert 1.0 <= layer.flops_per_token(d_model, length) / counted < 1.07


def test_flops_of_gpt2_small_at_1024() -> None:
    assert GPT2_SMALL.flops_per_token(50_257, 1024) == 855_166_464


def test_flops_are_6n_plus_12lhqt() -> None:
    model = TINY["llama"]
    n_parameters = model.n_parameters(97) - 97 * 32  # one of the two vocabulary matrices only looks up
    assert model.flops_per_token(97, 16) == 6 * n_parameters + 12 * 2 * 4 * 8 * 16


@pytest.mark.parametrize("name", TINY)
def test_tying_changes_no_flops(name: str) -> None:
    model = TINY[name]
    other = dataclasses.replace(model, tied=not model.tied)
    assert model.flops_per_token(97, 16) == other.flops_per_token(97, 16)
    assert abs(model.n_parameters(97) - other.n_parameters(97)) == 97 * model.d_model


@pytest.mark.parametrize(("d_model", "d_ff"), [(32, 128), (384, 1024), (4096, 10_944), (96, 256), (97, 320)])
def test_d_ff_of_llama_is_eight_thirds_rounded_up_to_64(d_model: int, d_ff: int) -> None:
    model = Llama(n_layers=1, d_model=d_model, n_heads=1, max_seq_len=8) if d_model % 2 == 0 else None
    if model is None:
        from modelfactory.models.llama import default_d_ff

        assert default_d_ff(d_model) == d_ff
        return
    layer = model.blocks[0].feed_forward
    assert isinstance(layer, GatedFeedForward)
    assert layer.d_ff == d_ff
    assert d_ff % 64 == 0
    assert 0 <= d_ff - 8 * d_model / 3 < 64


def test_all_that_is_derived_is_written_out() -> None:
    layer = GPT2_SMALL.blocks[0].feed_forward
    assert isinstance(layer, FeedForward)
    assert layer.d_ff == 3072
    assert math.isclose(GPT2_SMALL.initial.residual_std, 0.02 / math.sqrt(24))
    assert isinstance(GPT2_SMALL, Decoder)


def test_a_pattern_of_blocks_repeats_over_the_depth() -> None:
    wide = GPT2(n_layers=1, d_model=32, n_heads=4, max_seq_len=16, d_ff=64).blocks[0]
    narrow = GPT2(n_layers=1, d_model=32, n_heads=4, max_seq_len=16, d_ff=16).blocks[0]
    model = dataclasses.replace(TINY["gpt2"], n_layers=5, blocks=(wide, narrow))
    widths = [block.feed_forward.up.out_features for block in model.build(97, seed=0).blocks]
    assert widths == [64, 16, 64, 16, 64]
    assert sum(p.numel() for p in model.build(97, seed=0).parameters()) == model.n_parameters(97)


def test_specs_need_no_torch() -> None:
    code = (
        "import sys; from modelfactory.models import GPT2; import modelfactory.train;"
        "GPT2(n_layers=12, d_model=768, n_heads=12, max_seq_len=1024).n_parameters(50257);"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_module_of_ones_own_needs_initialise() -> None:
    with pytest.raises(SpecError, match=r"model\.0: found Linear, which holds parameters but no init"):
        initialise(torch.nn.Sequential(torch.nn.Linear(2, 2)), 0)
