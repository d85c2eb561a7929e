"""Overlap of n-grams between texts of an evaluation and training documents."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelfactory.data.overlap import find_overlap
from modelfactory.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterator

THIRTEEN = " ".join(f"w{n}" for n in range(13))


def contaminated(text: str, *training: str, n_words: int = 13) -> bool:
    return find_overlap({"a": text}, training, n_words=n_words).contaminated == ("a",)


def test_thirteen_words_in_a_row_are_found_twelve_are_not() -> None:
    twelve = THIRTEEN.rpartition(" ")[0]
    assert contaminated(f"before {THIRTEEN} after", f"other {THIRTEEN} words")
    assert not contaminated(f"before {twelve} after", f"other {twelve} words")


def test_case_punctuation_and_white_space_do_not_hide() -> None:
    assert contaminated(THIRTEEN, THIRTEEN.upper().replace(" ", ",\n "))


def test_order_counts_and_nothing_spans_documents() -> None:
    words = THIRTEEN.split()
    assert not contaminated(THIRTEEN, " ".join(reversed(words)))
    assert not contaminated(THIRTEEN, " ".join(words[:6]), " ".join(words[6:]))


def test_a_short_text_is_compared_as_a_whole() -> None:
    assert contaminated("What is it?", "he said: what is it, then")
    assert not contaminated("What is it?", "what it is")


@pytest.mark.parametrize("text", ["", " \n", "?!", "\ud800"])
def test_a_text_without_words_is_never_contaminated(text: str) -> None:
    found = find_overlap({"a": text}, [text, "anything"])
    assert (found.contaminated, found.share) == ((), 0.0)


def test_other_scripts_are_words_too() -> None:
    text = "это предложение из ровно тринадцати слов и оно стоит в обоих текстах здесь"
    assert contaminated(text, f"Начало. {text.capitalize()}!")


def test_training_is_read_once_and_the_share_is_of_texts() -> None:
    def training() -> Iterator[str]:
        yield THIRTEEN
        yield "x " * 50_000

    found = find_overlap({"a": THIRTEEN, "b": "another text", "c": ""}, training())
    assert found.contaminated == ("a",)
    assert found.share == pytest.approx(1 / 3)
    assert find_overlap({}, [THIRTEEN]).share == 0.0


def test_no_words_at_all_is_refused() -> None:
    with pytest.raises(SpecError, match="n_words"):
        find_overlap({}, [], n_words=0)


WORDS = st.lists(st.sampled_from("abc"), max_size=12)


@given(text=WORDS, training=st.lists(WORDS, max_size=3), n=st.integers(1, 4))
def test_it_is_what_a_plain_search_finds(text: list[str], training: list[list[str]], n: int) -> None:
    def runs(words: list[str], length: int) -> set[tuple[str, ...]]:
        return {tuple(words[i : i + length]) for i in range(len(words) - length + 1)} if length else set()

    length = min(len(text), n)
    wanted = any(runs(text, length) & runs(document, length) for document in training)
    assert contaminated(" ".join(text), *map(" ".join, training), n_words=n) == wanted
