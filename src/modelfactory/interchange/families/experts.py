"""Mixtral and Qwen 3's mixture of experts."""

from __future__ import annotations

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
from modelfactory.interchange.pairing import Pairing, joined, same
from modelfactory.models import (
    Attention,
    AuxiliaryBalance,
    Decoder,
    Experts,
    GatedFeedForward,
    Mixtral,
    Qwen3MoE,
)

if TYPE_CHECKING:
    from modelfactory.interchange.config import Config


def _mixtral(config: Config) -> Decoder:
    options = size_options(config) | _options(config, "num_local_experts", 8, 2)
    if options["n_active"] == 1:  # its weight is divided by itself, whatever the router says
        wanted = "2 or more: one alone always counts 1 in a Mixtral, and its router could learn nothing"
        raise config.fault("num_experts_per_tok", "1", wanted)
    window = config.optional_count("sliding_window")
    decoder = Mixtral(**options, tied=is_tied(config))
    if window is not None and window < decoder.max_seq_len:  # a longer one has no effect
        decoder = with_mixer(decoder, window=window)
    return _done(decoder, config)


def _qwen3_moe(config: Config) -> Decoder:
    name = "num_experts" if config.get("num_experts") is not None else "num_local_experts"
    options = size_options(config) | _options(config, name, 128, 8)
    options["d_ff"] = config.count("moe_intermediate_size", 768)
    options["renormalised"] = config.flag("norm_topk_prob", default=False)
    config.only("decoder_sparse_step", 1, absent=1)
    config.only("mlp_only_layers", [], None)
    config.only("attention_bias", False, absent=False)
    config.only("use_sliding_window", False, absent=False)
    for unused in ("sliding_window", "max_window_layers"):
        config.get(unused)
    decoder = Qwen3MoE(**options, tied=is_tied(config))
    return _done(decoder, config)


def _options(config: Config, name: str, n_experts: int, n_active: int) -> dict[str, Any]:
    weight = config.number("router_aux_loss_coef", 0.001, above=-1.0)
    n_all, n_chosen = config.count(name, n_experts), config.count("num_experts_per_tok", n_active)
    if n_chosen >= n_all:
        wanted = f"fewer than the {n_all} experts: a router that chooses all of them is not known here"
        raise config.fault("num_experts_per_tok", str(n_chosen), wanted)
    return {
        "n_experts": n_all,
        "n_active": n_chosen,
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
    window = cast("Attention", decoder.blocks[0].mixer).window
    return fields | {"num_local_experts": experts.n_experts, "sliding_window": window}


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
    defaults={"num_key_value_heads": 8, "rope_theta": 1e6, "rms_norm_eps": 1e-5},
    decoder=_mixtral,
    config=_mixtral_fields,
    pairings=_mixtral_pairings,
)
QWEN3_MOE = Family(
    architecture="Qwen3MoeForCausalLM",
    model_type="qwen3_moe",
    defaults={"num_key_value_heads": 4},
    decoder=_qwen3_moe,
    config=_qwen3_moe_fields,
    pairings=_qwen3_moe_pairings,
)
