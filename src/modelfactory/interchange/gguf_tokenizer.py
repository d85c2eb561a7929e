"""The tokenizer inside a GGUF file.

Two kinds are known: `gpt2`, byte-level pairs whose way of cutting a text into words has a name, and `llama`,
pieces with scores as sentencepiece has them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from modelfactory.errors import SourceError, SpecError
from modelfactory.interchange.sentencepiece_bpe import (
    BYTES,
    has_prefix_space,
    is_sentencepiece,
    pairs_of,
    scores_of,
    tokenizer_json,
)
from modelfactory.interchange.tokenizer_files import made

if TYPE_CHECKING:
    from collections.abc import Mapping

    from modelfactory.tokens.tokenizer import Tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Types of tokens."""
_LETTERS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _cutting(name: str) -> dict[str, Any]:
    """Return the parts of a tokenizer.json that cut a text into words, by llama.cpp's name."""
    plain = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    if name == "gpt-2":
        return {"normalizer": None, "pre_tokenizer": plain, "ignore_merges": False}
    if name == "smollm":
        steps = [{"type": "Digits", "individual_digits": True}, plain]
        return {"normalizer": None, "pre_tokenizer": _steps(steps), "ignore_merges": False}
    digits = r"\p{N}{1,3}" if name == "llama-bpe" else r"\p{N}"
    split = {"type": "Split", "pattern": {"Regex": _LETTERS + digits + _REST}, "behavior": "Isolated"}
    steps = [split | {"invert": False}, plain | {"use_regex": False}]
    normalizer = None if name == "llama-bpe" else {"type": "NFC"}
    joined = name == "llama-bpe"  # a word that is a token is one, whatever its pairs
    return {"normalizer": normalizer, "pre_tokenizer": _steps(steps), "ignore_merges": joined}


def _steps(steps: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": steps}


CUTTINGS = ("gpt-2", "smollm", "llama-bpe", "qwen2")


def read_tokenizer(fields: Mapping[str, Any], eos_token: str | None, place: str) -> Tokenizer | None:
    """Return the tokenizer of a file, None where it holds none.

    Raises:
        SourceError: of a kind that is not known, or without an end of text.
    """
    kind = fields.get("tokenizer.ggml.model")
    if kind is None:
        return None
    names: list[str] = list(fields["tokenizer.ggml.tokens"])
    eos = eos_token or _token(fields, names, "eos")
    if eos is None:
        raise SourceError(
            place=f"{place}: tokenizer.ggml.eos_token_id",
            found="nothing",
            wanted="the token that ends a text",
            remedy="Name it with eos_token (--eos-token).",
        )
    bos = (
        _token(fields, names, "bos") if fields.get("tokenizer.ggml.add_bos_token", kind == "llama") else None
    )
    if kind == "gpt2":
        return made(_byte_level(fields, names, place), eos, bos, place)
    if kind == "llama":
        return made(_pieces(fields, names), eos, bos, place)
    raise SourceError(
        place=f"{place}: tokenizer.ggml.model", found=repr(kind), wanted="'gpt2' or 'llama'",
        remedy="Take the tokenizer.json of the original model.",
    )  # fmt: skip


def _token(fields: Mapping[str, Any], names: list[str], which: str) -> str | None:
    number = fields.get(f"tokenizer.ggml.{which}_token_id")
    return names[number] if number is not None and number < len(names) else None


def _byte_level(fields: Mapping[str, Any], names: list[str], place: str) -> bytes:
    cutting = fields.get("tokenizer.ggml.pre", "default")
    if cutting not in CUTTINGS:
        raise SourceError(
            place=f"{place}: tokenizer.ggml.pre",
            found=repr(cutting),
            wanted=f"one of {', '.join(CUTTINGS)}",
            remedy="How it cuts a text into words is not known here.",
        )
    parts = _cutting(cutting)
    kinds = fields.get("tokenizer.ggml.token_type", [NORMAL] * len(names))
    added = [
        {"id": n, "content": name, "special": kind == CONTROL, "normalized": False}
        | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        for n, (name, kind) in enumerate(zip(names, kinds, strict=True))
        if kind in (CONTROL, USER_DEFINED)
    ]
    model = {
        "type": "BPE",
        "vocab": {name: n for n, name in enumerate(names) if kinds[n] != UNUSED},
        "merges": [pair.split(" ") for pair in fields["tokenizer.ggml.merges"]],
        "ignore_merges": parts.pop("ignore_merges"),
    }
    decoder = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    whole = {"version": "1.0", "added_tokens": added, **parts, "decoder": decoder, "model": model}
    return json.dumps(whole, ensure_ascii=False).encode("utf-8")


def _pieces(fields: Mapping[str, Any], names: list[str]) -> bytes:
    kinds = fields["tokenizer.ggml.token_type"]
    special = [name for name, kind in zip(names, kinds, strict=True) if kind == CONTROL]
    unknown = next((name for name, kind in zip(names, kinds, strict=True) if kind == UNKNOWN), "<unk>")
    prefixed = bool(fields.get("tokenizer.ggml.add_space_prefix", True))
    scores = fields["tokenizer.ggml.scores"]
    used = {name: n for n, (name, kind) in enumerate(zip(names, kinds, strict=True)) if kind != UNUSED}
    return tokenizer_json(used, scores, unknown=unknown, special=special, prefix_space=prefixed)


def tokenizer_fields(tokenizer: Tokenizer, vocab_size: int) -> dict[str, Any]:
    """Return the fields below `tokenizer.ggml`; rows of the model without a token are named [PAD...].

    Raises:
        SpecError: it is of another kind, or cuts texts in a way that llama.cpp has no name for.
    """
    content = json.loads(tokenizer.to_json())
    added = {token["content"]: token for token in content["added_tokens"]}
    vocabulary = dict(content["model"].get("vocab", {})) | {name: one["id"] for name, one in added.items()}
    by_id = {number: name for name, number in vocabulary.items()}
    names = [by_id.get(number, f"[PAD{number}]") for number in range(vocab_size)]
    kinds = [_kind(number, by_id, added) for number in range(vocab_size)]
    if is_sentencepiece(content):
        return {"model": "llama", "pre": "default", "tokens": names, **_piece_fields(content, names, kinds)}
    cutting = _name_of_cutting(content)
    merges = [" ".join(pair) for pair in pairs_of(content)]
    return {"model": "gpt2", "pre": cutting, "tokens": names, "token_type": kinds, "merges": merges}


def _piece_fields(content: Mapping[str, Any], names: list[str], kinds: list[int]) -> dict[str, Any]:
    unknown = content["model"]["unk_token"]
    told = [_piece_kind(name, kind, unknown) for name, kind in zip(names, kinds, strict=True)]
    scores = scores_of(content, names)
    return {"token_type": told, "scores": scores, "add_space_prefix": has_prefix_space(content)}


def _piece_kind(name: str, kind: int, unknown: str) -> int:
    if name == unknown:
        return UNKNOWN
    return BYTE if kind == NORMAL and name in BYTES else kind


def _kind(number: int, by_id: Mapping[int, str], added: Mapping[str, Mapping[str, Any]]) -> int:
    if number not in by_id:
        return UNUSED
    token = added.get(by_id[number])
    return NORMAL if token is None else CONTROL if token["special"] else USER_DEFINED


def _name_of_cutting(content: Mapping[str, Any]) -> str:
    model = content["model"]
    found = {
        "normalizer": content["normalizer"],
        "pre_tokenizer": content["pre_tokenizer"],
        "ignore_merges": model.get("ignore_merges", False),
    }
    for name in CUTTINGS:
        if model["type"] == "BPE" and _bare(_cutting(name)) == _bare(found):
            return name
    raise SpecError(
        place="tokenizer",
        found=f"a {model['type']} tokenizer that cuts texts into words in a way of its own",
        wanted=f"byte-level pairs that cut as one of {', '.join(CUTTINGS)} does",
        remedy="llama.cpp knows the ways of cutting by name; export to Hugging Face format in its place.",
    )


def _bare(value: Any) -> Any:
    """Leave out what changes no ids: trim_offsets, and sequences of one step."""
    if isinstance(value, dict):
        steps = value.get("pretokenizers")
        if isinstance(steps, list) and len(steps) == 1:
            return _bare(steps[0])
        return {key: _bare(item) for key, item in value.items() if key != "trim_offsets"}
    return [_bare(item) for item in value] if isinstance(value, list) else value
