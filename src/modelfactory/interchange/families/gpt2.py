"""GPT-2."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from modelfactory.interchange.family import Family
from modelfactory.interchange.pairing import Pairing, same, turned
from modelfactory.models import GPT2, Attention, Decoder, FeedForward, LayerNorm

if TYPE_CHECKING:
    from modelfactory.interchange.config import Config

_ACTIVATIONS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}


def _decoder(config: Config) -> Decoder:
    d_model = config.count("n_embd")
    decoder = GPT2(
        n_layers=config.count("n_layer"),
        d_model=d_model,
        n_heads=config.count("n_head"),
        max_seq_len=config.count("n_positions", 1024),
        d_ff=config.count("n_inner", min(4 * d_model, 2**20)),
        tied=config.flag("tie_word_embeddings", default=True),
    )
    activation = config.only("activation_function", *_ACTIVATIONS, absent="gelu_new")
    norm = LayerNorm(eps=config.number("layer_norm_epsilon", 1e-5), bias=True)
    _refuse_variants(config)
    (block,) = decoder.blocks
    wide = replace(block.feed_forward, activation=_ACTIVATIONS[activation])  # type: ignore[type-var]
    return replace(decoder, blocks=(replace(block, norm=norm, feed_forward=wide),), final_norm=norm)


def _refuse_variants(config: Config) -> None:
    config.only("scale_attn_weights", True, absent=True)
    config.only("scale_attn_by_inverse_layer_idx", False, absent=False)
    config.only("add_cross_attention", False, absent=False)
    for name in ("n_ctx", "reorder_and_upcast_attn"):  # repeated; the same numbers in higher precision
        config.get(name)
    for name in ("type", "use_proj", "activation", "proj_to_labels", "first_dropout"):  # of another head
        config.get(f"summary_{name}")
    config.done()


def _config(decoder: Decoder) -> dict[str, Any] | None:
    block = decoder.blocks[0]
    attention, wide, norm = block.mixer, block.feed_forward, block.norm
    if not isinstance(attention, Attention) or not isinstance(wide, FeedForward):
        return None
    if not isinstance(norm, LayerNorm) or wide.activation not in _ACTIVATIONS.values():
        return None
    return {
        "n_layer": decoder.n_layers,
        "n_embd": decoder.d_model,
        "n_head": attention.n_heads,
        "n_positions": decoder.max_seq_len,
        "n_ctx": decoder.max_seq_len,
        "n_inner": wide.d_ff,
        "activation_function": "gelu" if wide.activation == "gelu" else "gelu_new",
        "layer_norm_epsilon": norm.eps,
        "tie_word_embeddings": decoder.tied,
    }


def _pairings(decoder: Decoder, vocab_size: int) -> list[Pairing]:
    d_model = decoder.d_model
    found = [
        same("embedding.weight", "transformer.wte.weight", vocab_size, d_model),
        same("positions.weight", "transformer.wpe.weight", decoder.max_seq_len, d_model),
        *_norm("final_norm", "transformer.ln_f", d_model),
    ]
    if not decoder.tied:
        found.append(same("head.weight", "lm_head.weight", vocab_size, d_model))
    for n, block in enumerate(decoder.layers()):
        assert isinstance(block.feed_forward, FeedForward)
        found += _block(f"blocks.{n}", f"transformer.h.{n}", d_model, block.feed_forward.d_ff)
    return found


def _block(ours: str, theirs: str, d_model: int, d_ff: int) -> list[Pairing]:
    return [
        *_norm(f"{ours}.mixer_norm", f"{theirs}.ln_1", d_model),
        *_turned(f"{ours}.mixer.qkv", f"{theirs}.attn.c_attn", d_model, 3 * d_model),
        *_turned(f"{ours}.mixer.out", f"{theirs}.attn.c_proj", d_model, d_model),
        *_norm(f"{ours}.feed_forward_norm", f"{theirs}.ln_2", d_model),
        *_turned(f"{ours}.feed_forward.up", f"{theirs}.mlp.c_fc", d_model, d_ff),
        *_turned(f"{ours}.feed_forward.down", f"{theirs}.mlp.c_proj", d_ff, d_model),
    ]


def _norm(ours: str, theirs: str, d_model: int) -> list[Pairing]:
    return [same(f"{ours}.{kind}", f"{theirs}.{kind}", d_model) for kind in ("weight", "bias")]


def _turned(ours: str, theirs: str, n_in: int, n_out: int) -> list[Pairing]:
    """Their matrices are (in, out)."""
    weight = turned(f"{ours}.weight", f"{theirs}.weight", n_in, n_out)
    return [weight, same(f"{ours}.bias", f"{theirs}.bias", n_out)]


GPT2_FAMILY = Family(
    architecture="GPT2LMHeadModel", model_type="gpt2", decoder=_decoder, config=_config, pairings=_pairings
)
