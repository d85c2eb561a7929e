"""What stands beside a tokenizer, looked at before weights are read: exports write it again as it is."""

from __future__ import annotations

import json
import math
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from modelfactory.errors import SourceError
from modelfactory.interchange.config import CONFIG, read_json, shown
from modelfactory.interchange.origin import ADDED, GENERATION, IDS, NAMED
from modelfactory.tokens.chat_files import CONFIG_FILE, NAMES, TEMPLATE_FILE
from modelfactory.tokens.chat_template import ChatTemplate, default_template
from modelfactory.tokens.tokenizer import TOKENIZER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

_OPTIONS = frozenset({"lstrip", "rstrip", "single_word", "normalized", "special"})
"""True or false of a special token that is written as an object."""


def check_tokenizer_files(folder: Path, config: Mapping[str, Any]) -> str | None:
    """Refuse special tokens, their ids and templates of chats that no library could use.

    Args:
        folder: in Hugging Face format.
        config: its config.json.

    Returns:
        The template of chats, where there is one; of several by name the default.

    Raises:
        SourceError: names file and field.
    """
    _check_ids(config, config, folder / CONFIG)
    for name in (*NAMED, GENERATION):
        if (folder / name).exists():
            fields = read_json(folder / name)
            _check_text(fields, folder / name)
            _CHECKS[name](fields, config, folder / name)
    return _chat_template(folder)


def _chat_template(folder: Path) -> str | None:
    path = folder / TEMPLATE_FILE
    if not path.exists():
        config = folder / CONFIG_FILE
        told = read_json(config).get("chat_template") if config.exists() else None
        check_templates(told, f"{config}: chat_template")
        return default_template(told)
    try:
        found = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(
            place=str(path),
            found=f"no text that can be read ({error})",
            wanted="a Jinja template in UTF-8",
            remedy="Copy it again.",
        ) from error
    check_templates(found, str(path))
    return found


def check_templates(told: Any, place: str) -> None:
    """Refuse a template of chats, or several by name, that is no Jinja.

    Raises:
        SourceError: names the place.
    """
    wanted = "a Jinja template, or a list of objects, each with a name and a template"
    if told is None:
        return
    if isinstance(told, str):
        ChatTemplate(told, {}, place)
        return
    if not isinstance(told, list) or not told:
        raise _damaged(place, told, wanted)
    for n, each in enumerate(told):
        fields = each if isinstance(each, dict) else {}
        if not all(isinstance(fields.get(key), str) for key in ("name", "template")):
            raise _damaged(f"{place}[{n}]", each, wanted)
        ChatTemplate(fields["template"], {}, f"{place}[{n}]")


def _check_text(fields: Mapping[str, Any], path: Path) -> None:
    """Refuse what JSON cannot hold, though Python reads it: NaN, infinity, half a character."""
    try:
        json.dumps(fields, allow_nan=False, ensure_ascii=False).encode("utf-8")
    except ValueError as error:
        raise SourceError(
            place=str(path),
            found=f"a value that is no JSON ({error})",
            wanted="finite numbers, and texts that UTF-8 can hold",
            remedy="Correct it, or copy the file again: it is damaged.",
        ) from error


def _check_ids(fields: Mapping[str, Any], config: Mapping[str, Any], path: Path) -> None:
    """Refuse an id that is no token of the model; a pad of -1 is none, as older configurations have it.

    Without a tokenizer beside it any is let pass: transformers writes those of its classes, such as 50,256,
    for models of any size, and exports hold none of them.
    """
    vocab_size = config.get("vocab_size")
    if type(vocab_size) is not int or not (path.parent / TOKENIZER).exists():
        return  # a size that is none is told by whoever reads the sizes
    for name in IDS:
        told = fields.get(name)
        is_many = name == "eos_token_id"
        ids = told if is_many and isinstance(told, list) and told else [told]
        least = -1 if name == "pad_token_id" else 0
        if told is not None and not all(type(n) is int and least <= n < vocab_size for n in ids):
            many = ", a list of such ids" if is_many else ""
            raise _damaged(f"{path}: {name}", told, f"an id from 0 to {vocab_size - 1:,}{many}, or null")


def _check_generation(fields: Mapping[str, Any], config: Mapping[str, Any], path: Path) -> None:
    _check_ids(fields, config, path)
    for name in ("temperature", "top_p", "repetition_penalty"):
        _require(fields, name, path, _is_positive, "a number above 0")
    for name in ("top_k", "max_new_tokens", "max_length"):
        _require(fields, name, path, _is_whole, "a whole number, 0 or more")
    _require(fields, "do_sample", path, _is_flag, "true or false")


def _check_tokenizer_config(fields: Mapping[str, Any], config: Mapping[str, Any], path: Path) -> None:
    _check_tokens(fields, config, path)
    for name in ("add_bos_token", "add_eos_token", "clean_up_tokenization_spaces", "split_special_tokens"):
        _require(fields, name, path, _is_flag, "true or false")
    for name in ("padding_side", "truncation_side"):
        _require(fields, name, path, lambda told: told in ("left", "right"), '"left" or "right"')
    _require(fields, "tokenizer_class", path, lambda told: isinstance(told, str), "the name of a class")
    _require(fields, "model_max_length", path, _is_length, "a whole number above 0")
    known = fields.get("added_tokens_decoder", {})
    is_known = (
        isinstance(known, dict) and all(map(str.isdecimal, known)) and all(map(_is_object, known.values()))
    )
    if not is_known:
        raise _damaged(
            f"{path}: added_tokens_decoder", known, "an object: by its id each token, an object too"
        )
    _require(fields, "extra_special_tokens", path, _are_tokens, "a list of tokens, or tokens by name")


def _check_tokens(fields: Mapping[str, Any], config: Mapping[str, Any], path: Path) -> None:
    del config
    wanted = "the text of a token, or an object with it as content"
    for name in NAMES:
        _require(fields, name, path, _is_token, wanted)
    _require(
        fields, "unk_token", path, lambda told: told != "", wanted
    )  # which has transformers go in circles
    _require(fields, "additional_special_tokens", path, _are_tokens, "a list of tokens")


def _check_added(fields: Mapping[str, Any], config: Mapping[str, Any], path: Path) -> None:
    del config
    for token, number in fields.items():
        if not _is_whole(number):
            raise _damaged(f"{path}: {token}", number, "the id of the token")


_CHECKS: Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Any], Path], None]] = MappingProxyType(
    {
        CONFIG_FILE: _check_tokenizer_config,
        "special_tokens_map.json": _check_tokens,
        ADDED: _check_added,
        GENERATION: _check_generation,
    }
)
"""By the name of the file; each takes its fields, those of config.json, and its path."""


def _require(
    fields: Mapping[str, Any], name: str, path: Path, is_good: Callable[[Any], bool], wanted: str
) -> None:
    """Refuse a field that is there, not null, and not as wanted."""
    told = fields.get(name)
    if told is not None and not is_good(told):
        raise _damaged(f"{path}: {name}", told, f"{wanted}, or null")


def _is_object(told: Any) -> bool:
    return isinstance(told, dict) and _is_token(told)


def _is_token(told: Any) -> bool:
    if not isinstance(told, dict):
        return isinstance(told, str)
    options = [told[name] for name in _OPTIONS & told.keys()]
    return isinstance(told.get("content"), str) and all(isinstance(each, bool) for each in options)


def _are_tokens(told: Any) -> bool:
    listed = list(told.values()) if isinstance(told, dict) else told
    return isinstance(listed, list) and all(map(_is_token, listed))


def _is_flag(told: Any) -> bool:
    return isinstance(told, bool)


def _is_whole(told: Any) -> bool:
    return type(told) is int and told >= 0


def _is_positive(told: Any) -> bool:
    return type(told) in (int, float) and math.isfinite(told) and told > 0


def _is_length(told: Any) -> bool:
    """Say whether it is a whole number above 0, as large as it may be: 1e30 stands for no bound."""
    return _is_positive(told) and told == int(told)


def _damaged(place: str, found: Any, wanted: str) -> SourceError:
    remedy = "Correct it, or copy the file again: it is damaged."
    return SourceError(place=place, found=shown(found), wanted=wanted, remedy=remedy)
