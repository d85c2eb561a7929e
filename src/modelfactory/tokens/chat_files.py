"""Which files say how conversations become tokens, and what is in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelfactory.data.sources import Chats
from modelfactory.errors import SourceError
from modelfactory.tokens.chat_template import ChatTemplate, default_template
from modelfactory.tokens.specs import BPE, TokenizerFile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from modelfactory.data import Dataset

TEMPLATE, CONFIG = "chat_template", "tokenizer_config"
"""Inputs of a tokens stage: the template, and the file with the names of special tokens where it has none."""
TEMPLATE_FILE, CONFIG_FILE = "chat_template.jinja", "tokenizer_config.json"
NAMES = tuple(f"{kind}_token" for kind in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
"""Of special tokens in a tokenizer_config.json."""


def chat_files(dataset: Dataset, tokenizer: BPE | TokenizerFile | None) -> dict[str, Path]:
    """Return the files that the tokens of a dataset follow from besides, by input; none for plain texts.

    Args:
        dataset: of texts or conversations.
        tokenizer: a template may lie beside its file; None is one that has no file.

    Raises:
        SourceError: conversations without a template, or one that is no template.
    """
    chats = [source for source in dataset.sources if isinstance(source, Chats)]
    if not chats:
        return {}
    place = f"dataset {dataset.name!r}"
    given = chats[0].template
    path = _beside(tokenizer, place) if given is None else Path(given)
    if not path.is_file():
        raise _no_template(place, f"no file {str(path)!r}")
    files = {TEMPLATE: path}
    if path.suffix != ".json" and (config := path.with_name(CONFIG_FILE)).is_file():
        files[CONFIG] = config
    template_of({name: (each, each.read_bytes()) for name, each in files.items()})
    return files


def template_of(files: Mapping[str, tuple[Path, bytes]]) -> ChatTemplate:
    """Return the template in the files of `chat_files`, each with its content.

    Raises:
        SourceError: there is none in them, or it is no Jinja.
    """
    path, content = files[TEMPLATE]
    if path.suffix == ".json":
        told = _told(path, content)
        source = default_template(told.get("chat_template"))
        if source is None:
            raise _no_template(str(path), "no chat_template")
    else:
        source = _decoded(path, content)
        told = _told(*files[CONFIG]) if CONFIG in files else {}
    named = {name: name_of(told.get(name)) for name in NAMES}
    return ChatTemplate(source, {name: token for name, token in named.items() if token}, str(path))


def _beside(tokenizer: BPE | TokenizerFile | None, place: str) -> Path:
    """Return the file beside the tokenizer that holds its template."""
    if not isinstance(tokenizer, TokenizerFile):
        raise _no_template(place, "no Chats.template, and a BPE tokenizer, which has none of its own")
    folder = Path(tokenizer.path).parent
    if (folder / TEMPLATE_FILE).is_file():
        return folder / TEMPLATE_FILE
    config = folder / CONFIG_FILE
    if (
        config.is_file()
        and default_template(_told(config, config.read_bytes()).get("chat_template")) is not None
    ):
        return config
    found = f"no Chats.template, and beside {tokenizer.path!r} neither {TEMPLATE_FILE} nor a {CONFIG_FILE}"
    raise _no_template(place, f"{found} that holds one")


def _no_template(place: str, found: str) -> SourceError:
    return SourceError(
        place=place,
        found=found,
        wanted="a template that turns conversations into text",
        remedy=f"Name one as Chats.template: a {TEMPLATE_FILE}, or a {CONFIG_FILE} that holds one.",
    )


def _told(path: Path, content: bytes) -> dict[str, Any]:
    try:
        told = json.loads(content)
    except ValueError as error:
        told = error
    if isinstance(told, dict):
        return told
    raise SourceError(
        place=str(path), found=f"no JSON object ({told})", wanted=f"a {CONFIG_FILE}", remedy="Copy it again."
    )


def _decoded(path: Path, content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SourceError(
            place=str(path), found=f"no UTF-8 ({error})", wanted="a Jinja template", remedy="Copy it again."
        ) from error


def name_of(token: Any) -> str | None:
    """Return the text of a token; older files hold an object in its place."""
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else None
