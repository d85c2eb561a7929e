"""The tokenizer inside a GGUF file.

Two kinds are known: `gpt2`, byte-level pairs whose way of cutting a text into words has a name, and `llama`,
pieces with scores as sentencepiece has them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from modelfactory.errors import SourceError, SpecError
from modelfactory.interchange.origin import origin_of_names
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

    from modelfactory.interchange.gguf_file import GgufFile
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


_TOKENS = "tokenizer.ggml.tokens"
_TYPES = "tokenizer.ggml.token_type"
_NAMES = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown", "sep": "seperator", "mask": "mask"}
"""How transformers and GGUF call the special tokens."""


def read_tokenizer(file: GgufFile, eos_token: str | None) -> Tokenizer | None:
    """Return the tokenizer of a file, None where it holds none.

    Raises:
        SourceError: of a kind that is not known, damaged, or without an end of text.
    """
    kind = file.get("tokenizer.ggml.model", str)
    if kind is None:
        return None
    names = file.listed(_TOKENS, str)
    eos = eos_token or _token(file, names, "eos")
    if eos is None:
        remedy = "Name it with eos_token (--eos-token)."
        raise file.fault("tokenizer.ggml.eos_token_id", "nothing", "the token that ends a text", remedy)
    if kind not in ("gpt2", "llama"):
        remedy = "Take the tokenizer.json of the original model."
        raise file.fault("tokenizer.ggml.model", repr(kind), "'gpt2' or 'llama'", remedy)
    content = _byte_level(file, names) if kind == "gpt2" else _pieces(file, names)
    place = f"{file.path}: {_TOKENS}"
    try:
        return made(content, eos, _token(file, names, "bos") if _adds_bos(file) else None, place)
    except SpecError as error:
        raise SourceError(place=place, found=error.found, wanted=error.wanted, remedy=error.remedy) from error


def origin_of_gguf(file: GgufFile, tokenizer: Tokenizer) -> dict[str, Any] | None:
    """Return how the tokenizer of a file is set up; None where `tokenizer` is another, or none is there.

    Raises:
        SourceError: as `read_tokenizer` does.
    """
    if file.get("tokenizer.ggml.model", str) is None:
        return None
    names = file.listed(_TOKENS, str)
    told = {f"{kind}_token": _token(file, names, theirs) for kind, theirs in _NAMES.items()}
    known = {kind: name for kind, name in told.items() if name is not None}
    if any(tokenizer.token_id(name) != n for n, name in enumerate(names[: tokenizer.vocab_size])):
        return None
    ends = (file.get(f"tokenizer.ggml.{kind}_token_id", int) for kind in ("eos", "eot"))
    is_added = _adds_bos(file) and "bos_token" in known
    return origin_of_names(known, tokenizer, is_added=is_added, ends=[n for n in ends if n is not None])


def _adds_bos(file: GgufFile) -> bool:
    """Return whether llama.cpp puts bos_token before a text: as the file says, else by its kind."""
    kind, cutting = (file.get(f"tokenizer.ggml.{name}", str) for name in ("model", "pre"))
    return bool(file.get("tokenizer.ggml.add_bos_token", bool, kind == "llama" or cutting == "llama-bpe"))


def _token(file: GgufFile, names: list[str], which: str) -> str | None:
    field = f"tokenizer.ggml.{which}_token_id"
    number = file.get(field, int)
    if number is not None and not 0 <= number < len(names):
        raise file.fault(field, f"{number:,}", f"the id of one of {len(names):,} tokens")
    return None if number is None else names[number]


def _byte_level(file: GgufFile, names: list[str]) -> bytes:
    cutting = file.get("tokenizer.ggml.pre", str, "default")
    if cutting not in CUTTINGS:
        remedy = "How it cuts a text into words is not known here."
        raise file.fault("tokenizer.ggml.pre", repr(cutting), f"one of {', '.join(CUTTINGS)}", remedy)
    parts = _cutting(cutting)
    kinds = file.listed(_TYPES, int, len(names)) if _TYPES in file.fields else [NORMAL] * len(names)
    added = [
        {"id": n, "content": name, "special": kind == CONTROL, "normalized": False}
        | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        for n, (name, kind) in enumerate(zip(names, kinds, strict=True))
        if kind in (CONTROL, USER_DEFINED)
    ]
    model = {
        "type": "BPE",
        "vocab": {name: n for n, name in enumerate(names) if kinds[n] != UNUSED},
        "merges": [pair.split(" ") for pair in file.listed("tokenizer.ggml.merges", str)],
        "ignore_merges": parts.pop("ignore_merges"),
    }
    decoder = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    whole = {"version": "1.0", "added_tokens": added, **parts, "decoder": decoder, "model": model}
    return json.dumps(whole, ensure_ascii=False).encode("utf-8")


def _pieces(file: GgufFile, names: list[str]) -> bytes:
    kinds = file.listed(_TYPES, int, len(names))
    special = [name for name, kind in zip(names, kinds, strict=True) if kind == CONTROL]
    unknown = next((name for name, kind in zip(names, kinds, strict=True) if kind == UNKNOWN), "<unk>")
    prefixed = file.get("tokenizer.ggml.add_space_prefix", bool, True)
    scores = file.listed("tokenizer.ggml.scores", float, len(names))
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
