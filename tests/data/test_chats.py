"""Conversations: what is one, and what is refused by file and line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from modelfactory.data import Chats, Dataset, Files, MemoryCache, Split, pin
from modelfactory.data.chats import parsed
from modelfactory.data.readers import read_files
from modelfactory.errors import SourceError, SpecError

if TYPE_CHECKING:
    from pathlib import Path

USER = {"role": "user", "content": "Hi"}
ANSWER = {"role": "assistant", "content": "Grüße \U0001f600"}
SYSTEM = {"role": "system", "content": "Be kind."}


def read(folder: Path, *lines: Any) -> list[str]:
    (folder / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    source = Chats(root=str(folder), pattern="*.jsonl")
    files = read_files(source, pin(source, MemoryCache()), "source0")
    return [document.text for _, documents in files for document in documents]


def test_equal_conversations_are_equal_documents(tmp_path: Path) -> None:
    plain = {"messages": [SYSTEM, USER, ANSWER]}
    turned = {
        "id": 7,
        "messages": [{"content": m["content"], "role": m["role"], "name": None} for m in plain["messages"]],
    }
    first, second = read(tmp_path, plain, turned)
    assert first == second
    assert parsed(first) == plain["messages"]


def test_a_conversation_may_go_on_and_end_with_either(tmp_path: Path) -> None:
    assert len(read(tmp_path, {"messages": [USER, ANSWER, USER]}, {"messages": [USER, ANSWER] * 3})) == 2


@pytest.mark.parametrize(
    ("messages", "found"),
    [
        ([], "no message in 'messages'"),
        ("Hi", "a str in 'messages'"),
        (["Hi"], r"a str as messages\[0\]"),
        (
            [USER, {"role": "asistant", "content": "x"}],
            r"the role 'asistant' in messages\[1\].*Did you mean 'assistant'",
        ),
        ([{"role": "tool", "content": "x"}], r"the role 'tool' in messages\[0\]"),
        ([{"role": ["user"], "content": "x"}], r"the role \['user'\] in messages\[0\]"),
        ([{"content": "x"}], r"the role None in messages\[0\]"),
        ([USER, {"role": "assistant", "content": " \n"}], r"an empty content in messages\[1\]"),
        ([USER, {"role": "assistant", "content": None}], r"a NoneType as content in messages\[1\]"),
        ([USER, ANSWER, ANSWER], r"the role 'assistant' in messages\[2\], where 'user' is due"),
        ([SYSTEM, ANSWER], r"the role 'assistant' in messages\[1\], where 'user' is due"),
        ([USER, SYSTEM, ANSWER], r"the role 'system' in messages\[1\], where 'assistant' is due"),
        ([SYSTEM, USER], "no assistant in messages"),
        ([SYSTEM], "no assistant in messages"),
        ([USER, ANSWER | {"tool_calls": [1]}], r"'tool_calls' in messages\[1\]"),
    ],
)
def test_what_is_no_conversation_is_refused_by_file_and_line(
    tmp_path: Path, messages: Any, found: str
) -> None:
    with pytest.raises(SourceError, match=rf"a\.jsonl, line 2: found {found}"):
        read(tmp_path, {"messages": [USER, ANSWER]}, {"messages": messages})


def test_a_line_without_messages_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        SourceError, match=r"line 1: found an object without it, wanted the field 'messages'.*'message'"
    ):
        read(tmp_path, {"message": [USER, ANSWER]})


def dataset(*sources: Any) -> Dataset:
    return Dataset(name="d", sources=sources, split=Split(part="train", held_out_share=0.0))


def test_texts_and_conversations_are_not_one_dataset() -> None:
    chats = Chats(root=".", pattern="*.jsonl")
    with pytest.raises(SpecError, match="only Chats, or none"):
        dataset(chats, Files(root=".", pattern="*.txt"))
    with pytest.raises(SpecError, match="one template for all sources"):
        dataset(chats, Chats(root=".", pattern="b*", template="other.jinja"))


def test_the_template_is_no_part_of_the_documents() -> None:
    from modelfactory.spec import fingerprint

    one, other = (dataset(Chats(root=".", pattern="*.jsonl", template=each)) for each in (None, "x.jinja"))
    assert fingerprint(one) == fingerprint(other)
