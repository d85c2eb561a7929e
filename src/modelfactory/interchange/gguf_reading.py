"""A GGUF file, read: also one whose tensors are quantised, which come out as the numbers they stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modelfactory.interchange import gguf_names
from modelfactory.interchange.families import family_named
from modelfactory.interchange.gguf_config import config_of, head_count
from modelfactory.interchange.gguf_file import GgufFile
from modelfactory.interchange.gguf_tokenizer import origin_of_gguf, read_tokenizer
from modelfactory.interchange.imported import Imported
from modelfactory.interchange.rotary_order import to_halves
from modelfactory.interchange.tokenizer_checks import check_templates
from modelfactory.interchange.tokenizer_files import check_vocabulary
from modelfactory.interchange.weights import from_theirs, shapes_of

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from modelfactory.tokens.tokenizer import Tokenizer

_REMEDY = "Take the original folder of safetensors."


def import_gguf(path: Path, *, eos_token: str | None = None, with_tokenizer: bool = True) -> Imported:
    """Read a model with its tokenizer from one file.

    Raises:
        SourceError: no GGUF file, or cut off; an architecture, field, tensor or tokenizer that is not known.
        CommandError: the package `gguf` is not installed.
    """
    file = GgufFile(path)
    name = file.need("general.architecture", str)
    if name not in gguf_names.ARCHITECTURES:
        wanted = f"one of {', '.join(gguf_names.ARCHITECTURES)}"
        raise file.fault("general.architecture", repr(name), wanted, _REMEDY)
    family = family_named(gguf_names.ARCHITECTURES[name], str(path))
    weights = _Weights(file, name)
    fields = config_of(file, name, weights.names(), weights.rope_factors)
    vocab_size = fields.pop("vocab_size")
    spec = family.read(fields, str(path))
    template = file.get("tokenizer.chat_template", str)
    check_templates(template, f"{path}: tokenizer.chat_template")
    tokenizer = read_tokenizer(file, eos_token) if with_tokenizer else None
    check_vocabulary(tokenizer, vocab_size, str(path))
    pairings, shapes = family.pairings(spec, vocab_size), shapes_of(spec, vocab_size)
    state = from_theirs(weights, pairings, shapes, str(path))
    facts = {
        "format": "gguf",
        "architecture": family.architecture,
        "dtype": "+".join(weights.types()),
        "chat_template": template,
    }
    return Imported(spec=spec, vocab_size=vocab_size, state=state, tokenizer=tokenizer, facts=facts)


def tokenizer_in(path: Path, eos_token: str | None) -> Tokenizer | None:
    """Return the tokenizer of a file, None where it holds none.

    Raises:
        SourceError: no GGUF file, or a tokenizer of a kind that is not known.
        CommandError: the package `gguf` is not installed.
    """
    return read_tokenizer(GgufFile(path), eos_token)


def origin_in(path: Path, tokenizer: Tokenizer) -> dict[str, Any] | None:
    """Return how the tokenizer of a file is set up; None where `tokenizer` is another.

    Raises:
        SourceError: as `tokenizer_in` does.
    """
    return origin_of_gguf(GgufFile(path), tokenizer)


class _Weights:
    """Tensors by the names transformers has for them; follows `Weights`."""

    def __init__(self, file: GgufFile, name: str) -> None:
        self._file = file
        self._tensors = {gguf_names.to_transformers(each.name): each for each in file.tensors}
        factors = self._tensors.pop(gguf_names.ROPE_FACTORS, None)
        self.rope_factors = None if factors is None else file.numbers(factors)
        self._turns_neighbours = name in gguf_names.TURNS_NEIGHBOURS
        n_heads = head_count(file, name, "head_count", None)
        self._heads = {"q_proj": n_heads, "k_proj": head_count(file, name, "head_count_kv", n_heads)}

    def names(self) -> set[str]:
        """Return the names of all tensors."""
        return set(self._tensors)

    def types(self) -> list[str]:
        """Return the types that occur, by their names in GGUF."""
        return sorted({each.tensor_type.name for each in self._tensors.values()})

    def place(self, name: str) -> Path:
        """Return the file."""
        del name
        return self._file.path

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape; GGUF lists it from the innermost dimension."""
        return tuple(int(n) for n in reversed(self._tensors[name].shape))

    def get(self, name: str) -> torch.Tensor:
        """Read a tensor, float32, its rows in our order."""
        import torch

        tensor = torch.from_numpy(self._file.numbers(self._tensors[name]))
        n_heads = self._heads.get(name.split(".")[-2], 0)
        if self._turns_neighbours and n_heads:
            tensor = to_halves(tensor, n_heads)
        return tensor.reshape(self.shape(name))
