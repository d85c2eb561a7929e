"""Declarations: what is refused, and what identity leaves out."""

import pytest

from modelfactory.data import (
    Dataset,
    ExactDedup,
    Files,
    Jsonl,
    Keep,
    MaxLength,
    MinAlphanumeric,
    MinLength,
    Parquet,
    Split,
    python_standard_library,
)
from modelfactory.errors import SpecError
from modelfactory.spec import fingerprint, from_json, to_json


def keep_all(text: str) -> bool:
    return bool(text)


def dataset(**changes):
    values = {
        "name": "pages",
        "sources": (
            Files(root="a", pattern="*.txt", exclude=("b*",)),
            Jsonl(root="a", pattern="*.jsonl", text_field="text"),
            Parquet(root="a", pattern="*.parquet", text_field="text"),
        ),
        "filters": (MinLength(n_bytes=3), Keep(function=keep_all)),
        "dedup": (ExactDedup(normalise="whitespace", unit="line", min_characters=8),),
        "split": Split(part="train", held_out_share=0.1),
    }
    return Dataset(**{**values, **changes})


def test_a_dataset_survives_json():
    assert from_json(to_json(dataset())) == dataset()


def test_neither_name_nor_root_is_identity():
    moved = tuple(type(s)(**{**vars(s), "root": "/elsewhere"}) for s in dataset().sources)
    assert fingerprint(dataset(name="other", sources=moved)) == fingerprint(dataset())
    assert fingerprint(dataset(filters=())) != fingerprint(dataset())


@pytest.mark.parametrize(
    ("declare", "place"),
    [
        (lambda: Split(part="train", held_out_share=1.0), "Split.held_out_share"),
        (lambda: Split(part="held_out", held_out_share=0.0), "Split.held_out_share"),
        (lambda: Split(part="held_out", held_out_share=5), "Split.held_out_share"),
        (lambda: Split(part="test", held_out_share=0.5), "Split.part"),
        (lambda: Files(root="a", pattern="../*.txt"), "Files.pattern"),
        (lambda: Files(root="a", pattern="/etc/*"), "Files.pattern"),
        (lambda: Files(root="a", pattern=""), "Files.pattern"),
        (lambda: Files(root="a", pattern="*", exclude=["b"]), "Files.exclude"),
        (lambda: Files(root="a", pattern="*", not_utf8="ignore"), "Files.not_utf8"),
        (lambda: Jsonl(root="a", pattern="*", text_field=""), "Jsonl.text_field"),
        (lambda: MinLength(n_bytes=0), "MinLength.n_bytes"),
        (lambda: MaxLength(n_bytes="3"), "MaxLength.n_bytes"),
        (lambda: MinAlphanumeric(share=1.5), "MinAlphanumeric.share"),
        (lambda: Keep(function=lambda text: True), "Keep.function"),
        (lambda: ExactDedup(normalise="case", unit="line"), "ExactDedup.normalise"),
        (
            lambda: ExactDedup(normalise="nothing", unit="document", min_characters=3),
            "ExactDedup.min_characters",
        ),
        (lambda: dataset(sources=()), "Dataset.sources"),
        (lambda: dataset(sources=dataset().sources * 2), "Dataset.sources"),
        (lambda: dataset(split=None), "Dataset.split"),
    ],
)
def test_what_makes_no_sense_is_refused_where_it_is_written(declare, place):
    with pytest.raises(SpecError) as caught:
        declare()
    assert caught.value.place.startswith(place)


def test_a_bare_function_among_filters_is_told_of_keep():
    with pytest.raises(SpecError) as caught:
        dataset(filters=(keep_all,))
    assert (caught.value.place, caught.value.remedy) == (
        "Dataset.filters[0]",
        "Write Keep(function=keep_all).",
    )


def test_the_standard_library_is_found_with_and_without_its_tests():
    assert python_standard_library().not_utf8 == "drop"
    assert len(python_standard_library(with_tests=False).exclude) > len(python_standard_library().exclude)
