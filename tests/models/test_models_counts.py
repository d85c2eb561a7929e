from __future__ import annotations

import dataclasses
import math
import subprocess
import sys

import pytest
import torch

from modelfactory.models import GPT2, Decoder, FeedForward, GatedFeedForward, Llama

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


@pytest.mark.parametrize("name", TINY)
def test_formula_counts_what_is_built(name: str) -> None:
    module = TINY[name].build(97, seed=0)
    assert sum(parameter.numel() for parameter in module.parameters()) == TINY[name].n_parameters(97)


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
    from modelfactory.models.modules import initialise

    with pytest.raises(TypeError, match="holds parameters but no initialise"):
        initialise(torch.nn.Sequential(torch.nn.Linear(2, 2)), 0)
