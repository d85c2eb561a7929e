"""Mixtral and Qwen 3's mixture of experts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modelfactory.interchange.families.shared import (
    decoder_pairings,
    only_block,
    size_fields,
    size_options,
)
from modelfactory.interchange.family import Family
from modelfactory.interchange.pairing import Pairing, joined, same
from modelfactory.models import AuxiliaryBalance, Decoder, Experts, GatedFeedForward, Mixtral, Qwen3MoE

if TYPE_CHECKING:
    from modelfactory.interchange.config import Config


def _mixtral(config: Config) -> Decoder:
    options = size_options(config) | _options(config, "num_local_experts", 8, 2)
    window = config.get("sliding_window")
    if window is not None and window < options["max_seq_len"]:
        raise config.fault("sliding_window", str(window), "null: a window in every layer is not read here")
    decoder = Mixtral(**options, tied=config.get("tie_word_embeddings", False))
    return _done(decoder, config)


def _qwen3_moe(config: Config) -> Decoder:
    name = "num_experts" if config.get("num_experts") else "num_local_experts"
    options = size_options(config) | _options(config, name, 128, 8)
    options["d_ff"] = config.get("moe_intermediate_size", 768)
    options["renormalised"] = config.get("norm_topk_prob", False)
    config.only("decoder_sparse_step", 1, absent=1)
    config.only("mlp_only_layers", [], absent=[])
    config.only("attention_bias", False, absent=False)
    config.only("use_sliding_window", False, absent=False)
    for unused in ("sliding_window", "max_window_layers"):
        config.get(unused)
    decoder = Qwen3MoE(**options, tied=config.get("tie_word_embeddings", False))
    return _done(decoder, config)


def _options(config: Config, name: str, n_experts: int, n_active: int) -> dict[str, Any]:
    weight = config.get("router_aux_loss_coef", 0.001)
    return {
        "n_experts": config.get(name, n_experts),
        "n_active": config.get("num_experts_per_tok", n_active),
        "balance": weight or None,
    }


def _done(decoder: Decoder, config: Config) -> Decoder:
    config.only("hidden_act", "silu", absent="silu")
    config.done()
    return decoder


def _fields(decoder: Decoder) -> dict[str, Any] | None:
    block = only_block(decoder)
    if block is None or not isinstance(block.feed_forward, Experts):
        return None
    experts = block.feed_forward
    if not isinstance(experts.expert, GatedFeedForward):
        return None
    balance = experts.balance
    return size_fields(decoder) | {
        "hidden_act": "silu",
        "intermediate_size": experts.expert.d_ff,
        "num_experts_per_tok": experts.n_active,
        "router_aux_loss_coef": balance.weight if isinstance(balance, AuxiliaryBalance) else 0.0,
    }


def _mixtral_fields(decoder: Decoder) -> dict[str, Any] | None:
    fields, experts = _fields(decoder), decoder.blocks[0].feed_forward
    if fields is None or not isinstance(experts, Experts):
        return None
    return fields | {"num_local_experts": experts.n_experts, "sliding_window": None}


def _qwen3_moe_fields(decoder: Decoder) -> dict[str, Any] | None:
    fields, experts = _fields(decoder), decoder.blocks[0].feed_forward
    if fields is None or not isinstance(experts, Experts):
        return None
    return fields | {
        "num_experts": experts.n_experts,
        "moe_intermediate_size": fields["intermediate_size"],
        "norm_topk_prob": experts.renormalised,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "attention_bias": False,
    }


def _mixtral_pairings(decoder: Decoder, vocab_size: int) -> list[Pairing]:
    names = ("block_sparse_moe", "w1", "w3", "w2")
    return decoder_pairings(decoder, vocab_size) + _expert_pairings(decoder, *names)


def _qwen3_moe_pairings(decoder: Decoder, vocab_size: int) -> list[Pairing]:
    names = ("mlp", "gate_proj", "up_proj", "down_proj")
    return decoder_pairings(decoder, vocab_size) + _expert_pairings(decoder, *names)


def _expert_pairings(decoder: Decoder, layer: str, gate: str, up: str, down: str) -> list[Pairing]:
    found = []
    for n, block in enumerate(decoder.layers()):
        assert isinstance(block.feed_forward, Experts)
        n_experts, d_ff, d_model = (
            block.feed_forward.n_experts,
            block.feed_forward.expert.d_ff,
            decoder.d_model,
        )
        ours, theirs = f"blocks.{n}.feed_forward", f"model.layers.{n}.{layer}"
        halves = [
            (f"{theirs}.experts.{e}.{half}.weight", d_ff) for e in range(n_experts) for half in (gate, up)
        ]
        downs = [(f"{theirs}.experts.{e}.{down}.weight", d_model) for e in range(n_experts)]
        found += [
            same(f"{ours}.router.weight", f"{theirs}.gate.weight", n_experts, d_model),
            joined(f"{ours}.experts.gate_up.weight", halves, d_model),
            joined(f"{ours}.experts.down.weight", downs, d_ff),
        ]
    return found


MIXTRAL = Family(
    architecture="MixtralForCausalLM",
    model_type="mixtral",
    decoder=_mixtral,
    config=_mixtral_fields,
    pairings=_mixtral_pairings,
)
QWEN3_MOE = Family(
    architecture="Qwen3MoeForCausalLM",
    model_type="qwen3_moe",
    decoder=_qwen3_moe,
    config=_qwen3_moe_fields,
    pairings=_qwen3_moe_pairings,
)
