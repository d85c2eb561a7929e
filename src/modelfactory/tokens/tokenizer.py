"""Text to token ids and back, without special tokens from text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from modelfactory.errors import SourceError
from modelfactory.tokens.importing import special_ids

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import tokenizers
    from numpy.typing import NDArray

TOKENIZER = "tokenizer.json"
FACTS = "tokenizer_facts.json"
MAX_PIECE = 1 << 20
"""Characters after which a byte-level tokenizer starts anew, for memory grows with the longest line."""


class Tokenizer:
    """A tokenizer of `tokenizers` whose special tokens no text can yield.

    `<|endoftext|>` in a document is encoded as the characters it is made of. A text longer than MAX_PIECE
    characters is encoded in pieces if the tokenizer is byte-level: cut before the last line break that
    follows a character other than white space (where the GPT-2 pattern cuts anyway), else at MAX_PIECE.
    """

    def __init__(self, inner: tokenizers.Tokenizer, eos_id: int, bos_id: int | None = None) -> None:
        self._inner = inner
        self._inner.encode_special_tokens = True
        self.eos_id = eos_id
        """Ends every document."""
        self.bos_id = bos_id
        """Starts a text, where the tokenizer has such a token; never added by `encode`."""
        self.special_ids = frozenset(special_ids(inner)) | {eos_id}
        vocabulary = inner.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values()) + 1
        """One more than the largest id; files with holes in their ids exist."""
        self.is_byte_level = _is_byte_level(json.loads(inner.to_str()))
        """Whether a text can be cut between two words, and encoded in pieces."""
        self._n_bytes = _token_bytes(inner, self.vocab_size, self.special_ids)

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`; no special token, nothing added, nothing cut off."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text; uses the threads set by `tokenizer_threads`."""
        return [ids.tolist() for ids in self.encode_arrays(texts)]

    def encode_arrays(self, texts: Sequence[str], *, closed: bool = False) -> Iterator[NDArray[np.int32]]:
        """Yield the ids of each text; `closed` appends the end-of-text token.

        Holds the encodings of about 2 * MAX_PIECE characters at once, however long a text is.
        """
        end = [np.array([self.eos_id], dtype=np.int32)] if closed else []
        parts: list[NDArray[np.int32]] = []
        for ids, is_last in self._encoded(texts):
            parts.append(ids)
            if is_last:
                yield np.concatenate([*parts, *end])
                parts = []

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids`; special tokens are written by name, broken UTF-8 as U+FFFD."""
        return str(self._inner.decode(list(ids), skip_special_tokens=False))

    def n_bytes(self, ids: Sequence[int]) -> int:
        """Return how many UTF-8 bytes of text `ids` stand for; special tokens stand for none."""
        if self.is_byte_level:
            return int(self._n_bytes[np.asarray(ids, dtype=np.int64)].sum())
        return len(self._inner.decode(list(ids), skip_special_tokens=True).encode("utf-8"))

    def token_id(self, token: str) -> int | None:
        """Return the id of a token by name, special ones included."""
        number = self._inner.token_to_id(token)
        return None if number is None else int(number)

    def raw(self, *, special_from_text: bool) -> tokenizers.Tokenizer:
        """Return a copy of the tokenizer within, for templates: it adds nothing to a text.

        Args:
            special_from_text: whether the name of a special token in a text is that token.
        """
        copy = type(self._inner).from_str(self._inner.to_str())
        copy.post_processor = None  # which would take white space out of the places of tokens
        copy.encode_special_tokens = not special_from_text
        return copy

    def to_json(self) -> str:
        """Return the content of a `tokenizer.json`."""
        return str(self._inner.to_str(pretty=True))

    def _encoded(self, texts: Sequence[str]) -> Iterator[tuple[NDArray[np.int32], bool]]:
        """Yield the ids of each piece, and whether it is the last of its text."""
        for group in _grouped(self._pieces(texts)):
            encoded = self._inner.encode_batch_fast([piece for piece, _ in group], add_special_tokens=False)
            for (_, is_last), encoding in zip(group, encoded, strict=True):
                yield np.array(encoding.ids, dtype=np.int32), is_last

    def _pieces(self, texts: Sequence[str]) -> Iterator[tuple[str, bool]]:
        for text in texts:
            if not self.is_byte_level:
                yield text, True
                continue
            n_left = len(text)
            for piece in pieces(text):
                n_left -= len(piece)
                yield piece, n_left == 0


def load_tokenizer(directory: Path) -> Tokenizer:
    """Open what a tokenizer stage made.

    Raises:
        SourceError: the stage's files are missing or damaged.
    """
    from tokenizers import Tokenizer as Inner

    try:
        facts = json.loads((directory / FACTS).read_text("utf-8"))
        inner = Inner.from_str((directory / TOKENIZER).read_text("utf-8"))
        return Tokenizer(inner, facts["eos_id"], facts["bos_id"])
    except Exception as error:  # tokenizers raises plain Exception
        raise SourceError(
            place=str(directory),
            found=f"no tokenizer that can be read ({error})",
            wanted=f"{TOKENIZER} and {FACTS} of a tokenizer stage",
            remedy="Build the tokenizer stage again (`factory doctor` finds damaged ones).",
        ) from error


def pieces(text: str) -> Iterator[str]:
    """Cut `text` as `Tokenizer` does."""
    start = 0
    while len(text) - start > MAX_PIECE:
        end = _cut(text, start)
        yield text[start:end]
        start = end
    yield text[start:]


def _grouped(cut: Iterator[tuple[str, bool]]) -> Iterator[list[tuple[str, bool]]]:
    """Put pieces together until MAX_PIECE characters are reached."""
    group: list[tuple[str, bool]] = []
    held = 0
    for piece, is_last in cut:
        group.append((piece, is_last))
        held += len(piece)
        if held >= MAX_PIECE:
            yield group
            group, held = [], 0
    if group:
        yield group


def _cut(text: str, start: int) -> int:
    end = start + MAX_PIECE
    while (line_break := text.rfind("\n", start + 1, end)) > start:
        if not text[line_break - 1].isspace():
            return line_break
        end = line_break
    return start + MAX_PIECE


def _is_byte_level(content: dict[str, Any]) -> bool:
    """Whether every token is a string of bytes and a text can be cut anywhere and joined again."""
    decoder, normalizer = content["decoder"] or {}, content["normalizer"]
    steps = [content["pre_tokenizer"] or {}, *(content["pre_tokenizer"] or {}).get("pretokenizers", ())]
    byte_steps = [step for step in steps if step.get("type") == "ByteLevel"]
    prefixed = any(step.get("add_prefix_space") for step in byte_steps)
    return decoder.get("type") == "ByteLevel" and normalizer is None and bool(byte_steps) and not prefixed


def _token_bytes(inner: tokenizers.Tokenizer, vocab_size: int, special: frozenset[int]) -> NDArray[np.int64]:
    """Return the bytes of each token of a byte-level vocabulary.

    Its model spells each byte as one character; added tokens are spelled as they are.
    """
    n_bytes = np.zeros(vocab_size, dtype=np.int64)
    for token, number in inner.get_vocab(with_added_tokens=False).items():
        n_bytes[number] = len(token)
    for number, added in inner.get_added_tokens_decoder().items():
        n_bytes[number] = len(added.content.encode("utf-8"))
    n_bytes[list(special)] = 0
    return n_bytes
