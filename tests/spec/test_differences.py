"""What differs between two specs, in words that can be read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from modelfactory.models import GPT2, Adapted, Llama, LoRA, Mamba2, RMSNorm
from modelfactory.spec import difference
from modelfactory.spec.differences import LONGEST
from modelfactory.train import Constant, Cosine

LLAMA = Llama(n_layers=2, d_model=64, n_heads=2, max_seq_len=64)
DEEPER = Llama(n_layers=3, d_model=64, n_heads=2, max_seq_len=64)
ADAPTED = Adapted(base=LLAMA, lora=LoRA(rank=2, alpha=4.0))
ADDED = 'lora: nothing -> LoRA(rank=2, alpha=4.0, targets="all")'


def told(before: Any, after: Any) -> list[str]:
    return [str(change) for change in difference(before, after)]


def test_a_model_and_the_same_with_adapters_differ_in_the_adapters() -> None:
    assert told(LLAMA, ADAPTED) == ["type: Decoder -> Adapted", ADDED]
    assert told(ADAPTED, LLAMA) == [
        "type: Adapted -> Decoder",
        'lora: LoRA(rank=2, alpha=4.0, targets="all") -> nothing',
    ]


def test_what_is_within_is_compared_with_what_stood_alone() -> None:
    found = told(DEEPER, ADAPTED)
    assert found[:2] == ["type: Decoder -> Adapted", "base.n_layers: 3 -> 2"]
    assert found[-1] == ADDED
    assert [line.split(":")[0] for line in found[2:-1]] == ["base.initial.residual_std"]


def test_short_specs_of_two_classes_are_shown_whole() -> None:
    constant, cosine = Constant(warmup_steps=1), Cosine(warmup_steps=1, final_share=0.1)
    assert told(constant, cosine) == [
        "type: Constant(warmup_steps=1) -> Cosine(warmup_steps=1, final_share=0.1)"
    ]


def test_long_specs_of_two_classes_are_named_and_differ_in_fields() -> None:
    attention = LLAMA.blocks[0].mixer
    mamba = Mamba2(
        n_heads=4,
        head_dim=16,
        state_dim=16,
        n_groups=1,
        conv_width=4,
        conv_bias=True,
        bias=False,
        norm_eps=1e-5,
    )
    found = told(LLAMA, replace(LLAMA, blocks=(replace(LLAMA.blocks[0], mixer=mamba),)))
    assert found[0] == "blocks[0].mixer: Attention -> Mamba2"
    assert f"blocks[0].mixer.n_heads: {attention.n_heads} -> 4" in found  # type: ignore[attr-defined]
    assert "blocks[0].mixer.state_dim: nothing -> 16" in found
    assert not any("Decoder(" in line for line in found)
    assert max(map(len, found)) < 2 * LONGEST


@pytest.mark.parametrize(("before", "after"), [(ADAPTED, None), (None, ADAPTED)])
def test_a_long_spec_in_place_of_nothing_is_told_in_brief(before: Any, after: Any) -> None:
    (line,) = told(before, after)
    assert "Adapted(base=Decoder(...), lora=LoRA(...))" in line


def test_a_block_more_is_told_in_brief() -> None:
    more = replace(LLAMA, blocks=(*LLAMA.blocks, replace(LLAMA.blocks[0], norm=RMSNorm(eps=1e-6))))
    (line,) = told(LLAMA, more)
    layers = "mixer=Attention(...), feed_forward=GatedFeedForward(...), norm=RMSNorm(...)"
    assert line == f'blocks[1]: nothing -> Block({layers}, placement="pre")'


def test_two_decoders_differ_field_by_field() -> None:
    found = told(LLAMA, GPT2(n_layers=2, d_model=64, n_heads=2, max_seq_len=64))
    assert "tied: false -> true" in found
    assert not any(line.startswith("type") for line in found)
