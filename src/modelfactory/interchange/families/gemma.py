"""Gemma 2."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from modelfactory.interchange.families.shared import decoder_pairings, size_fields, size_options
from modelfactory.interchange.family import Family
from modelfactory.interchange.used import shortest_pattern
from modelfactory.models import Attention, Decoder, GatedFeedForward, Gemma2, RMSNorm

if TYPE_CHECKING:
    from modelfactory.interchange.config import Config

_NEAR, _WHOLE = "sliding_attention", "full_attention"
_ACTIVATION = "gelu_pytorch_tanh"


def _decoder(config: Config) -> Decoder:
    options = size_options(config)
    scalar = config.count("query_pre_attn_scalar", 256)  # transformers refuses what is not whole
    scale: Any = "1/sqrt(head_dim)" if scalar == options["head_dim"] else scalar**-0.5
    decoder = Gemma2(**options, scale=scale, window=None)
    window: int | None = config.count("sliding_window", 4096)
    if window is not None and window >= decoder.max_seq_len:  # it would see everything
        window = None
    softcap, logit_softcap = map(
        config.optional_number, ("attn_logit_softcapping", "final_logit_softcapping")
    )
    has_bias = config.flag("attention_bias", default=False)
    (block,) = decoder.blocks
    mixer = replace(cast("Attention", block.mixer), softcap=softcap, qkv_bias=has_bias, out_bias=has_bias)
    near = replace(block, mixer=replace(mixer, window=window))
    whole = replace(block, mixer=mixer)
    layers = [near if kind == _NEAR else whole for kind in _kinds(config, decoder.n_layers)]
    _refuse_others(config)
    return replace(decoder, blocks=shortest_pattern(layers), logit_softcap=logit_softcap)


def _kinds(config: Config, n_layers: int) -> list[str]:
    usual = [(_NEAR, _WHOLE)[n % 2] for n in range(n_layers)]
    kinds = config.listing("layer_types", str, usual)
    if len(kinds) != n_layers or not set(kinds) <= {_NEAR, _WHOLE}:
        wanted = f"{_NEAR} or {_WHOLE} for each of {n_layers} layers"
        raise config.fault("layer_types", f"{len(kinds)} of {', '.join(sorted(set(kinds)))}", wanted)
    return kinds


def _refuse_others(config: Config) -> None:
    for name in ("hidden_act", "hidden_activation"):
        config.only(name, _ACTIVATION, absent=_ACTIVATION)
    config.only("tie_word_embeddings", True, absent=True)
    config.only("use_bidirectional_attention", None, False)
    config.done()


def _config(decoder: Decoder) -> dict[str, Any] | None:
    layers = list(decoder.layers())
    if not all(isinstance(each.mixer, Attention) and isinstance(each.norm, RMSNorm) for each in layers):
        return None
    if not isinstance(layers[0].feed_forward, GatedFeedForward) or layers[0].placement != "sandwich":
        return None
    mixers = [cast("Attention", each.mixer) for each in layers]
    windows = {mixer.window for mixer in mixers} - {None}
    first = mixers[0]
    scalar = first.head_dim if isinstance(first.scale, str) else _whole(first.scale**-2)
    return size_fields(decoder) | {
        "query_pre_attn_scalar": scalar,
        "sliding_window": next(iter(windows), decoder.max_seq_len),
        "layer_types": [_WHOLE if mixer.window is None else _NEAR for mixer in mixers],
        "attn_logit_softcapping": first.softcap,
        "final_logit_softcapping": decoder.logit_softcap,
        "attention_bias": first.qkv_bias,
        "hidden_act": _ACTIVATION,
        "hidden_activation": _ACTIVATION,
        "tie_word_embeddings": True,
    }


def _whole(scalar: float) -> float | int:
    """Return the whole number that a rounding error hides, else the number."""
    return round(scalar) if abs(scalar - round(scalar)) < 1e-6 else scalar


GEMMA2 = Family(
    architecture="Gemma2ForCausalLM",
    model_type="gemma2",
    decoder=_decoder,
    config=_config,
    pairings=decoder_pairings,
    defaults={
        "num_key_value_heads": 4,
        "head_dim": 256,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
)
