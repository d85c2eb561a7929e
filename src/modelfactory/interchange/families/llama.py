"""Llama (all three), Mistral, Granite, Qwen 2, Qwen 3 and OLMo 2: one block for all layers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from modelfactory.interchange.families.shared import (
    decoder_pairings,
    is_tied,
    only_block,
    size_fields,
    size_options,
    with_mixer,
)
from modelfactory.interchange.family import Family
from modelfactory.models import Attention, Decoder, GatedFeedForward, Llama, OLMo2, Qwen2, Qwen3

if TYPE_CHECKING:
    from modelfactory.interchange.config import Config


def _llama(config: Config) -> Decoder:
    decoder = Llama(**size_options(config), tied=is_tied(config))
    return _with_biases(decoder, config, feed_forward=config.flag("mlp_bias", default=False))


def _mistral(config: Config) -> Decoder:
    decoder = Llama(**size_options(config), tied=is_tied(config))
    window = config.optional_count("sliding_window")
    if window is not None and window < decoder.max_seq_len:  # a longer one has no effect
        decoder = with_mixer(decoder, window=window)
    return _done(decoder, config)


def _granite(config: Config) -> Decoder:
    decoder = Llama(**size_options(config), tied=is_tied(config))
    (block,) = decoder.blocks
    scale = config.number("attention_multiplier", 1.0)
    usual = cast("Attention", block.mixer).head_dim ** -0.5
    decoder = with_mixer(decoder, scale="1/sqrt(head_dim)" if scale == usual else scale)
    config.only("residual_multiplier", 1.0, absent=1.0)
    decoder = replace(
        decoder,
        embedding_scale=config.number("embedding_multiplier", 1.0),
        logit_scale=1.0 / config.number("logits_scaling", 1.0),
    )
    return _with_biases(decoder, config, feed_forward=config.flag("mlp_bias", default=False))


def _qwen2(config: Config) -> Decoder:
    decoder = Qwen2(**size_options(config), tied=is_tied(config))
    _refuse_windows(config, decoder.n_layers)
    return _done(decoder, config)


def _qwen3(config: Config) -> Decoder:
    decoder = Qwen3(**size_options(config), tied=is_tied(config))
    _refuse_windows(config, decoder.n_layers)
    return _with_biases(decoder, config)


def _olmo2(config: Config) -> Decoder:
    decoder = OLMo2(**size_options(config), tied=is_tied(config))
    return _with_biases(decoder, config)


def _with_biases(decoder: Decoder, config: Config, *, feed_forward: bool = False) -> Decoder:
    """Return the decoder with the biases that config.json asks for; `attention_bias` means all four."""
    (block,) = decoder.blocks
    has_bias = config.flag("attention_bias", default=False)
    mixer = replace(cast("Attention", block.mixer), qkv_bias=has_bias, out_bias=has_bias)
    gated = replace(cast("GatedFeedForward", block.feed_forward), bias=feed_forward)
    return _done(replace(decoder, blocks=(replace(block, mixer=mixer, feed_forward=gated),)), config)


def _refuse_windows(config: Config, n_layers: int) -> None:
    config.only("use_sliding_window", False, absent=False)
    for name in ("sliding_window", "max_window_layers"):  # without effect unless use_sliding_window
        config.get(name)
    config.only("layer_types", None, ["full_attention"] * n_layers)


def _done(decoder: Decoder, config: Config) -> Decoder:
    config.only("hidden_act", "silu", absent="silu")
    config.done()
    return decoder


def _fields(decoder: Decoder, *, of_attention: bool, of_feed_forward: bool = False) -> dict[str, Any] | None:
    """Return config.json, with the fields for biases that the family has."""
    block = only_block(decoder)
    if block is None or not isinstance(block.feed_forward, GatedFeedForward):
        return None
    fields = size_fields(decoder) | {"hidden_act": "silu"}
    if of_attention:
        fields["attention_bias"] = cast("Attention", block.mixer).qkv_bias
    if of_feed_forward:
        fields["mlp_bias"] = block.feed_forward.bias
    return fields


def _mistral_fields(decoder: Decoder) -> dict[str, Any] | None:
    fields = _fields(decoder, of_attention=False)
    if fields is None:
        return None
    return fields | {"sliding_window": cast("Attention", decoder.blocks[0].mixer).window}


def _granite_fields(decoder: Decoder) -> dict[str, Any] | None:
    fields = _fields(decoder, of_attention=True, of_feed_forward=True)
    if fields is None:
        return None
    attention = cast("Attention", decoder.blocks[0].mixer)
    return fields | {
        "attention_multiplier": attention.head_dim**-0.5
        if isinstance(attention.scale, str)
        else attention.scale,
        "embedding_multiplier": decoder.embedding_scale,
        "residual_multiplier": 1.0,
        "logits_scaling": _inverse(decoder.logit_scale),
    }


def _inverse(number: float) -> float:
    """Return the number whose inverse is this one exactly, where rounding leaves one."""
    near = 1.0 / number
    found = (near, float(round(near)), math.nextafter(near, math.inf), math.nextafter(near, 0.0))
    return next((each for each in found if each > 0 and 1.0 / each == number), near)


LLAMA = Family(
    architecture="LlamaForCausalLM",
    model_type="llama",
    decoder=_llama,
    config=lambda decoder: _fields(decoder, of_attention=True, of_feed_forward=True),
    pairings=decoder_pairings,
)
MISTRAL = Family(
    architecture="MistralForCausalLM",
    model_type="mistral",
    defaults={"num_key_value_heads": 8, "sliding_window": 4096},
    decoder=_mistral,
    config=_mistral_fields,
    pairings=decoder_pairings,
)
GRANITE = Family(
    architecture="GraniteForCausalLM",
    model_type="granite",
    decoder=_granite,
    config=_granite_fields,
    pairings=decoder_pairings,
)
QWEN2 = Family(
    architecture="Qwen2ForCausalLM",
    model_type="qwen2",
    defaults={"num_key_value_heads": 32},
    decoder=_qwen2,
    config=lambda decoder: _fields(decoder, of_attention=False),
    pairings=decoder_pairings,
)
QWEN3 = Family(
    architecture="Qwen3ForCausalLM",
    model_type="qwen3",
    defaults={"num_key_value_heads": 32, "head_dim": 128},
    decoder=_qwen3,
    config=lambda decoder: _fields(decoder, of_attention=True),
    pairings=decoder_pairings,
)
OLMO2 = Family(
    architecture="Olmo2ForCausalLM",
    model_type="olmo2",
    defaults={"rms_norm_eps": 1e-5},
    decoder=_olmo2,
    config=lambda decoder: _fields(decoder, of_attention=True),
    pairings=decoder_pairings,
)
