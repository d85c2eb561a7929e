"""A GGUF file, read: also one whose tensors are quantised, which come out as the numbers they stand for."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from modelfactory.errors import SourceError
from modelfactory.interchange import gguf_names
from modelfactory.interchange.config import Config
from modelfactory.interchange.families import family_named
from modelfactory.interchange.gguf_library import the_library
from modelfactory.interchange.gguf_tokenizer import read_tokenizer
from modelfactory.interchange.imported import Imported
from modelfactory.interchange.rotary_order import to_halves
from modelfactory.interchange.tokenizer_files import check_vocabulary
from modelfactory.interchange.weights import HEAD, from_theirs, shapes_of
from modelfactory.models.rope import Llama3Scaling

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch

    from modelfactory.tokens.tokenizer import Tokenizer

_LLAMA_3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""Of every published model: the file holds only what follows from them."""


def import_gguf(path: Path, *, eos_token: str | None = None, with_tokenizer: bool = True) -> Imported:
    """Read a model with its tokenizer from one file.

    Raises:
        SourceError: no GGUF file, or cut off; an architecture, field, tensor or tokenizer that is not known.
        CommandError: the package `gguf` is not installed.
    """
    reader = _reader(path)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    name = str(fields.get("general.architecture", "nothing"))
    if name not in gguf_names.ARCHITECTURES:
        known = ", ".join(gguf_names.ARCHITECTURES)
        raise _refused(f"{path}: general.architecture", repr(name), f"one of {known}")
    family = family_named(gguf_names.ARCHITECTURES[name], str(path))
    weights = _Weights(path, reader, turns_neighbours=name in gguf_names.TURNS_NEIGHBOURS, fields=fields)
    config = Config(_config(fields, name, weights, path), str(path))
    vocab_size = config.count("vocab_size")
    spec = family.decoder(config)
    tokenizer = read_tokenizer(fields, eos_token, str(path)) if with_tokenizer else None
    check_vocabulary(tokenizer, vocab_size, str(path))
    pairings, shapes = family.pairings(spec, vocab_size), shapes_of(spec, vocab_size)
    state = from_theirs(weights, pairings, shapes, str(path))
    facts = {
        "format": "gguf",
        "architecture": family.architecture,
        "dtype": "+".join(weights.types()),
        "chat_template": fields.get("tokenizer.chat_template"),
    }
    return Imported(spec=spec, vocab_size=vocab_size, state=state, tokenizer=tokenizer, facts=facts)


def tokenizer_in(path: Path, eos_token: str | None) -> Tokenizer | None:
    """Return the tokenizer of a file, None where it holds none.

    Raises:
        SourceError: no GGUF file, or a tokenizer of a kind that is not known.
        CommandError: the package `gguf` is not installed.
    """
    fields = {name: field.contents() for name, field in _reader(path).fields.items()}
    return read_tokenizer(fields, eos_token, str(path))


def _reader(path: Path) -> Any:
    gguf = the_library()
    try:
        return gguf.GGUFReader(path)
    except Exception as error:  # it raises ValueError, IndexError, KeyError, ... as the bytes have it
        n_bytes = path.stat().st_size if path.exists() else 0
        raise SourceError(
            place=str(path),
            found=f"{n_bytes:,} bytes that cannot be read ({type(error).__name__}: {error})",
            wanted="a whole GGUF file",
            remedy="It is cut off or damaged: copy it again.",
        ) from error


class _Weights:
    """Tensors by the names transformers has for them; follows `Weights`."""

    def __init__(self, path: Path, reader: Any, *, turns_neighbours: bool, fields: Mapping[str, Any]) -> None:
        self._path = path
        self._tensors = {gguf_names.to_transformers(each.name): each for each in reader.tensors}
        self.rope_factors = self._tensors.pop(gguf_names.ROPE_FACTORS, None)
        self._turns_neighbours = turns_neighbours
        name = fields["general.architecture"]
        n_heads = int(fields.get(f"{name}.attention.head_count", 1))
        n_kv_heads = int(fields.get(f"{name}.attention.head_count_kv", n_heads))
        self._heads = {"q_proj": n_heads, "k_proj": n_kv_heads}

    def names(self) -> set[str]:
        """Return the names of all tensors."""
        return set(self._tensors)

    def types(self) -> list[str]:
        """Return the types that occur, by their names in GGUF."""
        return sorted({each.tensor_type.name for each in self._tensors.values()})

    def place(self, name: str) -> Path:
        """Return the file."""
        del name
        return self._path

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape; GGUF lists it from the innermost dimension."""
        return tuple(int(n) for n in reversed(self._tensors[name].shape))

    def get(self, name: str) -> torch.Tensor:
        """Read a tensor, float32, its rows in our order."""
        tensor = numbers(self._tensors[name])
        n_heads = self._heads.get(name.split(".")[-2], 0)
        if self._turns_neighbours and n_heads:
            tensor = to_halves(tensor, n_heads)
        return tensor.reshape(self.shape(name))


def numbers(tensor: Any) -> torch.Tensor:
    """Return the numbers of a GGUF tensor, float32."""
    import torch

    gguf = the_library()
    values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    return torch.from_numpy(np.array(values, dtype=np.float32))


def _config(fields: Mapping[str, Any], name: str, weights: _Weights, path: Path) -> dict[str, Any]:
    """Return what config.json would say."""
    prefix = f"{name}."
    own = {key.removeprefix(prefix): value for key, value in fields.items() if key.startswith(prefix)}
    config: dict[str, Any] = {"tie_word_embeddings": HEAD not in weights.names()}
    config |= {theirs: _exact(own.pop(key)) for key, theirs in gguf_names.FIELDS.items() if key in own}
    scaling = {theirs: _exact(own.pop(key)) for key, theirs in gguf_names.SCALING.items() if key in own}
    if scaling.get("rope_type", "none") != "none":
        config["rope_scaling"] = scaling
    if weights.rope_factors is not None:
        config["rope_scaling"] = _llama3(numbers(weights.rope_factors), config, path)
    if "vocab_size" not in config:
        config["vocab_size"] = weights.shape("model.embed_tokens.weight")[0]
    _refuse_rest(own, config, prefix, path)
    return config


def _refuse_rest(own: dict[str, Any], config: Mapping[str, Any], prefix: str, path: Path) -> None:
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    for key in gguf_names.REPEATED:
        if own.pop(key, head_dim) != head_dim:
            raise _refused(f"{path}: {prefix}{key}", "another number", f"{head_dim}, the width of a head")
    for key, value in own.items():
        if key not in gguf_names.HARMLESS:
            raise _refused(
                f"{path}: {prefix}{key}", f"{value!r}, a field that is not known", "fields that are"
            )


def _llama3(factors: torch.Tensor, config: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the scaling that gives these factors."""
    import torch

    from modelfactory.interchange.gguf_writing import rope_factors

    fields: dict[str, Any] = {"rope_type": "llama3", "factor": round(float(factors.max()), 6), **_LLAMA_3}
    scaling = Llama3Scaling(
        factor=fields["factor"],
        low_freq_factor=fields["low_freq_factor"],
        high_freq_factor=fields["high_freq_factor"],
        original_max_seq_len=fields["original_max_position_embeddings"],
    )
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    if not torch.allclose(rope_factors(scaling, config["rope_theta"], head_dim), factors, rtol=1e-4):
        raise _refused(f"{path}: {gguf_names.ROPE_FACTORS}", "factors of their own", f"those of {_LLAMA_3}")
    return fields


def _exact(value: Any) -> Any:
    """Return the shortest decimal number that float32 keeps as this one: 1e-05, not 9.999999747378752e-06."""
    if isinstance(value, float) and math.isfinite(value):
        return float(str(np.float32(value)))
    return cast("Any", value)


def _refused(place: str, found: str, wanted: str) -> SourceError:
    return SourceError(
        place=place, found=found, wanted=wanted, remedy="Take the original folder of safetensors."
    )
