"""What attention refuses at declaration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from modelfactory.errors import SpecError
from modelfactory.models import (
    GPT2,
    Attention,
    LatentAttention,
    LinearScaling,
    Llama,
    Llama3Scaling,
    QKNorm,
    Rope,
    YaRN,
)
from modelfactory.models.rope_module import frequencies
from modelfactory.spec import collecting
from tests.models.mixers import LATENT, PLAIN, decoder

ROPE = Rope(theta=10_000.0)
LLAMA3 = Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_seq_len=8_192)
BAD: list[tuple[Any, dict[str, Any], str]] = [
    (PLAIN, {"n_kv_heads": 3}, "Attention.n_kv_heads: found 3, wanted a divisor of n_heads 4"),
    (PLAIN, {"window": 0}, "Attention.window: found 0, wanted at least 1"),
    (PLAIN, {"softcap": 0.0}, r"Attention.softcap: found 0.0, wanted 1e-06 to 1e\+06"),
    (PLAIN, {"softcap": -50.0}, "Attention.softcap: found -50.0"),
    (PLAIN, {"scale": 0.0}, "Attention.scale: found 0.0"),
    (PLAIN, {"head_dim": 7}, "Attention.head_dim: found 7, wanted an even number"),
    (
        PLAIN,
        {"rope": Rope(theta=1e4, share=0.4)},
        "Attention.head_dim: found .*3 of 8 dimensions at Rope.share 0.4.*wanted an even number",
    ),
    (
        PLAIN,
        {"rope": Rope(theta=1e4, share=0.1)},
        "Rope.share: found 0.1, wanted a share that turns at least",
    ),
    (ROPE, {"share": 0.0}, "Rope.share: found 0.0, wanted above 0 and at most 1"),
    (ROPE, {"share": 1.5}, "Rope.share: found 1.5"),
    (ROPE, {"scaling": 2.0}, "Rope.scaling: found 2.0, wanted a LinearScaling or a YaRN or a Llama3Scaling"),
    (LinearScaling(factor=2.0), {"factor": 1.0}, "LinearScaling.factor: found 1.0, wanted a number above 1"),
    (LinearScaling(factor=2.0), {"factor": 0.5}, "LinearScaling.factor: found 0.5"),
    (YaRN(factor=2.0, original_max_seq_len=9), {"factor": 1.0}, "YaRN.factor: found 1.0"),
    (YaRN(factor=2.0, original_max_seq_len=9), {"original_max_seq_len": 0}, "YaRN.original_max_seq_len"),
    (YaRN(factor=2.0, original_max_seq_len=9), {"beta_slow": 40.0}, "YaRN.beta_slow: found 40.0"),
    (YaRN(factor=2.0, original_max_seq_len=9), {"attention_factor": 0.0}, "YaRN.attention_factor: found 0.0"),
    (LLAMA3, {"factor": 1.0}, "Llama3Scaling.factor: found 1.0"),
    (LLAMA3, {"low_freq_factor": 4.0}, "Llama3Scaling.low_freq_factor: found 4.0"),
    (LATENT, {"kv_rank": 0}, "LatentAttention.kv_rank: found 0"),
    (LATENT, {"q_rank": 0}, "LatentAttention.q_rank: found 0"),
    (LATENT, {"rope_head_dim": 3}, "LatentAttention.rope_head_dim: found 3, wanted an even number"),
    (LATENT, {"rope": Rope(theta=1e4, share=0.5)}, "LatentAttention.rope.share: found 0.5, wanted 1"),
    (LATENT, {"scale": -1.0}, "LatentAttention.scale: found -1.0"),
]


@pytest.mark.parametrize(("good", "fields", "message"), BAD)
def test_what_cannot_work_is_refused(good: Any, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        replace(good, **fields)


@pytest.mark.parametrize(("good", "fields", "message"), BAD)
def test_faults_can_be_collected(good: Any, fields: dict[str, Any], message: str) -> None:
    with collecting() as faults:
        replace(good, **fields)
    assert any(message.partition(":")[0] in str(fault) for fault in faults)


@pytest.mark.parametrize("window", [64, 65])
def test_a_window_as_long_as_the_context_is_refused(window: int) -> None:
    message = f"Attention.window: found {window}, wanted below max_seq_len 64.*no effect"
    with pytest.raises(SpecError, match=message):
        decoder(replace(PLAIN, window=window))
    assert decoder(replace(PLAIN, window=63)).max_seq_len == 64


def test_only_one_layer_of_the_pattern_needs_to_be_wrong() -> None:
    with pytest.raises(SpecError, match=r"Attention\.window"):
        decoder(PLAIN, replace(PLAIN, window=80))


def test_a_norm_of_something_else_is_refused() -> None:
    with pytest.raises(SpecError, match=r"QKNorm\.over"):
        QKNorm(norm=PLAIN.qk_norm or LATENT.norm, over="row")  # type: ignore[arg-type]


def test_old_declarations_keep_their_identity() -> None:
    """Fields that were added later stay out of it."""
    from modelfactory.spec import identity_json

    assert identity_json(PLAIN) == (
        '{"head_dim":8,"n_heads":4,"n_kv_heads":2,"out_bias":false,"qkv_bias":false,"rope":{"theta":10000.0,'
        '"type":"modelfactory.models.attention:Rope"},"type":"modelfactory.models.attention:Attention"}'
    )
    assert isinstance(PLAIN, Attention)
    assert isinstance(LATENT, LatentAttention)


@pytest.mark.parametrize(
    ("scaling", "wanted"),
    [
        # 8 dimensions, theta 10,000: the slowest pair turns once in 2 pi * 1,000 positions.
        (replace(LLAMA3, original_max_seq_len=25_133), r"below 25,133: .* turns 4 times or more"),
        (replace(LLAMA3, original_max_seq_len=10**9), "below 25,133"),
        (YaRN(factor=4.0, original_max_seq_len=201_062), r"below 201,062: .* turns 32 times or more"),
        (YaRN(factor=4.0, original_max_seq_len=10**9, whole_pairs=False), "below 201,062"),
    ],
)
def test_a_scaling_that_stretches_no_pair_is_refused(scaling: Any, wanted: str) -> None:
    rope = Rope(theta=10_000.0, scaling=scaling)
    for spec, changes in ((PLAIN, {"head_dim": 8}), (LATENT, {"rope_head_dim": 8})):
        with pytest.raises(SpecError, match=rf"{type(scaling).__name__}\.original_max_seq_len: .*{wanted}"):
            replace(spec, rope=rope, **changes)
        shorter = replace(scaling, original_max_seq_len=25_132)
        kept = replace(spec, rope=replace(rope, scaling=shorter), **changes)
        assert not torch.equal(frequencies(kept.rope, 8), frequencies(replace(rope, scaling=None), 8))


@pytest.mark.parametrize("family", [Llama, GPT2])
@pytest.mark.parametrize(
    ("name", "size"), [("d_model", 64.0), ("d_model", None), ("n_heads", "64"), ("n_layers", True)]
)
def test_sizes_that_are_no_whole_numbers_are_named(family: Any, name: str, size: Any) -> None:
    sizes = {"n_layers": 2, "d_model": 64, "n_heads": 2, "max_seq_len": 64} | {name: size}
    with pytest.raises(
        SpecError, match=rf"^{family.__name__}\.{name}: found {size!r}, wanted a whole number"
    ):
        family(**sizes)
