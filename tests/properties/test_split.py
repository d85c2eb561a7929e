"""The split depends on a document and nothing else."""

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from modelfactory.data import Split

SHARES = st.floats(min_value=0.01, max_value=0.99)


def identity(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def part(texts, share, salt=""):
    split = Split(part="held_out", held_out_share=share, salt=salt)
    return {text for text in texts if split.holds(identity(text))}


utf8 = st.text(alphabet=st.characters(exclude_categories=("Cs",)))


@given(st.lists(utf8, max_size=30), st.lists(utf8, max_size=30), SHARES, utf8)
def test_a_document_never_moves_when_others_are_added(texts, others, share, salt):
    assert part(texts, share, salt) == part(texts + others, share, salt) & set(texts)


@given(utf8, SHARES, utf8)
def test_every_document_is_in_exactly_one_part(text, share, salt):
    sides = [Split(part=side, held_out_share=share, salt=salt) for side in ("train", "held_out")]
    assert [side.holds(identity(text)) for side in sides].count(True) == 1


@given(st.lists(utf8, max_size=30), SHARES, SHARES)
def test_a_larger_share_only_takes_from_training(texts, one, other):
    small, large = sorted((one, other))
    assert part(texts, small) <= part(texts, large)


def test_the_share_is_kept_to():
    texts = [str(n) for n in range(20_000)]
    assert abs(len(part(texts, 0.1)) / len(texts) - 0.1) < 0.01  # 4.7 standard errors


def test_another_salt_draws_another_split_and_the_edges_hold_all_or_nothing():
    texts = [str(n) for n in range(200)]
    assert part(texts, 0.5, "a") != part(texts, 0.5, "b")
    assert part(texts, 1.0) == set(texts)
    assert all(Split(part="train", held_out_share=0.0).holds(identity(text)) for text in texts)
