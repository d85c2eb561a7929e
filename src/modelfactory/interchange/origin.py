"""How the tokenizer of a model from elsewhere is set up, kept so that what is made of the model keeps it.

The ids of plain text follow from the tokenizer that is trained with. What is kept here besides is what other
libraries put around a text, and how they call its special tokens. It is JSON, the fact `origin` of an import
and of all that is trained from it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from modelfactory.interchange.config import read_json
from modelfactory.tokens.chat_files import CONFIG_FILE, NAMES, name_of
from modelfactory.tokens.tokenizer import TOKENIZER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from modelfactory.tokens.tokenizer import Tokenizer

GENERATION = "generation_config.json"
ADDED = "added_tokens.json"
NAMED = (CONFIG_FILE, "special_tokens_map.json", ADDED)
_AROUND = ("post_processor", "truncation", "padding")
"""Fields of a tokenizer.json that change no ids of plain text."""
IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def origin_of(folder: Path, config: Mapping[str, Any], tokenizer: Tokenizer | None) -> dict[str, Any] | None:
    """Return what is kept of a folder; None where `tokenizer` is not the one that lies in it.

    Raises:
        SourceError: one of its files is no JSON.
    """
    if tokenizer is None or not (folder / TOKENIZER).exists():
        return None
    content = read_json(folder / TOKENIZER)
    if _vocabulary(content) != _vocabulary(json.loads(tokenizer.to_json())):
        return None
    files = {name: read_json(folder / name) for name in NAMED if (folder / name).exists()}
    told = files.get(CONFIG_FILE, {})
    if not isinstance(told.get("chat_template", []), list):
        del told["chat_template"]  # has a file of its own
    for kind in NAMES:  # in this file alone transformers wants to be told that an object is a token
        if isinstance(told.get(kind), dict):
            told[kind] = {"__type": "AddedToken"} | told[kind]
    eos = tokenizer.decode([tokenizer.eos_id])
    generation = read_json(folder / GENERATION) if (folder / GENERATION).exists() else None
    return {
        "names": _names(files, config, tokenizer),
        "around": {name: content.get(name) for name in _AROUND},
        "eos_entry": next((token for token in _added_tokens(content) if token.get("content") == eos), None),
        "files": files,
        "ids": {name: _ids(config.get(name)) for name in IDS},
        "generation": generation,
    }


def origin_of_names(
    names: Mapping[str, str], tokenizer: Tokenizer, *, is_added: bool, ends: Iterable[int]
) -> dict[str, Any]:
    """Return what is kept of a GGUF file, as if it had been a folder.

    Args:
        names: kind, such as `bos_token`, -> token.
        tokenizer: the one inside.
        is_added: whether bos_token is put before every text.
        ends: ids that end a text or a turn.
    """
    known = [kind for kind in ("bos_token", "pad_token") if kind in names]
    ids = {f"{kind}_id": tokenizer.token_id(names[kind]) for kind in known}
    entries = _added_tokens(json.loads(tokenizer.to_json()))
    eos = tokenizer.decode([tokenizer.eos_id])
    told = {"tokenizer_class": "PreTrainedTokenizerFast", **names, "clean_up_tokenization_spaces": False}
    processor = first_processor(names["bos_token"], ids["bos_token_id"]) if is_added else None
    return {
        "names": dict(names),
        "around": {"post_processor": processor, "truncation": None, "padding": None},
        "eos_entry": next((token for token in entries if token["content"] == eos), None),
        "files": {CONFIG_FILE: told},
        "ids": dict.fromkeys(IDS) | ids | {"eos_token_id": list(ends)},
        "generation": None,
    }


def first_processor(token: Any, number: Any) -> dict[str, Any]:
    """Return the post-processor of a tokenizer.json that puts a token before every text."""
    special = {"SpecialToken": {"id": token, "type_id": 0}}
    one, other = ({"Sequence": {"id": name, "type_id": n}} for n, name in enumerate("AB"))
    return {
        "type": "TemplateProcessing",
        "single": [special, one],
        "pair": [special, one, other],
        "special_tokens": {token: {"id": token, "ids": [number], "tokens": [token]}},
    }


def around(origin: Mapping[str, Any], tokenizer: Tokenizer) -> str:
    """Return a tokenizer.json that treats every text as that of the origin does."""
    content = json.loads(tokenizer.to_json())
    eos, entry = tokenizer.decode([tokenizer.eos_id]), origin["eos_entry"]
    others = [token for token in content["added_tokens"] if token["content"] != eos]
    added = others if entry is None else sorted([*others, entry], key=lambda token: int(token["id"]))
    return json.dumps(content | {"added_tokens": added} | origin["around"], indent=2, ensure_ascii=False)


def put_around(content: str) -> tuple[list[int], list[int]]:
    """Return the tokens that a tokenizer.json puts before and after every text."""
    from tokenizers import Tokenizer as Inner

    inner = Inner.from_str(content)
    inner.no_truncation()
    inner.no_padding()
    plain, whole = (inner.encode("a", add_special_tokens=told).ids for told in (False, True))
    starts = range(len(whole) - len(plain) + 1)
    first = next((n for n in starts if whole[n : n + len(plain)] == plain), 0)
    return whole[:first], whole[first + len(plain) :]


def _names(files: Mapping[str, Any], config: Mapping[str, Any], tokenizer: Tokenizer) -> dict[str, str]:
    """Return kind -> token, from the file that says it first."""
    known = json.loads(tokenizer.to_json())
    by_id = {number: token for token, number in _vocabulary(known).items()}
    found: dict[str, str] = {}
    for kind in NAMES:
        told = [files[name].get(kind) for name in NAMED[:2] if name in files]
        number = config.get(f"{kind}_id")
        first = number[0] if isinstance(number, list) and number else number
        named = [name_of(each) for each in told] + [by_id.get(first) if isinstance(first, int) else None]
        if token := next((each for each in named if each is not None), None):
            found[kind] = token
    return found


def _vocabulary(content: Mapping[str, Any]) -> dict[str, int]:
    """Return token -> id of a tokenizer.json."""
    vocab = (content.get("model") or {}).get("vocab") or {}
    found = dict(vocab) if isinstance(vocab, dict) else {piece: n for n, (piece, _) in enumerate(vocab)}
    return found | {token["content"]: token["id"] for token in _added_tokens(content)}


def _ids(told: Any) -> Any:
    """Return an id, or ids; None where it is neither."""
    listed = told if isinstance(told, list) else [told]
    return told if listed and all(type(number) is int for number in listed) else None


def _added_tokens(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = content.get("added_tokens") or []
    return found
