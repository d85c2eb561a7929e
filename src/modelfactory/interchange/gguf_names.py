"""How GGUF calls things, for architectures like Llama.

A file of llama.cpp holds what a folder of transformers holds under other names, so it is read and written by
way of these: fields become those of config.json, tensors get the names of transformers' files.
"""

from __future__ import annotations

from types import MappingProxyType

ARCHITECTURES = MappingProxyType(
    {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
)
"""`general.architecture` -> the class of transformers."""
TURNS_NEIGHBOURS = ("llama",)
"""Of these the rows of queries and keys are in the order of the first Llama, see `rotary_order`."""

FIELDS = MappingProxyType(
    {
        "context_length": "max_position_embeddings",
        "embedding_length": "hidden_size",
        "block_count": "num_hidden_layers",
        "feed_forward_length": "intermediate_size",
        "attention.head_count": "num_attention_heads",
        "attention.head_count_kv": "num_key_value_heads",
        "attention.key_length": "head_dim",
        "attention.layer_norm_rms_epsilon": "rms_norm_eps",
        "rope.freq_base": "rope_theta",
        "vocab_size": "vocab_size",
    }
)
"""Below the name of the architecture -> field of config.json."""
NEEDED = (
    *("context_length", "embedding_length", "block_count", "feed_forward_length"),
    "attention.layer_norm_rms_epsilon",
)
"""Fields without which nothing follows; `attention.head_count` too, which has a check of its own."""
TYPES = MappingProxyType({"attention.layer_norm_rms_epsilon": float})
"""Of those that are no whole numbers."""
REPEATED = ("attention.value_length", "rope.dimension_count")
"""Fields that must repeat head_dim."""
SCALING = MappingProxyType(
    {
        "rope.scaling.type": "rope_type",
        "rope.scaling.factor": "factor",
        "rope.scaling.original_context_length": "original_max_position_embeddings",
        "rope.scaling.yarn_beta_fast": "beta_fast",
        "rope.scaling.yarn_beta_slow": "beta_slow",
    }
)
"""Below the name of the architecture -> field of rope_scaling."""
HARMLESS = ("rope.scaling.finetuned", "tensor_data_layout")

ROPE_FACTORS = "rope_freqs.weight"
"""What each frequency is divided by: Llama 3's scaling, written out."""
OWN = "modelfactory.rope.llama3."
"""Before the numbers that those factors follow from, which GGUF has no fields for."""
LLAMA_3 = MappingProxyType(
    {"factor": float, "low_freq_factor": float, "high_freq_factor": float, "original_max_seq_len": int}
)
_WHOLE = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_OF_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TO_WHOLE = {theirs: name for name, theirs in _WHOLE.items()}
_TO_LAYER = {theirs: name for name, theirs in _OF_LAYER.items()}


def to_transformers(name: str) -> str:
    """Return the name of a tensor in transformers' files; one that is not known stays, to be refused."""
    stem, _, kind = name.rpartition(".")
    if stem in _WHOLE:
        return f"{_WHOLE[stem]}.{kind}"
    block, _, rest = stem.partition(".")
    number, _, part = rest.partition(".")
    if block == "blk" and part in _OF_LAYER:
        return f"model.layers.{number}.{_OF_LAYER[part]}.{kind}"
    return name


def from_transformers(name: str) -> str:
    """Undo `to_transformers`."""
    stem, _, kind = name.rpartition(".")
    if stem in _TO_WHOLE:
        return f"{_TO_WHOLE[stem]}.{kind}"
    _, _, number, part = stem.split(".", 3)
    return f"blk.{number}.{_TO_LAYER[part]}.{kind}"
