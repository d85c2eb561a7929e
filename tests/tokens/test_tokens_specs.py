"""Tokenizer and mixture specs refuse at declaration what cannot work."""

from __future__ import annotations

import pytest

from modelfactory.data import Dataset, Files, Split
from modelfactory.errors import SpecError
from modelfactory.spec import fingerprint, from_json, to_json
from modelfactory.tokens import BPE, Mixture, Part, Shards, TokenizerFile, integer_shares


def data(pattern: str = "*.txt", name: str = "d") -> Dataset:
    split = Split(part="train", held_out_share=0.1)
    return Dataset(name=name, sources=(Files(root="here", pattern=pattern),), split=split)


def test_specs_survive_json() -> None:
    mixture = Mixture(parts=(Part(dataset=data(), weight=3), Part(dataset=data("*.md"), weight=1.0)))
    tokenizers = (BPE(vocab_size=512, dataset=data()), TokenizerFile(path="t.json", eos_token="</s>"))
    for spec in (mixture, *tokenizers, Shards()):
        assert from_json(to_json(spec)) == spec


def test_path_of_a_tokenizer_is_no_identity() -> None:
    one, other = (TokenizerFile(path=path, eos_token="</s>") for path in ("a/t.json", "b/t.json"))
    assert fingerprint(one) == fingerprint(other)
    assert fingerprint(one) != fingerprint(TokenizerFile(path="a/t.json", eos_token="<eos>"))


def test_vocabulary_must_hold_the_bytes() -> None:
    with pytest.raises(SpecError, match=r"BPE.vocab_size: found 256, wanted at least 257"):
        BPE(vocab_size=256, dataset=data())
    assert BPE(vocab_size=257, dataset=data()).vocab_size == 257


@pytest.mark.parametrize("names", [(), ("",), ("<a>", "<a>")])
def test_special_tokens_must_be_different_names(names: tuple[str, ...]) -> None:
    with pytest.raises(SpecError, match="special_tokens"):
        BPE(vocab_size=512, dataset=data(), special_tokens=names)


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_weight_must_be_a_finite_number_above_0(weight: float) -> None:
    with pytest.raises(SpecError, match=r"Part\.weight"):
        Part(dataset=data(), weight=weight)


def test_max_epochs_must_be_above_0() -> None:
    with pytest.raises(SpecError, match=r"Part\.max_epochs: found 0\.0"):
        Part(dataset=data(), weight=1, max_epochs=0)


def test_a_dataset_occurs_once_whatever_its_label() -> None:
    parts = (Part(dataset=data(name="one"), weight=1), Part(dataset=data(name="two"), weight=2))
    with pytest.raises(SpecError, match=r"parts\[1\]\.dataset: found .*parts\[0\]"):
        Mixture(parts=parts)
    with pytest.raises(SpecError, match="at least one Part"):
        Mixture(parts=())


def test_equal_mixtures_have_equal_weights() -> None:
    def mixed(*weights: float) -> Mixture:
        parts = tuple(Part(dataset=data(f"*.{n}"), weight=w) for n, w in enumerate(weights))
        return Mixture(parts=parts)

    assert mixed(7, 3).weights == mixed(0.7, 0.3).weights == (0.7, 0.3)
    assert mixed(1, 2).shares.shares == mixed(1 / 3, 2 / 3).shares.shares == (1, 2)


def test_exact_shares_where_there_is_a_common_denominator() -> None:
    shares = integer_shares([0.5, 1 / 3, 1 / 6])
    assert shares.shares == (3, 2, 1)
    assert shares.exact
    assert integer_shares(shares.effective_weights) == shares


def test_irrational_shares_are_rounded_to_millionths_and_stay_so() -> None:
    shares = integer_shares([2**0.5, 3**0.5, 5**0.5])
    assert not shares.exact
    assert 1_000_000 % shares.period == 0
    assert integer_shares(shares.effective_weights).shares == shares.shares


def test_a_weight_that_rounds_to_nothing_is_refused() -> None:
    with pytest.raises(SpecError, match=r"weights\[1\]: found .*which is 1e-07 of the mixture"):
        integer_shares([1.0, 1.0000001e-7])
