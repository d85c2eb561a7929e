"""The tokenizer of a folder in Hugging Face format, both ways."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from modelfactory.errors import SourceError
from modelfactory.interchange.config import read_json
from modelfactory.interchange.origin import around
from modelfactory.tokens.chat_files import CONFIG_FILE, TEMPLATE_FILE, name_of
from modelfactory.tokens.chat_template import default_template
from modelfactory.tokens.importing import imported, parsed, read
from modelfactory.tokens.tokenizer import TOKENIZER, Tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import tokenizers

_EOS_REMEDY = "Name the token that ends a text with eos_token (--eos-token)."


def read_tokenizer(folder: Path, config: Mapping[str, Any], eos_token: str | None) -> Tokenizer | None:
    """Return the tokenizer of a folder that was checked, None where there is no tokenizer.json.

    Raises:
        SourceError: it cannot be read, or its end of text is not known.
    """
    path = folder / TOKENIZER
    if not path.exists():
        return None
    told = read_json(folder / CONFIG_FILE) if (folder / CONFIG_FILE).exists() else {}
    content = read(path)
    inner = parsed(content, str(path))
    known: dict[int | None, str] = {
        number: token for token, number in inner.get_vocab(with_added_tokens=True).items()
    }
    eos = eos_token or name_of(told.get("eos_token")) or known.get(_first(config.get("eos_token_id")))
    if eos is None:
        raise SourceError(
            place=str(folder / CONFIG_FILE),
            found="no eos_token, nor an eos_token_id in config.json",
            wanted="the token that ends a text",
            remedy=_EOS_REMEDY,
        )
    bos = name_of(told.get("bos_token")) or known.get(_first(config.get("bos_token_id")))
    is_added = told.get("add_bos_token")
    if is_added is None:
        is_added = bos is not None and adds_first(inner, inner.token_to_id(bos))
    return made(content, eos, bos if is_added else None, place=str(path))


def adds_first(inner: tokenizers.Tokenizer, number: int | None) -> bool:
    """Return whether a tokenizer puts this token before every text."""
    return inner.encode("a", add_special_tokens=True).ids[:1] == [number]


def made(content: bytes, eos: str, bos: str | None, place: str) -> Tokenizer:
    """Return the tokenizer in the content of a tokenizer.json, safe for text that nobody has checked."""
    inner = imported(content, eos, place)
    eos_id = inner.token_to_id(eos)
    bos_id = inner.token_to_id(bos) if bos is not None else None
    assert eos_id is not None, "imported() checks that it is there"
    return Tokenizer(inner, eos_id, bos_id)


def check_vocabulary(tokenizer: Tokenizer | None, vocab_size: int, place: str) -> None:
    """Refuse a model that has no row for a token of its tokenizer.

    Raises:
        SourceError: naming both sizes.
    """
    if tokenizer is not None and tokenizer.vocab_size > vocab_size:
        raise SourceError(
            place=place,
            found=f"a vocabulary of {vocab_size:,} beside a tokenizer with {tokenizer.vocab_size:,} tokens",
            wanted="a row for each token",
            remedy="The tokenizer is of another model, or tokens were added to it without growing the model.",
        )


def write_tokenizer(
    tokenizer: Tokenizer, folder: Path, max_seq_len: int, prefix_id: int, facts: Mapping[str, Any]
) -> None:
    """Write tokenizer.json, tokenizer_config.json and the template of chats.

    What reads them treats a text as the origin of an imported model does, if `facts` has one, else puts the
    token `prefix_id` before it.
    """
    template = facts.get("chat_template")
    if facts.get("origin"):
        _write_as_origin(tokenizer, folder, facts["origin"], template)
        return
    (folder / TOKENIZER).write_text(_adding(tokenizer, prefix_id), encoding="utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokenizer.decode([prefix_id]),
        "add_bos_token": True,
        "eos_token": tokenizer.decode([tokenizer.eos_id]),
        "model_max_length": max_seq_len,
        "clean_up_tokenization_spaces": False,
    }
    named = facts.get("chat_names", {})  # which the template asks for
    config |= {**named, "add_bos_token": named.get("bos_token", config["bos_token"]) == config["bos_token"]}
    _write_json(folder / CONFIG_FILE, config)
    if template is not None:
        (folder / TEMPLATE_FILE).write_text(template, encoding="utf-8")


def _write_as_origin(
    tokenizer: Tokenizer, folder: Path, origin: Mapping[str, Any], template: str | None
) -> None:
    (folder / TOKENIZER).write_text(around(origin, tokenizer), encoding="utf-8")
    files = dict(origin["files"])
    config = dict(files.get(CONFIG_FILE, {}))
    if template is not None and template != default_template(config.get("chat_template")):
        if config.pop("chat_template", None) is not None:
            files[CONFIG_FILE] = config
        (folder / TEMPLATE_FILE).write_text(template, encoding="utf-8")
    for name, fields in files.items():
        _write_json(folder / name, fields)


def _write_json(path: Path, fields: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(fields, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _adding(tokenizer: Tokenizer, prefix_id: int) -> str:
    """Return a tokenizer.json that puts the token before every text, where it does not do so yet."""
    from tokenizers import Tokenizer as Inner
    from tokenizers import processors

    inner, token = Inner.from_str(tokenizer.to_json()), tokenizer.decode([prefix_id])
    if not adds_first(inner, prefix_id):
        inner.post_processor = processors.TemplateProcessing(
            single=[token, "$A"], pair=[token, "$A", "$B"], special_tokens=[(token, prefix_id)]
        )
    return str(inner.to_str(pretty=True))


def _first(ids: Any) -> int | None:
    """Return the first of several ids: chat models end a turn in more than one way."""
    found = ids[0] if isinstance(ids, list) and ids else ids
    return found if isinstance(found, int) else None
