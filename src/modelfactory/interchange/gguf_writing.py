"""A model of ours, written as one GGUF file for llama.cpp and what builds on it."""

from __future__ import annotations

from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, cast

from modelfactory.errors import SpecError
from modelfactory.interchange import gguf_names
from modelfactory.interchange.aside import aside, check_place
from modelfactory.interchange.ends import end_of_turn
from modelfactory.interchange.exporting import Dtype, state_of
from modelfactory.interchange.families import FAMILIES
from modelfactory.interchange.family import family_of
from modelfactory.interchange.gguf_library import the_library
from modelfactory.interchange.gguf_tokenizer import tokenizer_fields
from modelfactory.interchange.origin import around, put_around
from modelfactory.interchange.rotary_order import to_neighbours
from modelfactory.interchange.tokenizer_files import check_vocabulary
from modelfactory.interchange.used import as_used
from modelfactory.interchange.weights import all_theirs
from modelfactory.models import Attention, Rope
from modelfactory.models.rope import Llama3Scaling

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch

    from modelfactory.interchange.family import Family
    from modelfactory.tokens.tokenizer import Tokenizer


def export_gguf(
    module: torch.nn.Module,
    spec: Any,
    tokenizer: Tokenizer | None,
    to: Path,
    *,
    dtype: Dtype = "float32",
    licence: str | None = None,
    facts: Mapping[str, Any] | None = None,
) -> str:
    """Write one file, with the tokenizer inside; vectors stay float32, as llama.cpp has it.

    Args:
        module: built from `spec`; only read.
        spec: a `Decoder` like Llama, Qwen 2 or Qwen 3.
        tokenizer: the one it was trained with; None leaves it out.
        to: a file that does not exist yet; written aside and renamed.
        dtype: of the matrices; float32 keeps every bit.
        licence: of the weights, by its SPDX name in small letters.
        facts: `chat_template`, `chat_names`, `prefix_id`, and the `origin` that an imported model has, by
            which texts become tokens as there.

    Returns:
        The name of the architecture in GGUF.

    Raises:
        SpecError: of another family, or with a scaling of positions that GGUF has no field for.
        CommandError: `to` exists, or the package `gguf` is not installed.
    """
    gguf = the_library()
    check_place(to)
    state, vocab_size = state_of(module, spec)
    check_vocabulary(tokenizer, vocab_size, "model")
    name, family, fields = _family(spec)
    pairings = family.pairings(as_used(spec), vocab_size)
    theirs = all_theirs(state, pairings, "float32")
    if dtype != "float32":
        # Refuses what it cannot hold, of which gguf would make infinity; vectors stay float32.
        all_theirs(state, [each for each in pairings if len(each.theirs[0].shape) > 1], dtype)
    with aside(to, is_file=True) as path, closing(gguf.GGUFWriter(path, name)) as writer:
        _add_fields(writer, name, fields | {"vocab_size": vocab_size}, to.stem, licence)
        if tokenizer is not None:
            _add_tokenizer(writer, tokenizer, vocab_size, dict(facts or {}))
        _add_tensors(writer, name, theirs, spec, dtype)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    return name


def _family(spec: Any) -> tuple[str, Family, dict[str, Any]]:
    """Return the name in GGUF, the family of transformers and the fields of config.json."""
    held = {theirs: name for name, theirs in gguf_names.ARCHITECTURES.items()}
    try:
        family, fields = family_of(spec, [each for each in FAMILIES if each.architecture in held], "GGUF")
    except SpecError:
        other = _held_elsewhere(spec)
        if other is None:
            raise
        raise SpecError(
            place="model",
            found=f"a decoder like {other}",
            wanted=f"one like {', '.join(held)}",
            remedy="Export it in Hugging Face format; llama.cpp converts more architectures from there.",
        ) from None
    return held[family.architecture], family, fields


def _held_elsewhere(spec: Any) -> str | None:
    with suppress(SpecError):
        return family_of(spec, FAMILIES)[0].architecture
    return None


def _add_fields(writer: Any, name: str, config: Mapping[str, Any], title: str, licence: str | None) -> None:
    if config.get("attention_bias") or config.get("mlp_bias"):
        raise _no_field("biases", "a decoder without them")
    writer.add_name(title)
    if licence is not None:
        writer.add_license(licence)
    own = {key: config[theirs] for key, theirs in gguf_names.FIELDS.items() if theirs in config}
    own |= dict.fromkeys((*gguf_names.REPEATED, "attention.key_length"), config["head_dim"])
    scaling = config.get("rope_scaling", {})
    if scaling and scaling["rope_type"] != "llama3":
        own |= {key: scaling[theirs] for key, theirs in gguf_names.SCALING.items() if theirs in scaling}
        if "attention_factor" in scaling or "truncate" in scaling:
            raise _no_field(f"YaRN with {scaling}", "the paper's factor of attention and whole pairs")
    if scaling and scaling["rope_type"] == "llama3":
        told = {"original_max_seq_len": scaling["original_max_position_embeddings"]} | scaling
        for key, kind in gguf_names.LLAMA_3.items():  # what the factors follow from, every bit
            (writer.add_uint64 if kind is int else writer.add_float64)(f"{gguf_names.OWN}{key}", told[key])
    for key, value in own.items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
        add(f"{name}.{key}", value)


def _no_field(found: str, wanted: str) -> SpecError:
    return SpecError(
        place="model", found=found, wanted=f"{wanted}: GGUF has no field for it",
        remedy="Export it in Hugging Face format.",
    )  # fmt: skip


def _add_tokenizer(writer: Any, tokenizer: Tokenizer, vocab_size: int, facts: Mapping[str, Any]) -> None:
    fields = tokenizer_fields(tokenizer, vocab_size)
    writer.add_tokenizer_model(fields["model"])
    writer.add_tokenizer_pre(fields["pre"])
    writer.add_token_list(fields["tokens"])
    writer.add_token_types(fields["token_type"])
    if "merges" in fields:
        writer.add_token_merges(fields["merges"])
    else:
        writer.add_token_scores(fields["scores"])
        writer.add_add_space_prefix(fields["add_space_prefix"])
    _add_special(writer, tokenizer, facts)
    if facts.get("chat_template"):
        writer.add_chat_template(facts["chat_template"])


def _add_special(writer: Any, tokenizer: Tokenizer, facts: Mapping[str, Any]) -> None:
    """Say which tokens are special, and which come before and after every text."""
    origin, named = facts.get("origin"), facts.get("chat_names", {}).get("bos_token")
    ids = {"bos": facts.get("prefix_id", tokenizer.eos_id), "eos": tokenizer.eos_id}
    before, after = [ids["bos"]], list[int]()
    if not origin and named is not None and (bos := tokenizer.token_id(named)) not in (None, ids["bos"]):
        ids["bos"], before = bos, []  # the one that the template writes, which alone has a name
    if origin:
        kinds = {kind: origin["names"].get(f"{kind}_token") for kind in ("bos", "pad", "unk")}
        found = {kind: tokenizer.token_id(name) for kind, name in kinds.items() if name is not None}
        before, after = put_around(around(origin, tokenizer))
        ids = {"bos": before[0] if before else None, "eos": tokenizer.eos_id} | found
    if before not in ([], [ids["bos"]]) or after not in ([], [ids["eos"]]):
        wanted = "bos_token or nothing before a text, eos_token or nothing after it"
        raise _no_field(f"a tokenizer that puts the tokens {before} before and {after} after a text", wanted)
    ids["eot"] = end_of_turn(tokenizer, facts)
    for kind, number in ids.items():
        if number is not None:
            getattr(writer, f"add_{kind}_token_id")(number)
    writer.add_add_bos_token(bool(before))
    if after:
        writer.add_add_eos_token(True)


def _add_tensors(writer: Any, name: str, theirs: Mapping[str, torch.Tensor], spec: Any, dtype: Dtype) -> None:
    gguf = the_library()
    attention = cast("Attention", spec.blocks[0].mixer)
    heads = {"q_proj": attention.n_heads, "k_proj": attention.n_kv_heads}
    kinds = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
    rope = attention.rope
    if rope is not None and isinstance(rope.scaling, Llama3Scaling):
        factors = rope_factors(rope.scaling, rope.theta, attention.head_dim)
        writer.add_tensor(gguf_names.ROPE_FACTORS, factors.numpy())
    for their_name, tensor in theirs.items():
        n_heads = heads.get(their_name.split(".")[-2], 0)
        if n_heads and name in gguf_names.TURNS_NEIGHBOURS:
            tensor = to_neighbours(tensor, n_heads)  # noqa: PLW2901 - the same tensor, in their order
        kind = gguf.GGMLQuantizationType[kinds[dtype] if tensor.ndim > 1 else "F32"]
        values = gguf.quants.quantize(tensor.contiguous().numpy(), kind)
        writer.add_tensor(gguf_names.from_transformers(their_name), values, raw_dtype=kind)


def rope_factors(scaling: Llama3Scaling, theta: float, head_dim: int) -> torch.Tensor:
    """Return what each frequency is divided by, float32."""
    from modelfactory.models.rope_module import frequencies

    plain = frequencies(Rope(theta=theta), head_dim)
    return plain / frequencies(Rope(theta=theta, scaling=scaling), head_dim)
