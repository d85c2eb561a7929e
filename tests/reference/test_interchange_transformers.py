"""Every family, to transformers and back: equal logits at all positions, no bit of a weight changed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from tests.interchange.material import SPECS, VOCAB_SIZE, assert_equal_states, bpe, built, some_tokens

from modelfactory.interchange import export_hugging_face, import_model
from modelfactory.interchange.families import family_named

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOLERANCE = 1e-5


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """No bars, and torch's global generator as it was."""
    transformers.utils.logging.disable_progress_bar()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def loaded(folder: Path) -> Any:
    model, told = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not told["missing_keys"]
    assert not told["unexpected_keys"]
    assert not told["mismatched_keys"]
    return model.eval()


def assert_equal_logits(ours: torch.nn.Module, theirs: Any, tokens: torch.Tensor) -> None:
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens), theirs(tokens).logits, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", SPECS)
def test_ours_to_transformers_and_back(name: str, tmp_path: Path) -> None:
    architecture, spec = SPECS[name]
    module = built(spec)
    assert export_hugging_face(module, spec, None, tmp_path / "model") == architecture
    theirs = loaded(tmp_path / "model")
    assert type(theirs).__name__ == architecture
    assert_equal_logits(module, theirs, some_tokens(spec))
    back = import_model(tmp_path / "model")
    assert_equal_states(back.state, module.state_dict())
    assert back.spec == spec
    assert back.vocab_size == VOCAB_SIZE


SMALL: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 48,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
THEIRS: dict[str, dict[str, Any]] = {
    "gpt2": {
        "vocab_size": VOCAB_SIZE,
        "n_embd": 64,
        "n_layer": 3,
        "n_head": 4,
        "n_positions": 48,
        "bos_token_id": 0,
        "eos_token_id": 0,
    },
    "llama": {**SMALL, "rms_norm_eps": 1e-5, "attention_bias": True, "mlp_bias": True},
    "llama stretched": {
        **SMALL,
        "rope_theta": 5e5,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    },
    "qwen2 stretched": {
        **SMALL,
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 12},
    },
    "llama scaled by mscale": {
        **SMALL,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 12,
            "mscale": 0.7,
            "mscale_all_dim": 0.3,
        },
    },
    "qwen2": {**SMALL, "rope_theta": 1e6, "tie_word_embeddings": True, "sliding_window": 16},
    "mistral": {**SMALL, "sliding_window": 8},
    "mistral whole": {**SMALL, "sliding_window": None},
    "granite": {
        **SMALL,
        "attention_multiplier": 0.05,
        "embedding_multiplier": 12.0,
        "logits_scaling": 8.0,
    },
    "qwen3": {**SMALL, "head_dim": 32, "tie_word_embeddings": True},
    "olmo2": {**SMALL, "rms_norm_eps": 1e-6, "rope_theta": 5e5},
    "gemma2": {**SMALL, "head_dim": 32, "query_pre_attn_scalar": 16, "sliding_window": 8},
    "mixtral": {**SMALL, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {
        **SMALL,
        "head_dim": 16,
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
    },
    "bamba": {
        **SMALL,
        "attn_layer_indices": [2],
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
        "mamba_d_state": 16,
        "mamba_proj_bias": True,
    },
}
"""Published settings, made small."""


@pytest.mark.parametrize("name", THEIRS)
def test_transformers_to_ours_and_back(name: str, tmp_path: Path) -> None:
    config = transformers.AutoConfig.for_model(name.partition(" ")[0], **THEIRS[name])
    theirs = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    theirs.eval().save_pretrained(tmp_path / "theirs")
    imported = import_model(tmp_path / "theirs")
    module = imported.build()
    assert_equal_logits(module, theirs, some_tokens(imported.spec))
    export_hugging_face(module, imported.spec, None, tmp_path / "ours")
    assert_equal_states(
        load_file(tmp_path / "ours" / "model.safetensors"),
        load_file(tmp_path / "theirs" / "model.safetensors"),
    )
    assert_equal_logits(module, loaded(tmp_path / "ours"), some_tokens(imported.spec))


ROPE_3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def published(*sizes: int) -> dict[str, Any]:
    names = (
        *("hidden_size", "intermediate_size", "num_hidden_layers"),
        *("num_attention_heads", "num_key_value_heads", "vocab_size"),
    )
    return dict(zip(names, sizes, strict=True))


PUBLISHED: dict[str, tuple[str, int, dict[str, Any]]] = {
    "gpt2": ("gpt2", 124_439_808, {"n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50_257}),
    "SmolLM2-135M": (
        "llama",
        134_515_008,
        published(576, 1536, 30, 9, 3, 49_152)
        | {"max_position_embeddings": 8192, "rope_theta": 100_000, "tie_word_embeddings": True},
    ),
    "Llama-3.2-1B": (
        "llama",
        1_235_814_400,
        published(2048, 8192, 16, 32, 8, 128_256)
        | {"head_dim": 64, "max_position_embeddings": 131_072, "rope_theta": 500_000.0}
        | {"rope_scaling": ROPE_3, "tie_word_embeddings": True},
    ),
    "Qwen2-0.5B": (
        "qwen2",
        494_032_768,
        published(896, 4864, 24, 14, 2, 151_936)
        | {"max_position_embeddings": 131_072, "rope_theta": 1_000_000.0, "tie_word_embeddings": True}
        | {"sliding_window": 131_072, "max_window_layers": 24, "use_sliding_window": False},
    ),
    "Qwen3-0.6B": (
        "qwen3",
        596_049_920,
        published(1024, 3072, 28, 16, 8, 151_936)
        | {"head_dim": 128, "max_position_embeddings": 40_960, "rope_theta": 1_000_000}
        | {"tie_word_embeddings": True, "rope_scaling": None, "max_window_layers": 28},
    ),
    "OLMo-2-1124-7B": (
        "olmo2",
        7_298_617_344,
        published(4096, 11_008, 32, 32, 32, 100_352)
        | {"max_position_embeddings": 4096, "rope_theta": 500_000},
    ),
    "gemma-2-2b": (
        "gemma2",
        2_614_341_888,
        published(2304, 9216, 26, 8, 4, 256_000)
        | {"head_dim": 256, "max_position_embeddings": 8192, "sliding_window": 4096}
        | {"query_pre_attn_scalar": 256, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
        | {"hidden_act": "gelu_pytorch_tanh", "cache_implementation": "hybrid"},
    ),
    "Mixtral-8x7B": (
        "mixtral",
        46_702_792_704,
        published(4096, 14_336, 32, 32, 8, 32_000)
        | {"max_position_embeddings": 32_768, "rope_theta": 1_000_000.0, "sliding_window": None}
        | {"num_local_experts": 8, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.02},
    ),
    "Qwen3-30B-A3B": (
        "qwen3_moe",
        30_532_122_624,
        published(2048, 6144, 48, 32, 4, 151_936)
        | {"head_dim": 128, "max_position_embeddings": 40_960, "rope_theta": 1_000_000.0}
        | {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
        | {"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []},
    ),
    "Bamba-9B": (
        "bamba",
        9_780_235_392,
        published(4096, 14_336, 32, 32, 8, 128_256)
        | {"attn_layer_indices": [9, 18, 27], "mamba_n_heads": 128, "mamba_d_head": 64}
        | {"mamba_d_state": 128, "mamba_n_groups": 1, "mamba_expand": 2, "max_position_embeddings": 262_144},
    ),
}
"""Name -> model type, parameters, and config.json as published."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes(name: str) -> None:
    kind, n_parameters, published_fields = PUBLISHED[name]
    fields = dict(published_fields)
    their_config = transformers.AutoConfig.for_model(kind, **fields)
    with torch.device("meta"):
        theirs = transformers.AutoModelForCausalLM.from_config(their_config)
    family = family_named(type(theirs).__name__, "test")
    vocab_size = fields.pop("vocab_size")
    spec = family.read(fields, name)
    assert sum(parameter.numel() for parameter in theirs.parameters()) == n_parameters
    assert spec.n_parameters(vocab_size) == n_parameters


def test_the_tokenizer_goes_along(tmp_path: Path) -> None:
    _, spec = SPECS["llama"]
    tokenizer = bpe()
    export_hugging_face(
        built(spec), spec, tokenizer, tmp_path / "model", facts={"chat_template": "{{ messages }}"}
    )
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    text = "Once upon a time,\n\n  there were 12 naïve otters \N{OTTER}."
    assert theirs.encode(text, add_special_tokens=False) == tokenizer.encode(text)
    assert theirs(text)["input_ids"] == [0, *tokenizer.encode(text)]
    assert (theirs.bos_token_id, theirs.eos_token_id) == (0, 0)
    assert theirs.model_max_length == spec.max_seq_len
    assert theirs.chat_template == "{{ messages }}"
    model = loaded(tmp_path / "model")
    assert (model.generation_config.bos_token_id, model.generation_config.eos_token_id) == (0, 0)
    assert model.generation_config.pad_token_id is None


def test_transformers_generates_what_we_do(tmp_path: Path) -> None:
    from modelfactory.generate import Sampling
    from modelfactory.generate.language_model import LanguageModel

    _, spec = SPECS["llama tied"]
    module, tokenizer = built(spec), bpe()
    export_hugging_face(module, spec, tokenizer, tmp_path / "model")
    ours = LanguageModel(module, tokenizer, max_seq_len=spec.max_seq_len)
    (completion,) = ours.generate(["Once upon"], Sampling(max_new_tokens=20, temperature=0.0))
    prompt = torch.tensor([[0, *tokenizer.encode("Once upon")]])
    theirs = loaded(tmp_path / "model").generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=20, do_sample=False, pad_token_id=0
    )
    assert list(completion.ids) == theirs[0, prompt.shape[1] :].tolist()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_weights(dtype: str, tmp_path: Path) -> None:
    """What was rounded once comes back, and goes out again, as it is."""
    _, spec = SPECS["qwen2"]
    export_hugging_face(built(spec), spec, None, tmp_path / "first", dtype=dtype)  # type: ignore[arg-type]
    assert loaded(tmp_path / "first").dtype == getattr(torch, dtype)
    imported = import_model(tmp_path / "first")
    assert all(tensor.dtype == torch.float32 for tensor in imported.state.values())
    export_hugging_face(imported.build(), imported.spec, None, tmp_path / "second", dtype=dtype)  # type: ignore[arg-type]
    first, second = (load_file(tmp_path / each / "model.safetensors") for each in ("first", "second"))
    assert_equal_states(second, first)
    assert json.loads((tmp_path / "first" / "config.json").read_text())["torch_dtype"] == dtype
