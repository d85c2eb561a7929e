"""Bamba, the hybrid."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from modelfactory.interchange.families.rope import rope_fields
from modelfactory.interchange.families.shared import (
    attention_pairings,
    gated_pairings,
    is_tied,
    norm_pairings,
    size_options,
)
from modelfactory.interchange.family import Family
from modelfactory.interchange.pairing import Pairing, same
from modelfactory.models import Attention, Bamba, Decoder, GatedFeedForward, Mamba2, RMSNorm

if TYPE_CHECKING:
    from modelfactory.interchange.config import Config
    from modelfactory.models import Block

_NO_LIMIT = [0.0, float("inf")]
_NORMS = {"mixer_norm": "input_layernorm", "feed_forward_norm": "pre_ff_layernorm"}


def _decoder(config: Config) -> Decoder:
    options = size_options(config, rope_share=0.5)  # as transformers has it whatever is written
    has_bias = config.flag("attention_bias", default=False)
    inner = config.count("mamba_expand", 2) * options["d_model"]
    n_heads = config.count("mamba_n_heads", 128)
    width = config.get("mamba_d_head", "auto")
    width = inner // n_heads if width == "auto" else config.count("mamba_d_head")
    if n_heads * width != inner:  # transformers refuses it, so does an export
        found = f"{n_heads} heads of {width}"
        raise config.fault("mamba_d_head", found, f"mamba_expand * hidden_size = {inner} in all")
    decoder = Bamba(
        **options,
        attention_layers=tuple(config.listing("attn_layer_indices", int, ())),
        mamba_heads=n_heads,
        mamba_head_dim=width,
        state_dim=config.count("mamba_d_state", 256),
        n_groups=config.count("mamba_n_groups", 1),
        conv_width=config.count("mamba_d_conv", 4),
        conv_bias=config.flag("mamba_conv_bias", default=True),
        mamba_bias=config.flag("mamba_proj_bias", default=False),
        tied=is_tied(config),
    )
    blocks = [
        _with_biases(block, has_bias, config.flag("mlp_bias", default=False)) for block in decoder.layers()
    ]
    _refuse_others(config)
    return replace(decoder, blocks=tuple(blocks))


def _with_biases(block: Block, has_bias: bool, of_feed_forward: bool) -> Block:
    mixer = block.mixer
    if isinstance(mixer, Attention):
        mixer = replace(mixer, qkv_bias=has_bias, out_bias=has_bias)
    gated = replace(cast("GatedFeedForward", block.feed_forward), bias=of_feed_forward)
    return replace(block, mixer=mixer, feed_forward=gated)


def _refuse_others(config: Config) -> None:
    config.only("hidden_act", "silu", absent="silu")
    limit = config.get("time_step_limit", _NO_LIMIT)
    if limit not in (_NO_LIMIT, [0.0, {"__float__": "Infinity"}]):  # transformers writes it so
        raise config.fault("time_step_limit", str(limit), "no limit")
    config.done()


def _config(decoder: Decoder) -> dict[str, Any] | None:
    layers = list(decoder.layers())
    mixers = [block.mixer for block in layers]
    attention = next((mixer for mixer in mixers if isinstance(mixer, Attention)), None)
    mamba = next((mixer for mixer in mixers if isinstance(mixer, Mamba2)), None)
    norm, gated = layers[0].norm, layers[0].feed_forward
    if attention is None or mamba is None or attention.rope is None:
        return None
    if not isinstance(norm, RMSNorm) or not isinstance(gated, GatedFeedForward):
        return None
    return {
        "num_hidden_layers": decoder.n_layers,
        "hidden_size": decoder.d_model,
        "intermediate_size": gated.d_ff,
        "num_attention_heads": attention.n_heads,
        "num_key_value_heads": attention.n_kv_heads,
        "max_position_embeddings": decoder.max_seq_len,
        "rms_norm_eps": norm.eps,
        "attn_layer_indices": [n for n, mixer in enumerate(mixers) if isinstance(mixer, Attention)],
        "attention_bias": attention.qkv_bias,
        "mlp_bias": gated.bias,
        "hidden_act": "silu",
        "tie_word_embeddings": decoder.tied,
        **rope_fields(attention.rope),
        **_mamba_fields(mamba, decoder.d_model),
    }


def _mamba_fields(mamba: Mamba2, d_model: int) -> dict[str, Any]:
    return {
        "mamba_n_heads": mamba.n_heads,
        "mamba_d_head": mamba.head_dim,
        "mamba_expand": max(mamba.inner_dim // d_model, 1),
        "mamba_n_groups": mamba.n_groups,
        "mamba_d_state": mamba.state_dim,
        "mamba_d_conv": mamba.conv_width,
        "mamba_conv_bias": mamba.conv_bias,
        "mamba_proj_bias": mamba.bias,
    }


def _pairings(decoder: Decoder, vocab_size: int) -> list[Pairing]:
    found = [
        same("embedding.weight", "model.embed_tokens.weight", vocab_size, decoder.d_model),
        same("final_norm.weight", "model.final_layernorm.weight", decoder.d_model),
    ]
    if not decoder.tied:
        found.append(same("head.weight", "lm_head.weight", vocab_size, decoder.d_model))
    for n, block in enumerate(decoder.layers()):
        ours, theirs = f"blocks.{n}", f"model.layers.{n}"
        found += norm_pairings(ours, theirs, _NORMS, decoder.d_model)
        if isinstance(block.mixer, Mamba2):
            found += _mamba_pairings(f"{ours}.mixer", f"{theirs}.mamba", block.mixer, decoder.d_model)
        else:
            attention = cast("Attention", block.mixer)
            found += attention_pairings(f"{ours}.mixer", f"{theirs}.self_attn", attention, decoder.d_model)
        gated = cast("GatedFeedForward", block.feed_forward)
        found += gated_pairings(f"{ours}.feed_forward", f"{theirs}.feed_forward", gated, decoder.d_model)
    return found


def _mamba_pairings(ours: str, theirs: str, mamba: Mamba2, d_model: int) -> list[Pairing]:
    found = [
        same(f"{ours}.in_zxbcdt.weight", f"{theirs}.in_proj.weight", mamba.in_dim, d_model),
        same(f"{ours}.conv.weight", f"{theirs}.conv1d.weight", mamba.conv_dim, 1, mamba.conv_width),
        *(same(f"{ours}.{name}", f"{theirs}.{name}", mamba.n_heads) for name in ("A_log", "D", "dt_bias")),
        same(f"{ours}.norm.weight", f"{theirs}.norm.weight", mamba.inner_dim),
        same(f"{ours}.out.weight", f"{theirs}.out_proj.weight", d_model, mamba.inner_dim),
    ]
    if mamba.conv_bias:
        found.append(same(f"{ours}.conv.bias", f"{theirs}.conv1d.bias", mamba.conv_dim))
    if mamba.bias:
        found.append(same(f"{ours}.in_zxbcdt.bias", f"{theirs}.in_proj.bias", mamba.in_dim))
        found.append(same(f"{ours}.out.bias", f"{theirs}.out_proj.bias", d_model))
    return found


BAMBA = Family(
    architecture="BambaForCausalLM",
    model_type="bamba",
    decoder=_decoder,
    config=_config,
    pairings=_pairings,
    defaults={"num_key_value_heads": 8, "rms_norm_eps": 1e-5},
)
