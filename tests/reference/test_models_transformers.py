"""Our models against transformers', weights copied, at every position."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from modelfactory.models import GPT2, Llama

transformers = pytest.importorskip("transformers")

VOCAB_SIZE = 211
POSITIONS = 40


@pytest.fixture(autouse=True)
def _global_generator_stays() -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def shaken(module: torch.nn.Module) -> torch.nn.Module:
    """Move every parameter off its start: biases and gains count too."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return module.eval()


def gpt2_weights(theirs: Any) -> dict[str, torch.Tensor]:
    """Return their weights under our names; they keep matrices transposed."""
    ours: dict[str, torch.Tensor] = {}
    renamed = {
        "ln_1": "mixer_norm",
        "attn.c_attn": "mixer.qkv",
        "attn.c_proj": "mixer.out",
        "ln_2": "feed_forward_norm",
        "mlp.c_fc": "feed_forward.up",
        "mlp.c_proj": "feed_forward.down",
    }
    state = theirs.state_dict()
    for n in range(theirs.config.n_layer):
        for their_name, our_name in renamed.items():
            for kind in ("weight", "bias"):
                value = state[f"transformer.h.{n}.{their_name}.{kind}"]
                ours[f"blocks.{n}.{our_name}.{kind}"] = value.T if value.ndim == 2 else value
    for kind in ("weight", "bias"):
        ours[f"final_norm.{kind}"] = state[f"transformer.ln_f.{kind}"]
    return ours | {
        "embedding.weight": state["transformer.wte.weight"],
        "positions.weight": state["transformer.wpe.weight"],
    }


def llama_weights(theirs: Any) -> dict[str, torch.Tensor]:
    """Return their weights under our names; we keep q, k, v, and gate, up, in one matrix each."""
    ours: dict[str, torch.Tensor] = {}
    state = theirs.state_dict()
    renamed = {
        "mixer_norm": ["input_layernorm"],
        "mixer.qkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
        "mixer.out": ["self_attn.o_proj"],
        "feed_forward_norm": ["post_attention_layernorm"],
        "feed_forward.gate_up": ["mlp.gate_proj", "mlp.up_proj"],
        "feed_forward.down": ["mlp.down_proj"],
    }
    for n in range(theirs.config.num_hidden_layers):
        for our_name, their_names in renamed.items():
            parts = [state[f"model.layers.{n}.{name}.weight"] for name in their_names]
            ours[f"blocks.{n}.{our_name}.weight"] = torch.cat(parts)
    ours |= {"embedding.weight": state["model.embed_tokens.weight"]}
    ours |= {"final_norm.weight": state["model.norm.weight"]}
    if not theirs.config.tie_word_embeddings:
        ours["head.weight"] = state["lm_head.weight"]
    return ours


def assert_equal_logits(ours: torch.nn.Module, theirs: Any) -> None:
    tokens = torch.randint(VOCAB_SIZE, (3, POSITIONS))
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens), theirs(tokens).logits, atol=1e-5, rtol=0)


def test_gpt2() -> None:
    config = transformers.GPT2Config(
        n_layer=3, n_embd=48, n_head=4, n_positions=POSITIONS, vocab_size=VOCAB_SIZE
    )
    theirs = shaken(transformers.GPT2LMHeadModel(config))
    ours = GPT2(n_layers=3, d_model=48, n_heads=4, max_seq_len=POSITIONS).build(VOCAB_SIZE, seed=0)
    ours.load_state_dict(gpt2_weights(theirs))
    assert_equal_logits(ours, theirs)


@pytest.mark.parametrize(("n_kv_heads", "tied", "theta"), [(4, False, 1e4), (2, True, 5e5), (1, False, 1e4)])
def test_llama(n_kv_heads: int, tied: bool, theta: float) -> None:
    config = transformers.LlamaConfig(
        num_hidden_layers=3,
        hidden_size=48,
        intermediate_size=128,
        num_attention_heads=4,
        num_key_value_heads=n_kv_heads,
        vocab_size=VOCAB_SIZE,
        max_position_embeddings=POSITIONS,
        rms_norm_eps=1e-5,
        tie_word_embeddings=tied,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
    )
    theirs = shaken(transformers.LlamaForCausalLM(config))
    ours = Llama(
        n_layers=3,
        d_model=48,
        n_heads=4,
        n_kv_heads=n_kv_heads,
        max_seq_len=POSITIONS,
        rope_theta=theta,
        tied=tied,
    ).build(VOCAB_SIZE, seed=0)
    ours.load_state_dict(llama_weights(theirs))
    assert_equal_logits(ours, theirs)
