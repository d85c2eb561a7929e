"""What decoders with separate query, key and value projections and a gated feed-forward have in common."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from modelfactory.interchange.pairing import Pairing, joined, same
from modelfactory.models import Attention, Block, Decoder, GatedFeedForward, RMSNorm

if TYPE_CHECKING:
    from modelfactory.interchange.config import Config
    from modelfactory.models.attention import QKNorm

NORMS = {
    "pre": {"mixer_norm": "input_layernorm", "feed_forward_norm": "post_attention_layernorm"},
    "output": {"mixer_norm": "post_attention_layernorm", "feed_forward_norm": "post_feedforward_layernorm"},
    "sandwich": {
        "mixer_norm": "input_layernorm",
        "mixer_out_norm": "post_attention_layernorm",
        "feed_forward_norm": "pre_feedforward_layernorm",
        "feed_forward_out_norm": "post_feedforward_layernorm",
    },
}
"""Placement -> our name of a norm -> theirs."""


def only_block(decoder: Decoder) -> Block | None:
    """Return the block of all layers, if they are alike, with attention and RMSNorm."""
    block = decoder.blocks[0]
    plain = isinstance(block.mixer, Attention) and isinstance(block.norm, RMSNorm)
    return block if len(decoder.blocks) == 1 and plain else None


def with_mixer(decoder: Decoder, **fields: Any) -> Decoder:
    """Return a decoder of one block with these fields of its attention changed."""
    (block,) = decoder.blocks
    mixer = replace(cast("Attention", block.mixer), **fields)
    return replace(decoder, blocks=(replace(block, mixer=mixer),))


def size_options(config: Config, *, rope_share: float = 1.0) -> dict[str, Any]:
    """Return the options that `Llama` and its kin take, but for `tied`."""
    from modelfactory.interchange.families.rope import check_rope_share, rope_scaling, rope_theta

    n_heads, d_model = config.count("num_attention_heads"), config.count("hidden_size")
    check_rope_share(config, rope_share)
    return {
        "n_layers": config.count("num_hidden_layers"),
        "d_model": d_model,
        "n_heads": n_heads,
        "n_kv_heads": config.count("num_key_value_heads", n_heads),
        "head_dim": config.count("head_dim", max(d_model // n_heads, 1)),
        "d_ff": config.count("intermediate_size"),
        "max_seq_len": config.count("max_position_embeddings"),
        "rope_theta": rope_theta(config),
        "rope_scaling": rope_scaling(config),
        "norm_eps": config.number("rms_norm_eps", 1e-6),
    }


def is_tied(config: Config, *, default: bool = False) -> bool:
    """Return whether the head is the embedding."""
    return config.flag("tie_word_embeddings", default=default)


def size_fields(decoder: Decoder) -> dict[str, Any]:
    """Return the fields of config.json that `size_options` reads; layers are alike in them."""
    from modelfactory.interchange.families.rope import rope_fields

    block = decoder.blocks[0]
    attention, norm = cast("Attention", block.mixer), cast("RMSNorm", block.norm)
    fields = {
        "num_hidden_layers": decoder.n_layers,
        "hidden_size": decoder.d_model,
        "num_attention_heads": attention.n_heads,
        "num_key_value_heads": attention.n_kv_heads,
        "head_dim": attention.head_dim,
        "max_position_embeddings": decoder.max_seq_len,
        "rms_norm_eps": norm.eps,
        "tie_word_embeddings": decoder.tied,
    }
    if isinstance(block.feed_forward, GatedFeedForward):
        fields["intermediate_size"] = block.feed_forward.d_ff
    return fields | (rope_fields(attention.rope) if attention.rope is not None else {})


def decoder_pairings(decoder: Decoder, vocab_size: int) -> list[Pairing]:
    """Return the pairings of a whole decoder of this kind."""
    found = [
        same("embedding.weight", "model.embed_tokens.weight", vocab_size, decoder.d_model),
        same("final_norm.weight", "model.norm.weight", decoder.d_model),
    ]
    if not decoder.tied:
        found.append(same("head.weight", "lm_head.weight", vocab_size, decoder.d_model))
    for n, block in enumerate(decoder.layers()):
        ours, theirs, mixer = f"blocks.{n}", f"model.layers.{n}", cast("Attention", block.mixer)
        found += norm_pairings(ours, theirs, NORMS[block.placement], decoder.d_model)
        found += attention_pairings(f"{ours}.mixer", f"{theirs}.self_attn", mixer, decoder.d_model)
        if isinstance(block.feed_forward, GatedFeedForward):
            found += gated_pairings(
                f"{ours}.feed_forward", f"{theirs}.mlp", block.feed_forward, decoder.d_model
            )
    return found


def norm_pairings(ours: str, theirs: str, names: dict[str, str], d_model: int) -> list[Pairing]:
    """Return those of the norms of a block."""
    return [same(f"{ours}.{own}.weight", f"{theirs}.{other}.weight", d_model) for own, other in names.items()]


def attention_pairings(ours: str, theirs: str, attention: Attention, d_model: int) -> list[Pairing]:
    """Return those of an attention layer."""
    n_q, n_kv = attention.n_heads * attention.head_dim, attention.n_kv_heads * attention.head_dim
    rows = {"q_proj": n_q, "k_proj": n_kv, "v_proj": n_kv}
    weights = [(f"{theirs}.{name}.weight", n) for name, n in rows.items()]
    found = [
        joined(f"{ours}.qkv.weight", weights, d_model),
        same(f"{ours}.out.weight", f"{theirs}.o_proj.weight", d_model, n_q),
    ]
    if attention.qkv_bias:
        found.append(joined(f"{ours}.qkv.bias", [(f"{theirs}.{name}.bias", n) for name, n in rows.items()]))
    if attention.out_bias:
        found.append(same(f"{ours}.out.bias", f"{theirs}.o_proj.bias", d_model))
    return found + _qk_norm_pairings(ours, theirs, attention, attention.qk_norm)


def _qk_norm_pairings(ours: str, theirs: str, attention: Attention, norm: QKNorm | None) -> list[Pairing]:
    if norm is None:
        return []
    widths = zip(("q_norm", "k_norm"), attention.norm_widths, strict=True)
    return [same(f"{ours}.{name}.weight", f"{theirs}.{name}.weight", width) for name, width in widths]


def gated_pairings(ours: str, theirs: str, layer: GatedFeedForward, d_model: int) -> list[Pairing]:
    """Return those of a gated feed-forward."""
    halves = ("gate_proj", "up_proj")
    weights = [(f"{theirs}.{name}.weight", layer.d_ff) for name in halves]
    found = [
        joined(f"{ours}.gate_up.weight", weights, d_model),
        same(f"{ours}.down.weight", f"{theirs}.down_proj.weight", d_model, layer.d_ff),
    ]
    if layer.bias:
        biases = [(f"{theirs}.{name}.bias", layer.d_ff) for name in halves]
        found.append(joined(f"{ours}.gate_up.bias", biases))
        found.append(same(f"{ours}.down.bias", f"{theirs}.down_proj.bias", d_model))
    return found
