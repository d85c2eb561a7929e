"""Which tokens begin and end what an exported model writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modelfactory.interchange.origin import IDS
from modelfactory.tokens.chat_template import ChatTemplate
from modelfactory.tokens.chats import ChatEncoder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from modelfactory.tokens.tokenizer import Tokenizer


def chat_names(tokenizer: Tokenizer, facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of special tokens that a template of chats may ask for.

    Args:
        tokenizer: of the model.
        facts: of the model: `chat_names`, `origin`, `prefix_id`.
    """
    if "chat_names" in facts:
        return dict(facts["chat_names"])
    if facts.get("origin"):
        return dict(facts["origin"]["names"])
    first = facts.get("prefix_id", tokenizer.eos_id)
    return {"bos_token": tokenizer.decode([first]), "eos_token": tokenizer.decode([tokenizer.eos_id])}


def end_of_turn(tokenizer: Tokenizer, facts: Mapping[str, Any]) -> int | None:
    """Return the special token that ends an assistant's turn; None without a template, or where it has none.

    Args:
        tokenizer: of the model.
        facts: of the model: `chat_template`, and those of `chat_names`.

    Raises:
        SourceError: the template is no Jinja.
    """
    if not facts.get("chat_template"):
        return None
    template = ChatTemplate(facts["chat_template"], chat_names(tokenizer, facts), "chat_template")
    return ChatEncoder(tokenizer, template).end_of_turn()


def generation(
    tokenizer: Tokenizer | None, facts: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the ids in config.json, and the whole generation_config.json.

    Generation ends at the token that ends a text, at the one that ends a turn, and at those of the origin.
    """
    if tokenizer is None:
        ids = dict.fromkeys(IDS) | {"bos_token_id": facts.get("prefix_id")}  # transformers has other defaults
        return ids, ids
    origin = facts.get("origin") or {}
    kept = dict(origin.get("generation") or {})
    turn = end_of_turn(tokenizer, facts)
    ids = {"bos_token_id": facts.get("prefix_id", tokenizer.eos_id), "pad_token_id": None}
    ids |= origin.get("ids") or {}
    told = _listed(kept.get("eos_token_id")) + _listed(ids.get("eos_token_id"))
    in_config = _with([tokenizer.eos_id], _listed(ids.get("eos_token_id")))
    ends = _with([tokenizer.eos_id, *([] if turn is None else [turn])], told)
    first = {name: ids[name] for name in ("bos_token_id", "pad_token_id")} | kept
    return ids | {"eos_token_id": in_config}, first | {"eos_token_id": ends}


def _listed(ids: Any) -> list[int]:
    found = ids if isinstance(ids, list) else [ids]
    return [number for number in found if isinstance(number, int)]


def _with(own: list[int], told: list[int]) -> int | list[int]:
    """Return what the origin told, as it is if it holds our own; one id stands alone."""
    ids = list(dict.fromkeys(told if set(own) <= set(told) else [*own, *told]))
    return ids[0] if len(ids) == 1 else ids
