"""Conversations to tokens, and which of them are learnt."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from modelfactory.data.chats import parsed
from modelfactory.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from modelfactory.tokens.chat_template import ChatTemplate, Rendered
    from modelfactory.tokens.tokenizer import Tokenizer

    Told = tuple[NDArray[np.int32], NDArray[np.bool_]]


class ChatEncoder:
    """Encodes conversations as transformers does, but that no message yields a special token.

    A token is learnt if any of its characters is; those of the template are not.

    Args:
        tokenizer: whose special tokens the template writes by name.
        template: of chats.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self.tokenizer, self.template = tokenizer, template
        self._whole, self._pieces = (tokenizer.raw(special_from_text=told) for told in (True, False))
        added = [token for token in self._whole.get_added_tokens_decoder().values() if token.special]
        names = sorted((token.content for token in added), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, names)))
        self._is_splittable = tokenizer.is_byte_level and not any(
            token.lstrip or token.rstrip or token.single_word for token in added
        )
        self._special_ids = np.array(sorted(tokenizer.special_ids), dtype=np.int32)

    def encode(self, texts: Sequence[str], documents: Sequence[str]) -> Iterator[Told]:
        """Yield ids, and which of them are learnt, of each conversation, closed by the end-of-text token.

        That token is added where the template does not write it last. It is learnt only where an answer would
        end without any special token, for then nothing else says that it ends.

        Args:
            texts: that stand for conversations.
            documents: what errors call them.

        Raises:
            SourceError: the template cannot render one, or it cannot be told what is learnt, or a message
                spells out a special token that this tokenizer cannot tell from one that is meant.
        """
        rendered = [
            self.template.render(parsed(text), self._special, document)
            for text, document in zip(texts, documents, strict=True)
        ]
        wholes = self._whole.encode_batch([chat.text for chat in rendered], add_special_tokens=False)
        for chat, whole, document in zip(rendered, wholes, documents, strict=True):
            ids, places = self._encoded(chat, whole, document)
            yield self._closed(ids, _learnt(places, chat.learnt))

    def prompt(self, messages: Sequence[Mapping[str, str]], document: str) -> list[int]:
        """Return the ids after which the assistant's next message begins.

        Args:
            messages: role and content of each, the user's last.
            document: what errors call the conversation.

        Raises:
            SourceError: the template cannot render it, or a message spells out a special token that this
                tokenizer cannot tell from one that is meant.
        """
        chat = self.template.prompt(messages, self._special, document)
        whole = self._whole.encode(chat.text, add_special_tokens=False)
        found: list[int] = self._encoded(chat, whole, document)[0].tolist()
        return found

    def end_of_turn(self) -> int | None:
        """Return the special token that follows what an assistant says; None where there is none."""
        found = self.template.end_of_turn(self._special)
        return None if found is None else self.tokenizer.token_id(found)

    def _encoded(
        self, chat: Rendered, whole: Any, document: str
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        ids, places = _arrays(whole)
        if chat.is_plain and self._n_special(ids) == self._n_meant(chat):
            return ids, places
        return self._apart(chat, document)

    def _n_special(self, ids: NDArray[np.int32]) -> int:
        return int(np.isin(ids, self._special_ids).sum())

    def _n_meant(self, chat: Rendered) -> int:
        """Return how many special tokens the template wrote; that for unknown text is none."""
        ids = (self.tokenizer.token_id(chat.text[first:last]) for first, last in chat.special)
        return sum(number in self.tokenizer.special_ids for number in ids)

    def _apart(self, chat: Rendered, document: str) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Encode what lies between the special tokens that the template wrote, piece by piece."""
        if not self._is_splittable:
            raise SourceError(
                place=document,
                found="a message that spells out a special token of the tokenizer",
                wanted="messages without them: this tokenizer encodes a piece of a text otherwise than alone",
                remedy="Leave the conversation out, or write the token in another way.",
            )
        ids, places, start = [], [], 0
        for first, last in [*chat.special, (len(chat.text), len(chat.text))]:
            piece, within = _arrays(self._pieces.encode(chat.text[start:first], add_special_tokens=False))
            ids.append(piece)
            places.append(within + start)
            if last > first:
                number = self.tokenizer.token_id(chat.text[first:last])
                ids.append(np.array([number], dtype=np.int32))
                places.append(np.array([[first, last]], dtype=np.int64))
            start = last
        return np.concatenate(ids), np.concatenate(places)

    def _closed(self, ids: NDArray[np.int32], learnt: NDArray[np.bool_]) -> Told:
        eos_id = self.tokenizer.eos_id
        if len(ids) and ids[-1] == eos_id:
            return ids, learnt
        is_open = bool(len(ids) and learnt[-1] and self._n_special(ids[-1:]) == 0)
        return np.append(ids, np.int32(eos_id)), np.append(learnt, is_open)


def _arrays(encoding: Any) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return ids, and the first character of each and one past its last."""
    return np.array(encoding.ids, dtype=np.int32), np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)


def _learnt(places: NDArray[np.int64], spans: Sequence[tuple[int, int]]) -> NDArray[np.bool_]:
    """Return which tokens have a character in a span."""
    learnt = np.zeros(len(places), dtype=np.bool_)
    starts, stops = places[:, 0], np.maximum(places[:, 1], places[:, 0] + 1)
    for first, last in spans:
        learnt |= (starts < last) & (stops > first)
    return learnt
