"""Attention and rotary positions against transformers', weights copied."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from modelfactory.models import (
    Attention,
    BuildContext,
    LatentAttention,
    LinearScaling,
    Llama3Scaling,
    QKNorm,
    RMSNorm,
    Rope,
    YaRN,
    gpt2_initial,
)
from modelfactory.models.rope_module import attention_factor, frequencies

transformers = pytest.importorskip("transformers")
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS  # noqa: E402

WIDTH, HEADS, KV_HEADS, HEAD_DIM, T = 48, 4, 2, 16, 30
CONTEXT = BuildContext(d_model=WIDTH, max_seq_len=64, initial=gpt2_initial(n_layers=2, d_model=WIDTH))


def scalings() -> dict[str, tuple[Any, dict[str, Any]]]:
    """Return our scaling, and the fields of theirs."""
    yarn = {"rope_type": "yarn", "original_max_position_embeddings": 4096}
    llama3 = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    ours3 = Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_seq_len=8192)
    plain_yarn = YaRN(factor=4.0, original_max_seq_len=4096)
    return {
        "linear": (LinearScaling(factor=2.5), {"rope_type": "linear", "factor": 2.5}),
        "yarn": (plain_yarn, yarn | {"factor": 4.0}),
        "yarn, own bounds": (
            YaRN(factor=16.0, original_max_seq_len=4096, beta_fast=8.0, beta_slow=2.0, whole_pairs=False),
            yarn | {"factor": 16.0, "beta_fast": 8.0, "beta_slow": 2.0, "truncate": False},
        ),
        "yarn, own factor": (
            YaRN(factor=4.0, original_max_seq_len=64, attention_factor=0.7),
            yarn | {"factor": 4.0, "original_max_position_embeddings": 64, "attention_factor": 0.7},
        ),
        "llama 3": (ours3, llama3),
    }


@pytest.mark.parametrize("name", scalings())
@pytest.mark.parametrize("theta", [1e4, 5e5])
@pytest.mark.parametrize(("head_dim", "share"), [(128, 1.0), (64, 0.5), (80, 0.4)])
def test_frequencies(name: str, theta: float, head_dim: int, share: float) -> None:
    scaling, fields = scalings()[name]
    config = transformers.LlamaConfig(
        hidden_size=head_dim * 4,
        num_attention_heads=4,
        head_dim=head_dim,
        max_position_embeddings=131_072,
        rope_parameters=fields | {"rope_theta": theta, "partial_rotary_factor": share},
    )
    theirs, factor = ROPE_INIT_FUNCTIONS[fields["rope_type"]](config, torch.device("cpu"))
    rope = Rope(theta=theta, share=share, scaling=scaling)
    ours = frequencies(rope, head_dim)
    assert ours.shape == theirs.shape
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)
    assert attention_factor(rope) == pytest.approx(factor, abs=1e-6)


def shaken(module: torch.nn.Module) -> Any:
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator) + (parameter.ndim == 1))
    return module.eval()


def causal_mask(window: int | None) -> torch.Tensor:
    distance = torch.arange(T)[:, None] - torch.arange(T)
    seen = (distance >= 0) & (distance < (window or T))
    return torch.zeros(T, T).masked_fill(~seen, float("-inf"))[None, None]


def assert_equal(ours: Any, theirs: Any, rotary: Any, window: int | None = None) -> None:
    x = torch.randn(2, T, WIDTH, generator=torch.Generator().manual_seed(1))
    positions = torch.arange(T)[None]
    with torch.no_grad():
        wanted = theirs(x, position_embeddings=rotary(x, positions), attention_mask=causal_mask(window))[0]
        torch.testing.assert_close(ours(x), wanted, atol=1e-5, rtol=1e-5)
        cache = ours.new_cache(2, T)
        pieces = [ours(piece, cache) for piece in x.split((11, *(1,) * 8, 11), dim=1)]
        torch.testing.assert_close(torch.cat(pieces, dim=1), wanted, atol=1e-5, rtol=1e-5)


def fields(**more: Any) -> dict[str, Any]:
    return {
        "hidden_size": WIDTH,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "num_hidden_layers": 2,
        "max_position_embeddings": 64,
        "attn_implementation": "eager",
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    } | more


def attention(**more: Any) -> Attention:
    return Attention(
        n_heads=HEADS,
        n_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        qkv_bias=False,
        out_bias=False,
        rope=Rope(theta=1e4),
        **more,
    )


def loaded(spec: Attention, theirs: Any) -> Any:
    state = theirs.state_dict()
    ours = {"qkv.weight": torch.cat([state[f"{name}_proj.weight"] for name in "qkv"])}
    ours["out.weight"] = state["o_proj.weight"]
    ours |= {name: value for name, value in state.items() if "_norm" in name}
    module = spec.build(CONTEXT)
    module.load_state_dict(ours)
    return module


@pytest.mark.parametrize("window", [None, 8])
def test_norms_of_heads_and_windows_are_those_of_qwen3(window: int | None) -> None:
    from transformers.models.qwen3 import modeling_qwen3 as qwen3

    sliding = {"use_sliding_window": True, "sliding_window": window, "max_window_layers": 0}
    config = transformers.Qwen3Config(**fields(rms_norm_eps=1e-6, **(sliding if window else {})))
    theirs = shaken(qwen3.Qwen3Attention(config, layer_idx=0))
    assert theirs.sliding_window == window
    spec = attention(qk_norm=QKNorm(norm=RMSNorm(eps=1e-6), over="head"), window=window)
    assert_equal(loaded(spec, theirs), theirs, qwen3.Qwen3RotaryEmbedding(config), window)


def test_norms_of_the_width_are_those_of_olmo2() -> None:
    from transformers.models.olmo2 import modeling_olmo2 as olmo2

    config = transformers.Olmo2Config(**fields(rms_norm_eps=1e-6))
    theirs = shaken(olmo2.Olmo2Attention(config, layer_idx=0))
    spec = attention(qk_norm=QKNorm(norm=RMSNorm(eps=1e-6), over="width"))
    assert_equal(loaded(spec, theirs), theirs, olmo2.Olmo2RotaryEmbedding(config))


@pytest.mark.parametrize("layer", [0, 1])
def test_softcaps_and_windows_are_those_of_gemma2(layer: int) -> None:
    from transformers.models.gemma2 import modeling_gemma2 as gemma2

    config = transformers.Gemma2Config(
        **fields(sliding_window=8, attn_logit_softcapping=1.5, query_pre_attn_scalar=9)
    )
    theirs = shaken(gemma2.Gemma2Attention(config, layer_idx=layer))
    window = 8 if layer == 0 else None
    assert theirs.sliding_window == window
    spec = attention(softcap=1.5, scale=1 / 3, window=window)
    assert_equal(loaded(spec, theirs), theirs, gemma2.Gemma2RotaryEmbedding(config), window)


@pytest.mark.parametrize("q_rank", [None, 20])
@pytest.mark.parametrize("scaled", [False, True])
def test_latent_attention_is_that_of_deepseek_v3(q_rank: int | None, scaled: bool) -> None:
    from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek

    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": 1e4}
    if scaled:
        rope = {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 4.0,
            "original_max_position_embeddings": 16,
            "attention_factor": 1.1,
        }
    theirs_fields = fields(
        num_key_value_heads=HEADS,
        kv_lora_rank=24,
        q_lora_rank=q_rank,
        qk_rope_head_dim=8,
        qk_nope_head_dim=12,
        v_head_dim=10,
        rope_parameters=rope,
    )
    del theirs_fields["head_dim"]
    config = transformers.DeepseekV3Config(**theirs_fields)
    theirs = shaken(deepseek.DeepseekV3Attention(config, layer_idx=0))
    scaling = YaRN(factor=4.0, original_max_seq_len=16, attention_factor=1.1) if scaled else None
    spec = LatentAttention(
        n_heads=HEADS,
        q_rank=q_rank,
        kv_rank=24,
        nope_head_dim=12,
        rope_head_dim=8,
        v_head_dim=10,
        rope=Rope(theta=1e4, scaling=scaling),
        norm=RMSNorm(eps=1e-6),
    )
    ours = spec.build(CONTEXT)
    ours.load_state_dict(latent_weights(theirs.state_dict(), q_rank))
    assert_equal(ours, theirs, deepseek.DeepseekV3RotaryEmbedding(config))


def latent_weights(state: dict[str, torch.Tensor], q_rank: int | None) -> dict[str, torch.Tensor]:
    """Return their weights under our names; they turn neighbouring dimensions, we turn halves."""
    halves = torch.cat((torch.arange(0, 8, 2), torch.arange(1, 8, 2)))
    order = torch.cat((torch.arange(12), 12 + halves))
    queries = state["q_proj.weight" if q_rank is None else "q_b_proj.weight"]
    queries = queries.unflatten(0, (HEADS, 20))[:, order].flatten(0, 1)
    latent, key = state["kv_a_proj_with_mqa.weight"].split((24, 8))
    inward = [queries if q_rank is None else state["q_a_proj.weight"], latent, key[halves]]
    ours = {
        "inward.weight": torch.cat(inward),
        "kv_norm.weight": state["kv_a_layernorm.weight"],
        "kv_up.weight": state["kv_b_proj.weight"],
        "out.weight": state["o_proj.weight"],
    }
    if q_rank is not None:
        ours |= {"q_norm.weight": state["q_a_layernorm.weight"], "q_up.weight": queries}
    return ours
