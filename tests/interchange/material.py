"""Small models of every family, and a tokenizer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from modelfactory.interchange.families.shared import with_mixer
from modelfactory.models import (
    GPT2,
    Bamba,
    Decoder,
    Gemma2,
    LinearScaling,
    Llama,
    Llama3Scaling,
    Mixtral,
    OLMo2,
    Qwen2,
    Qwen3,
    Qwen3MoE,
    YaRN,
)
from modelfactory.tokens.tokenizer import Tokenizer
from modelfactory.tokens.tokenizer_stage import train_bpe

FILES = Path(__file__).parent / "files"
VOCAB_SIZE = 300
SIZES: dict[str, Any] = {"n_layers": 3, "d_model": 64, "n_heads": 4, "max_seq_len": 48}
LLAMA_3 = Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_seq_len=8192)

SPECS: dict[str, tuple[str, Decoder]] = {
    "gpt2": ("GPT2LMHeadModel", GPT2(**SIZES)),
    "llama": ("LlamaForCausalLM", Llama(**SIZES, n_kv_heads=2)),
    "llama tied": ("LlamaForCausalLM", Llama(**SIZES, tied=True, d_ff=112)),
    "llama 3": (
        "LlamaForCausalLM",
        Llama(
            **SIZES,
            rope_theta=500_000.0,
            rope_scaling=Llama3Scaling(
                factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_seq_len=16
            ),
        ),
    ),
    "llama linear": ("LlamaForCausalLM", Llama(**SIZES, rope_scaling=LinearScaling(factor=4.0))),
    "llama yarn": (
        "LlamaForCausalLM",
        Llama(**SIZES, rope_scaling=YaRN(factor=4.0, original_max_seq_len=12)),
    ),
    "mistral": ("MistralForCausalLM", with_mixer(Llama(**SIZES, n_kv_heads=2), window=8)),
    "granite": (
        "GraniteForCausalLM",
        replace(with_mixer(Llama(**SIZES, tied=True), scale=1 / 16), embedding_scale=12.0, logit_scale=0.125),
    ),
    "qwen2": ("Qwen2ForCausalLM", Qwen2(**SIZES, n_kv_heads=1)),
    "qwen3": ("Qwen3ForCausalLM", Qwen3(**SIZES, head_dim=32, n_kv_heads=2)),
    "olmo2": ("Olmo2ForCausalLM", OLMo2(**SIZES)),
    "gemma2": (
        "Gemma2ForCausalLM",
        Gemma2(**SIZES, d_ff=96, window=8, head_dim=32, n_kv_heads=2, scale=24**-0.5),
    ),
    "mixtral": ("MixtralForCausalLM", Mixtral(**SIZES, d_ff=96, n_experts=4)),
    "qwen3 moe": (
        "Qwen3MoeForCausalLM",
        Qwen3MoE(**SIZES, d_ff=32, n_experts=6, n_active=2, head_dim=16, balance=None),
    ),
    "bamba": (
        "BambaForCausalLM",
        Bamba(**SIZES, attention_layers=(1,), mamba_heads=8, mamba_head_dim=16, state_dim=16, n_groups=2),
    ),
}
"""Name -> the class of transformers, and a decoder."""


def built(spec: Decoder, vocab_size: int = VOCAB_SIZE) -> torch.nn.Module:
    """Return a module whose every parameter is off its start: biases and gains count too."""
    module: torch.nn.Module = spec.build(vocab_size, seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return module.eval()


def some_tokens(spec: Decoder, vocab_size: int = VOCAB_SIZE) -> torch.Tensor:
    """Return three rows as long as the context."""
    generator = torch.Generator().manual_seed(3)
    return torch.randint(vocab_size, (3, spec.max_seq_len), generator=generator)


def bpe() -> Tokenizer:
    """Return a byte-level tokenizer of at most VOCAB_SIZE tokens."""
    text = (FILES / "tinystories_sample5.txt").read_text("utf-8")
    return Tokenizer(train_bpe([[text]], VOCAB_SIZE, ("<|endoftext|>", "<|turn|>")), eos_id=0)


def assert_equal_states(found: Any, wanted: Any) -> None:
    """Every bit, and no tensor more or less."""
    assert sorted(found) == sorted(wanted)
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor), name
