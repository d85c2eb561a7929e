"""Our experts, norms and scales against transformers', weights copied."""

from __future__ import annotations

import importlib
import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from modelfactory.models import BiasBalance, BuildContext, Experts, GatedFeedForward, Initial, Llama, RMSNorm

transformers = pytest.importorskip("transformers")

D, D_FF, E, K = 24, 40, 8, 3
INITIAL = Initial(matrix_std=0.02, residual_std=0.02, vocabulary_std=0.02, position_std=0.02)
SPEC = Experts(
    n_experts=E,
    n_active=K,
    expert=GatedFeedForward(d_ff=D_FF, activation="silu", bias=False),
    shared=None,
    score="softmax",
    renormalised=True,
    balance=None,
)


def published(family: str) -> Any:
    """Return the module of transformers that holds a family's layers and its configuration."""
    return importlib.import_module(f"transformers.models.{family}.modeling_{family}")


def seeded(module: Any) -> Any:
    """Draw all parameters anew, and biases of routers, large enough for the choice to be clear."""
    generator = torch.Generator().manual_seed(0)
    biases = (buffer for name, buffer in module.named_buffers() if name.endswith("e_score_correction_bias"))
    with torch.no_grad():
        for tensor in (*module.parameters(), *biases):
            tensor.copy_(0.3 * torch.randn(tensor.shape, generator=generator))
    return module.eval()


def copied(spec: Experts, theirs: Any, **more: torch.Tensor) -> Any:
    """Return our module with their weights."""
    state = theirs.state_dict()
    ours: Any = spec.build(BuildContext(d_model=D, max_seq_len=64, initial=INITIAL))
    ours.load_state_dict(
        {
            "router.weight": state["gate.weight"],
            "experts.gate_up.weight": state["experts.gate_up_proj"],
            "experts.down.weight": state["experts.down_proj"],
            **more,
        }
    )
    return ours.eval()


def shared_weights(state: Any, name: str) -> dict[str, torch.Tensor]:
    gate_up = torch.cat([state[f"{name}.gate_proj.weight"], state[f"{name}.up_proj.weight"]])
    return {"shared.gate_up.weight": gate_up, "shared.down.weight": state[f"{name}.down_proj.weight"]}


def assert_equal_outputs(ours: Any, theirs: Any) -> None:
    x = torch.randn(4, 32, D, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(ours(x).y_BTD, theirs(x), atol=1e-5, rtol=0)


def assert_equal_routing(ours: Any, theirs: Any) -> None:
    x = torch.randn(4, 32, D, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        choice = ours.router(x)
        _, weights, chosen = theirs.gate(x.flatten(0, 1))
    assert torch.equal(choice.chosen_BTK.flatten(0, 1), chosen)
    torch.testing.assert_close(choice.weight_BTK.flatten(0, 1), weights, atol=1e-6, rtol=0)
    assert int(choice.met_BTE.sum(0).sum(0).min()) > 0, "every expert is compared"


def test_mixtral() -> None:
    library = published("mixtral")
    sizes = {"hidden_size": D, "intermediate_size": D_FF}
    config = library.MixtralConfig(**sizes, num_local_experts=E, num_experts_per_tok=K)
    theirs = seeded(library.MixtralSparseMoeBlock(config))
    ours = copied(SPEC, theirs)
    assert_equal_routing(ours, theirs)
    assert_equal_outputs(ours, theirs)


@pytest.mark.parametrize("renormalised", [False, True])
def test_qwen3_moe(renormalised: bool) -> None:
    library = published("qwen3_moe")
    sizes = {"hidden_size": D, "moe_intermediate_size": D_FF}
    config = library.Qwen3MoeConfig(
        **sizes, num_experts=E, num_experts_per_tok=K, norm_topk_prob=renormalised
    )
    theirs = seeded(library.Qwen3MoeSparseMoeBlock(config))
    ours = copied(replace(SPEC, renormalised=renormalised), theirs)
    assert_equal_routing(ours, theirs)
    assert_equal_outputs(ours, theirs)


def test_qwen2_moe_with_its_gated_shared_expert() -> None:
    library = published("qwen2_moe")
    sizes = {"hidden_size": D, "moe_intermediate_size": D_FF, "shared_expert_intermediate_size": 56}
    config = library.Qwen2MoeConfig(**sizes, num_experts=E, num_experts_per_tok=K, norm_topk_prob=False)
    theirs = seeded(library.Qwen2MoeSparseMoeBlock(config))
    state = theirs.state_dict()
    gate = {"shared_gate.weight": state["shared_expert_gate.weight"]}
    shared = GatedFeedForward(d_ff=56, activation="silu", bias=False)
    spec = replace(SPEC, renormalised=False, shared=shared, shared_gate=True)
    ours = copied(spec, theirs, **shared_weights(state, "shared_expert"), **gate)
    assert_equal_outputs(ours, theirs)


def test_deepseek_v3_without_groups() -> None:
    library = published("deepseek_v3")
    config = library.DeepseekV3Config(
        hidden_size=D,
        moe_intermediate_size=D_FF,
        n_routed_experts=E,
        num_experts_per_tok=K,
        n_shared_experts=2,
        n_group=1,
        topk_group=1,
        routed_scaling_factor=2.5,
        norm_topk_prob=True,
    )
    theirs = seeded(library.DeepseekV3MoE(config))
    shared = GatedFeedForward(d_ff=2 * D_FF, activation="silu", bias=False)
    balance = BiasBalance(rate=0.001)
    spec = replace(SPEC, score="sigmoid", routed_scale=2.5, shared=shared, balance=balance)
    bias = {"router.bias_E": theirs.gate.e_score_correction_bias}
    ours = copied(spec, theirs, **shared_weights(theirs.state_dict(), "shared_experts"), **bias)
    assert float(bias["router.bias_E"].abs().max()) > 0.1
    assert_equal_outputs(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gemma2_norm(dtype: torch.dtype) -> None:
    library = published("gemma2")
    theirs = library.Gemma2RMSNorm(D, eps=1e-6)
    assert bool((theirs.weight == 0).all())
    seeded(theirs).to(dtype)
    ours: Any = RMSNorm(eps=1e-6, unit_offset=True).build(D)
    ours.load_state_dict(theirs.state_dict())
    ours.to(dtype)
    x = (3 * torch.randn(5, 7, D, generator=torch.Generator().manual_seed(1))).to(dtype)
    tolerance = 1e-6 if dtype == torch.float32 else 0.016 * 4  # one rounding of bfloat16 below 8
    torch.testing.assert_close(ours(x), theirs(x), atol=tolerance, rtol=0)


def test_gemma2_scales_its_embedding_and_bounds_its_logits() -> None:
    """Blocks that add nothing leave embedding, last norm and head."""
    config = transformers.Gemma2Config(
        vocab_size=61,
        hidden_size=D,
        intermediate_size=D_FF,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=12,
        final_logit_softcapping=0.5,
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    theirs = seeded(transformers.Gemma2ForCausalLM(config))
    norm = RMSNorm(eps=1e-6, unit_offset=True)
    base = Llama(n_layers=1, d_model=D, n_heads=2, max_seq_len=32, d_ff=D_FF, tied=True)
    block = replace(base.blocks[0], norm=norm, placement="sandwich")
    model = replace(base, blocks=(block,), final_norm=norm, embedding_scale=math.sqrt(D), logit_softcap=0.5)
    ours: Any = model.build(61, seed=0)
    names = {
        "mixer_out_norm": "post_attention_layernorm",
        "feed_forward_out_norm": "post_feedforward_layernorm",
    }
    with torch.no_grad():
        ours.embedding.weight.copy_(theirs.model.embed_tokens.weight)
        ours.final_norm.weight.copy_(theirs.model.norm.weight)
        for our_name, their_name in names.items():
            getattr(ours.blocks[0], our_name).weight.fill_(-1.0)
            getattr(theirs.model.layers[0], their_name).weight.fill_(-1.0)
        tokens = torch.arange(20)[None]
        found = ours(tokens)
        torch.testing.assert_close(found, theirs(tokens).logits, atol=1e-5, rtol=0)
    assert 0.4 < float(found.abs().max()) <= 0.5
