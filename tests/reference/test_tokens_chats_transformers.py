"""Conversations against transformers: ids, and the mask of what an assistant said."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.tokens.chats import CHATS, EOS, MARKED, UNMARKED, conversation, encoder, told, write_tokenizer
from transformers import PreTrainedTokenizerFast

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("chat", CHATS)
def test_ids_and_mask_are_those_of_transformers(tmp_path: Path, chat: list[tuple[str, str]]) -> None:
    path = write_tokenizer(tmp_path, None)
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(path), bos_token=EOS, eos_token=EOS)
    theirs.chat_template = MARKED
    wanted = theirs.apply_chat_template(
        conversation(chat), tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )
    ((ids, learnt),) = told(encoder(MARKED, bos_token=EOS, eos_token=EOS), chat)
    assert ids == [*wanted["input_ids"], 0]
    assert [int(each) for each in learnt] == [*wanted["assistant_masks"], 0]
    assert 0 < sum(learnt) < len(learnt)


@pytest.mark.parametrize("chat", CHATS)
def test_ids_of_a_template_without_marks(tmp_path: Path, chat: list[tuple[str, str]]) -> None:
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(write_tokenizer(tmp_path, None)), eos_token=EOS)
    theirs.chat_template = UNMARKED
    wanted = theirs.apply_chat_template(conversation(chat), tokenize=True, return_dict=True)["input_ids"]
    ((ids, _),) = told(encoder(UNMARKED, eos_token=EOS), chat)
    assert ids == [*wanted, 0]
