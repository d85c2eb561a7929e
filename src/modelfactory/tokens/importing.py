"""An existing `tokenizer.json`, made safe for text that nobody has checked."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from modelfactory.errors import SourceError, SpecError

if TYPE_CHECKING:
    from pathlib import Path

    import tokenizers


def imported(content: bytes, eos_token: str, place: str) -> tokenizers.Tokenizer:
    """Read a tokenizer and make `eos_token` special, so that text cannot yield it.

    Truncation and padding, which many published files carry, are taken off: they would cut documents short.

    Raises:
        SourceError: not a tokenizer, or one whose model makes a special token from plain text.
        SpecError: `eos_token` is not in its vocabulary.
    """
    tokenizer = parsed(content, place)
    _require_token(tokenizer, eos_token)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    _make_special(tokenizer, eos_token)
    _refuse_leaks(tokenizer, place)
    return tokenizer


def special_ids(tokenizer: tokenizers.Tokenizer) -> dict[int, str]:
    """Return the tokens that text must not yield, by id.

    The token for unknown characters is left out: it is what such a tokenizer says for text it cannot spell.
    """
    unknown = getattr(tokenizer.model, "unk_token", None)
    added = tokenizer.get_added_tokens_decoder()
    return {
        number: token.content for number, token in added.items() if token.special and token.content != unknown
    }


def read(path: Path) -> bytes:
    """Return what is in a tokenizer.json.

    Raises:
        SourceError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise SourceError(
            place=str(path),
            found=f"no readable file ({error.strerror})",
            wanted="a tokenizer.json",
            remedy="Correct the path, or copy the file again.",
        ) from error


def parsed(content: bytes, place: str) -> tokenizers.Tokenizer:
    """Return the tokenizer in a tokenizer.json as it is.

    Raises:
        SourceError: it is none.
    """
    import tokenizers

    try:
        return tokenizers.Tokenizer.from_str(content.decode("utf-8"))
    except Exception as error:  # tokenizers raises plain Exception for whatever its parser dislikes
        raise SourceError(
            place=place,
            found=f"{len(content)} bytes that `tokenizers` cannot read ({error})",
            wanted="a tokenizer.json",
            remedy="Save it with Tokenizer.save, or save_pretrained of a fast tokenizer of transformers.",
        ) from error


def _require_token(tokenizer: tokenizers.Tokenizer, eos_token: str) -> None:
    if tokenizer.token_to_id(eos_token) is not None:
        return
    special = list(special_ids(tokenizer).values())
    near = difflib.get_close_matches(eos_token, [*special, *tokenizer.get_vocab()], n=3, cutoff=0.5)
    raise SpecError(
        place="TokenizerFile.eos_token",
        found=repr(eos_token),
        wanted=f"a token of the file; its special tokens are {', '.join(map(repr, special)) or 'none'}",
        remedy=f"Did you mean {' or '.join(map(repr, near))}?" if near else "Name one of its tokens.",
    )


def _make_special(tokenizer: tokenizers.Tokenizer, token: str) -> None:
    import tokenizers

    if tokenizer.token_to_id(token) not in special_ids(tokenizer):
        tokenizer.add_special_tokens([tokenizers.AddedToken(token, special=True, normalized=False)])


def _refuse_leaks(tokenizer: tokenizers.Tokenizer, place: str) -> None:
    """Spell out each special token; models that look up whole pieces (Unigram, WordLevel) may know it."""
    special = special_ids(tokenizer)
    tokenizer.encode_special_tokens = True
    for number, name in special.items():
        for text in (name, f"a {name} b", f"a{name}b"):
            leaked = special.keys() & set(tokenizer.encode(text, add_special_tokens=False).ids)
            if leaked:
                raise SourceError(
                    place=place,
                    found=f"the text {text!r} encoded to the special token {special[min(leaked)]!r}",
                    wanted="a tokenizer whose special tokens no text can yield",
                    remedy=f"Take token {number} out of its model's vocabulary; keep it as an added token.",
                )
