"""Conversations: what is one, and the text that stands for it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from modelfactory.data.sources import Chats
from modelfactory.errors import closest
from modelfactory.spec import require

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from modelfactory.data.dataset import Dataset
    from modelfactory.data.sources import Source

    Refuse = Callable[[str, str, str], Exception]

MESSAGES = "messages"
_ROLES = ("system", "user", "assistant")
_WANTED = "a list of objects with role and content"
_ORDER = "a system message or none, then user and assistant by turns"


def canonical(line: Mapping[str, Any], refuse: Refuse) -> str:
    """Return the text that stands for the conversation of one line.

    Args:
        line: one object of a file of conversations.
        refuse: makes the error from found, wanted and remedy, with file and line.
    """
    if MESSAGES not in line:
        wanted = f"the field {MESSAGES!r}"
        raise refuse("an object without it", wanted, closest(MESSAGES, map(str, line)))
    messages = line[MESSAGES]
    if not isinstance(messages, list) or not messages:
        found = "no message" if isinstance(messages, list) else f"a {type(messages).__name__}"
        raise refuse(f"{found} in {MESSAGES!r}", _WANTED, "")
    told = [_message(n, message, refuse) for n, message in enumerate(messages)]
    _check_turns([message["role"] for message in told], refuse)
    return json.dumps(told, ensure_ascii=False, separators=(",", ":"))


def parsed(text: str) -> list[dict[str, str]]:
    """Return the messages of a conversation from the text that stands for it."""
    messages: list[dict[str, str]] = json.loads(text)
    return messages


def holds_chats(dataset: Dataset) -> bool:
    """Say whether the documents of a dataset are conversations."""
    return any(isinstance(source, Chats) for source in dataset.sources)


def check_sources(sources: tuple[Source, ...]) -> None:
    """Refuse a dataset of texts and conversations together, and one with several templates.

    Raises:
        SpecError: saying which sources do not go together.
    """
    chats = [source for source in sources if isinstance(source, Chats)]
    require(
        len(chats) in (0, len(sources)),
        place="Dataset.sources",
        found=[type(source).__name__ for source in sources],
        wanted="only Chats, or none",
        remedy="Make two datasets, and give the Mixture a Part for each.",
    )
    templates = list(dict.fromkeys(source.template for source in chats))
    require(
        len(templates) <= 1,
        place="Dataset.sources",
        found=templates,
        wanted="one template for all sources of a dataset",
        remedy="Make a dataset for each template, and give the Mixture a Part for each.",
    )


def _message(n: int, message: Any, refuse: Refuse) -> dict[str, str]:
    place = f"{MESSAGES}[{n}]"
    if not isinstance(message, dict):
        raise refuse(f"a {type(message).__name__} as {place}", "an object with role and content", "")
    role, content = message.get("role"), message.get("content")
    if role not in _ROLES:
        wanted = f"one of {', '.join(_ROLES)}"
        remedy = closest(role, _ROLES) if isinstance(role, str) else ""
        raise refuse(f"the role {role!r} in {place}", wanted, remedy)
    if not isinstance(content, str) or not content.strip():
        is_text = isinstance(content, str)
        found = "an empty content" if is_text else f"a {type(content).__name__} as content"
        raise refuse(f"{found} in {place}", "a string that says something", "")
    further = sorted(key for key, value in message.items() if key not in ("role", "content") and value)
    if further:
        remedy = "Write what matters into content, and take the rest out."
        raise refuse(f"{', '.join(map(repr, further))} in {place}", "role and content, no more", remedy)
    return {"role": role, "content": content}


def _check_turns(roles: list[str], refuse: Refuse) -> None:
    turns = roles[1:] if roles[0] == "system" else roles
    for n, role in enumerate(turns, start=len(roles) - len(turns)):
        due = ("user", "assistant")[(n - (len(roles) - len(turns))) % 2]
        if role != due:
            remedy = "Join messages of one role, or begin another conversation."
            raise refuse(f"the role {role!r} in {MESSAGES}[{n}], where {due!r} is due", _ORDER, remedy)
    if "assistant" not in turns:
        raise refuse(f"no assistant in {MESSAGES}", "at least one answer, which is what is learnt", "")
