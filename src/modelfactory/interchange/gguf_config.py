"""The fields of a GGUF file as those of a config.json."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from modelfactory.errors import SpecError
from modelfactory.interchange import gguf_names
from modelfactory.interchange.weights import HEAD
from modelfactory.models.rope import Llama3Scaling

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from modelfactory.interchange.gguf_file import GgufFile

_REMEDY = "Take the original folder of safetensors."
_EMBEDDING = "token_embd.weight"
_LLAMA_3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_seq_len": 8192}
"""Of every published model: their files hold only what follows from them."""
_THETA = 10_000.0
"""Of files that do not say, as llama.cpp has it."""


def config_of(
    file: GgufFile, name: str, tensors: Collection[str], rope_factors: np.ndarray[Any, Any] | None
) -> dict[str, Any]:
    """Return what config.json would say.

    Args:
        file: a GGUF file.
        name: of its architecture there.
        tensors: by their names in transformers.
        rope_factors: what frequencies are divided by, where the file says.

    Raises:
        SourceError: a field is missing, of another type, or not known.
    """
    prefix = f"{name}."
    for key in gguf_names.NEEDED:
        file.need(f"{prefix}{key}", gguf_names.TYPES.get(key, int))
    own = {key.removeprefix(prefix): value for key, value in file.fields.items() if key.startswith(prefix)}
    config: dict[str, Any] = {"tie_word_embeddings": HEAD not in tensors}
    config |= {theirs: _exact(own.pop(key)) for key, theirs in gguf_names.FIELDS.items() if key in own}
    for field, which in (("num_attention_heads", "head_count"), ("num_key_value_heads", "head_count_kv")):
        config[field] = head_count(file, name, which, config["num_attention_heads"])
    scaling = {theirs: _exact(own.pop(key)) for key, theirs in gguf_names.SCALING.items() if key in own}
    if scaling.get("rope_type", "none") != "none":
        config["rope_scaling"] = scaling
    config["rope_theta"] = float(file.get(f"{prefix}rope.freq_base", float, _THETA))
    config["rope_theta"] = _exact(config["rope_theta"])
    config["vocab_size"] = _vocab_size(file, prefix)
    head_dim = config["head_dim"] = _head_dim(file, prefix, config)  # the class of transformers has its own
    if rope_factors is not None:
        config["rope_scaling"] = _llama3(file, rope_factors, config["rope_theta"], head_dim)
    _check_layers(file, prefix, config)
    _refuse_rest(file, own, prefix, head_dim)
    return config


def head_count(file: GgufFile, name: str, which: str, default: int | None) -> int:
    """Return a number of heads, which some files give for each layer.

    Raises:
        SourceError: it is missing, no number above 0, or not the same in all layers.
    """
    key = f"{name}.attention.{which}"
    found = file.fields.get(key, default)
    counts = set(found) if isinstance(found, list) else {found}
    if len(counts) != 1 or type(found := counts.pop()) is not int or found < 1:
        shown = str(file.fields.get(key, "nothing"))[:60]
        raise file.fault(key, shown, "a number above 0, the same for every layer", _REMEDY)
    return found


def _vocab_size(file: GgufFile, prefix: str) -> int:
    embedding = next((each for each in file.tensors if each.name == _EMBEDDING), None)
    if embedding is None or len(embedding.shape) != 2:
        found = "nothing" if embedding is None else f"the shape {embedding.shape.tolist()}"
        raise file.fault(_EMBEDDING, found, "the embedding, a row for each token")
    rows = int(embedding.shape[1])
    told = file.get(f"{prefix}vocab_size", int, rows)
    if told != rows:
        raise file.fault(f"{prefix}vocab_size", str(told), f"{rows}, the rows of {_EMBEDDING}")
    return rows


def _head_dim(file: GgufFile, prefix: str, config: Mapping[str, Any]) -> int:
    n_heads, width = config["num_attention_heads"], config["hidden_size"]
    found = int(file.get(f"{prefix}attention.key_length", int, width // n_heads))
    if not 1 <= found <= width * n_heads:
        raise file.fault(f"{prefix}attention.key_length", str(found), "the width of a head")
    return found


def _check_layers(file: GgufFile, prefix: str, config: Mapping[str, Any]) -> None:
    """Refuse more layers than there can be, before any is made."""
    found = config["num_hidden_layers"]
    if not 1 <= found <= len(file.tensors):
        raise file.fault(f"{prefix}block_count", f"{found:,}", f"at most {len(file.tensors)}, the tensors")


def _refuse_rest(file: GgufFile, own: dict[str, Any], prefix: str, head_dim: int) -> None:
    for key in gguf_names.REPEATED:
        if (found := own.pop(key, head_dim)) != head_dim:
            wanted = f"{head_dim}, the width of a head"
            raise file.fault(f"{prefix}{key}", str(found)[:60], wanted, _REMEDY)
    for key, value in own.items():
        if key not in gguf_names.HARMLESS:
            found = f"{str(value)[:60]}, a field that is not known"
            raise file.fault(f"{prefix}{key}", found, "fields that are", _REMEDY)


def _llama3(file: GgufFile, factors: np.ndarray[Any, Any], theta: float, head_dim: int) -> dict[str, Any]:
    """Return the scaling that gives these factors: that of our own fields, else that of published models."""
    from modelfactory.interchange.gguf_writing import rope_factors

    place = gguf_names.ROPE_FACTORS
    kinds = gguf_names.LLAMA_3
    own = {name: file.get(f"{gguf_names.OWN}{name}", kind) for name, kind in kinds.items()}
    if None in own.values():
        own = _LLAMA_3 | {"factor": round(float(factors.max(initial=1.0)), 6)}
    try:
        scaling = Llama3Scaling(**own)
        wanted = rope_factors(scaling, theta, head_dim).numpy()
    except (SpecError, ArithmeticError) as error:
        found = f"factors that stretch nothing ({error})"
        raise file.fault(place, found, "those of Llama 3", _REMEDY) from error
    if wanted.shape != factors.shape or not np.allclose(wanted, factors, rtol=1e-4):
        raise file.fault(place, "factors of their own", f"those of {own}", _REMEDY)
    told = {name: value for name, value in own.items() if name != "original_max_seq_len"}
    original = {"original_max_position_embeddings": own["original_max_seq_len"]}
    return {"rope_type": "llama3", **told, **original}


def _exact(value: Any) -> Any:
    """Return the shortest decimal number that float32 keeps as this one: 1e-05, not 9.999999747378752e-06."""
    if isinstance(value, float) and math.isfinite(value):
        return float(str(np.float32(value)))
    return value
