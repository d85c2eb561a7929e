"""The boundary between context and continuation, with a tokenizer that merges across it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tokenizers import Tokenizer as Inner
from tokenizers import decoders, models, pre_tokenizers

from modelfactory.errors import InvalidInput
from modelfactory.generate import encode_pairs
from modelfactory.tokens import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.fixture(scope="module")
def merging() -> Tokenizer:
    """Bytes, and merges `ab`, `abc` and ` x` (a space is spelt G with a dot)."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<eos>", *alphabet, "ab", "abc", "\u0120x"]
    inner = Inner(
        models.BPE(
            vocab={token: number for number, token in enumerate(tokens)},
            merges=[("a", "b"), ("ab", "c"), ("\u0120", "x")],
        )
    )
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(["<eos>"])
    return Tokenizer(inner, eos_id=0)


def split(tokenizer: Tokenizer, context: str, continuation: str) -> tuple[str, str]:
    (pair,) = encode_pairs(tokenizer, [(context, continuation)])
    return tokenizer.decode(pair.context), tokenizer.decode(pair.continuation)


@pytest.mark.parametrize(
    ("context", "continuation", "expected"),
    [
        ("d", " x", ("d", " x")),
        ("d ", "x", ("d", " x")),  # trailing space moves, so that " x" is one token
        ("d \n", "x", ("d", " \nx")),
        ("", "x", ("", "x")),
        ("  ", "x", ("", "  x")),
        ("a", "d", ("a", "d")),
        ("da", "bd", ("dab", "d")),  # the whole is encoded, then split after as many tokens
        ("a", "b", ("", "ab")),  # never zero tokens: the last one is kept
        ("dab", "c", ("d", "abc")),
        ("é", "é", ("é", "é")),
    ],
)
def test_boundary(merging: Tokenizer, context: str, continuation: str, expected: tuple[str, str]) -> None:
    assert split(merging, context, continuation) == expected


def test_an_empty_continuation_is_refused(merging: Tokenizer) -> None:
    with pytest.raises(InvalidInput, match="request 1: found an empty continuation"):
        encode_pairs(merging, [("a", "b"), ("a", "")])


def test_no_requests(merging: Tokenizer) -> None:
    nothing: Sequence[tuple[str, str]] = []
    assert encode_pairs(merging, nothing) == []
