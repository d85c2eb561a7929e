"""A tokenizer with the tokens of chats, and templates for it: marked, unmarked, and without any of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from modelfactory.tokens.chat_template import ChatTemplate
from modelfactory.tokens.chats import ChatEncoder
from modelfactory.tokens.tokenizer import Tokenizer
from modelfactory.tokens.tokenizer_stage import train_bpe

if TYPE_CHECKING:
    from pathlib import Path

    import tokenizers

EOS, BEGIN, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
MARKED = """\
{{ bos_token }}{% for message in messages %}
    {% if message['role'] == 'assistant' %}
{{ '<|im_start|>assistant\n' }}{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}

    {% else %}
{{ '<|im_start|>' + message['role'] + '\n' + message['content'] | trim + '<|im_end|>' }}
    {% endif %}
{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}
"""
UNMARKED = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
BARE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ ' ' + message['content'] }}"
    "{% else %}{{ '[' + message['content'] + ']' }}{% endif %}"
    "{% endfor %}"
)
CHATS: list[list[tuple[str, str]]] = [
    [("user", "Hello there"), ("assistant", "Hi!")],
    [("system", "Be kind. "), ("user", "Sum 2 and 3?\n"), ("assistant", "It is 5.\n\nSure."), ("user", "Ok")],
    [
        ("user", "Grüße, 世界"),
        ("assistant", " \U0001f600 leading space"),
        ("user", "x"),
        ("assistant", "y\n"),
    ],
]


def conversation(chat: list[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in chat]


def text(chat: list[tuple[str, str]]) -> str:
    return json.dumps(conversation(chat), ensure_ascii=False, separators=(",", ":"))


def inner() -> tokenizers.Tokenizer:
    words = "user assistant system Hello there Hi! Sum 2 and 3? It is 5. Sure. Ok Be kind. leading space\n\n"
    return train_bpe([[words] * 4], 330, (EOS, BEGIN, END))


def tokenizer() -> Tokenizer:
    return Tokenizer(inner(), eos_id=0)


def encoder(source: str, of: Tokenizer | None = None, **names: str) -> ChatEncoder:
    return ChatEncoder(of or tokenizer(), ChatTemplate(source, names, "template.jinja"))


def told(of: ChatEncoder, *chats: list[tuple[str, str]]) -> list[tuple[list[int], list[bool]]]:
    """Return ids, and which are learnt, of each chat."""
    documents = [f"chats.jsonl#{n}" for n in range(1, len(chats) + 1)]
    found = of.encode([text(chat) for chat in chats], documents)
    return [(ids.tolist(), learnt.tolist()) for ids, learnt in found]


def spelled(of: ChatEncoder, ids: list[int], learnt: list[bool], *, wanted: bool = True) -> str:
    """Return the text of the tokens that are learnt, or of those that are not."""
    kept = [number for number, is_learnt in zip(ids, learnt, strict=True) if is_learnt is wanted]
    return of.tokenizer.decode(kept)


def write_tokenizer(folder: Path, template: str | None, **config: Any) -> Path:
    """Write a folder as transformers has it; return its tokenizer.json."""
    folder.mkdir(parents=True, exist_ok=True)
    inner().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": EOS} | config))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder / "tokenizer.json"
