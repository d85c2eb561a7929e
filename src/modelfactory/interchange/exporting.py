"""A model of ours, written in Hugging Face format."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any, Literal

from modelfactory.errors import SpecError
from modelfactory.interchange.aside import aside, check_place
from modelfactory.interchange.config import CONFIG
from modelfactory.interchange.ends import generation
from modelfactory.interchange.families import FAMILIES
from modelfactory.interchange.family import family_of
from modelfactory.interchange.model_card import CARD, model_card
from modelfactory.interchange.origin import GENERATION
from modelfactory.interchange.safetensors_files import MAX_SHARD_BYTES, write_safetensors
from modelfactory.interchange.tokenizer_files import check_vocabulary, write_tokenizer
from modelfactory.interchange.used import as_used
from modelfactory.interchange.weights import all_theirs, shapes_of
from modelfactory.models import Decoder

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch

    from modelfactory.tokens.tokenizer import Tokenizer

Dtype = Literal["float32", "bfloat16", "float16"]


def export_hugging_face(
    module: torch.nn.Module,
    spec: Any,
    tokenizer: Tokenizer | None,
    to: Path,
    *,
    dtype: Dtype = "float32",
    max_shard_bytes: int = MAX_SHARD_BYTES,
    licence: str | None = None,
    facts: Mapping[str, Any] | None = None,
) -> str:
    """Write `to`: weights, config.json, generation_config.json, the tokenizer, and a model card.

    Args:
        module: built from `spec`; only read.
        spec: a `Decoder` that equals one of `FAMILIES`.
        tokenizer: the one it was trained with; None leaves it out.
        to: a folder that does not exist yet; written aside and renamed.
        dtype: of the weights; float32 keeps every bit.
        max_shard_bytes: of one file.
        licence: of the weights, for the model card, by its SPDX name in small letters, such as apache-2.0.
        facts: for the model card `training`, `lineage`; for the tokenizer `chat_template`, `chat_names`,
            `prefix_id`, and the `origin` that an imported model has, by which texts become tokens as there.

    Returns:
        The name of the architecture in transformers.

    Raises:
        SpecError: no architecture of transformers holds this one, or the module is of another.
        CommandError: `to` exists, or nothing can be written there.
        DiskFull: there is no space left.
    """
    check_place(to)
    if max_shard_bytes < 1:
        raise SpecError(place="max_shard_bytes", found=str(max_shard_bytes), wanted="at least 1", remedy="")
    known = dict(facts or {})
    state, vocab_size = state_of(module, spec)
    check_vocabulary(tokenizer, vocab_size, "model")
    family, fields = family_of(spec, FAMILIES)
    prefix_id = known.get("prefix_id", None if tokenizer is None else tokenizer.eos_id)
    ids, generating = generation(tokenizer, known | {"prefix_id": prefix_id})
    named = {"architectures": [family.architecture], "model_type": family.model_type}
    whole = named | fields | {"vocab_size": vocab_size, "torch_dtype": dtype} | ids
    with aside(to) as folder:
        theirs = all_theirs(state, family.pairings(as_used(spec), vocab_size), dtype)
        write_safetensors(theirs, folder, max_shard_bytes)
        _write_json(folder / CONFIG, whole)
        _write_json(folder / GENERATION, generating)
        if tokenizer is not None and prefix_id is not None:
            write_tokenizer(tokenizer, folder, spec.max_seq_len, prefix_id, known)
        sizes: dict[str, Any] = {
            "vocab_size": vocab_size,
            "architecture": family.architecture,
            "dtype": dtype,
        }
        card = model_card(to.name, spec, licence=licence, facts=known, **sizes)
        (folder / CARD).write_text(card, encoding="utf-8")
        for path in folder.iterdir():  # safetensors lets nobody else read what it writes
            shutil.copymode(folder / CARD, path)
    return family.architecture


def state_of(module: torch.nn.Module, spec: Any) -> tuple[dict[str, torch.Tensor], int]:
    """Return the tensors of a module that are used after training, by the names of its spec, and vocab_size.

    Compiled or wrapped parts put `_orig_mod.` or `module.` into names; these are taken out.

    Raises:
        SpecError: not a decoder, or the module was built from another spec.
    """
    if not isinstance(spec, Decoder):
        raise SpecError(
            place="model",
            found=f"a {type(spec).__name__}",
            wanted="a Decoder",
            remedy="Only decoders have a counterpart in other libraries.",
        )
    state = {_plain(name): tensor for name, tensor in module.state_dict().items()}
    vocab_size = int(state["embedding.weight"].shape[0]) if "embedding.weight" in state else 1
    wanted, used = shapes_of(spec, vocab_size), shapes_of(as_used(spec), vocab_size)
    found = {name: tuple(tensor.shape) for name, tensor in state.items()}
    odd = sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))
    if odd:
        raise SpecError(
            place=f"module: {odd[0]}",
            found=f"the shape {found.get(odd[0], 'of nothing')}",
            wanted=f"{wanted.get(odd[0], 'no such tensor')}, which follows from the spec",
            remedy="Give the spec the module was built from.",
        )
    return {name: state[name] for name in used}, vocab_size


def _plain(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in ("_orig_mod", "module"))


def _write_json(path: Path, fields: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(fields, indent=2, allow_nan=False) + "\n", encoding="utf-8")
