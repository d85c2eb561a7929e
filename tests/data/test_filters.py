"""What filters keep, in any script."""

import pyarrow as pa
import pytest

from modelfactory.data import Keep, MaxLength, MaxLineLength, MinAlphanumeric, MinLength
from modelfactory.data.frame import prepared
from modelfactory.errors import StageFailed


def wants_b(text: str) -> bool:
    return "b" in text


def says_maybe(text: str) -> str:
    return text


def fails_on_c(text: str) -> bool:
    if "c" in text:
        raise KeyError(text)
    return True


def kept(condition, texts):
    prepared(1)
    table = pa.table(
        {"text": texts, "source": ["source0"] * len(texts), "path": [f"{n}.txt" for n in range(len(texts))]}
    )
    return condition.keeps(table).to_pylist()


@pytest.mark.parametrize(
    ("condition", "texts", "wanted"),
    [
        (MinLength(n_bytes=3), ["ab", "abc", "é", "éé", ""], [False, True, False, True, False]),
        (MaxLength(n_bytes=3), ["ab", "abc", "éé", "abcd"], [True, True, False, False]),
        (
            MaxLineLength(n_characters=4),
            ["abcd\nabcd", "a\nabcde", "éééé", "", "\n\n", "日本語五字", "a\rbcd"],
            [True, False, True, True, True, False, False],
        ),
        (
            MinAlphanumeric(share=0.5),
            ["ab--", "a---", "नमस्ते--", "日本", "\n\n\n", "1 2"],
            [True, False, True, True, False, True],
        ),
        (Keep(function=wants_b), ["abc", "xyz", "b"], [True, False, True]),
    ],
)
def test_filters(condition, texts, wanted):
    assert kept(condition, texts) == wanted


def test_an_authors_function_that_raises_is_named_with_the_document():
    with pytest.raises(StageFailed, match=r"fails_on_c, on document 1\.txt of source0: it raised KeyError"):
        kept(Keep(function=fails_on_c), ["a", "c", "b"])


def test_an_authors_function_must_answer_true_or_false():
    with pytest.raises(StageFailed, match=r"it returned 'a', wanted True or False"):
        kept(Keep(function=says_maybe), ["a"])


def test_filters_count_under_the_first_reason(place):
    for name, text in {
        "short": "ab",
        "long": "abc" * 100,
        "fine": "abc",
        "none": "   \n",
        "x": "xyz",
    }.items():
        place.put(f"{name}.txt", text)
    filters = (MinLength(n_bytes=3), MaxLength(n_bytes=10), Keep(function=wants_b))
    made = place.run(place.dataset(filters=filters))
    assert list(made.texts) == ["fine.txt"]
    assert made.drops == {
        "empty": 1,
        "longer than 10 bytes": 1,
        f"refused by {__name__}.wants_b": 1,
        "shorter than 3 bytes": 1,
    }
    assert made.account["dropped"]["longer than 10 bytes"] == {"n_documents": 1, "n_bytes": 300}
    counted = made.account["n_documents"] + sum(made.drops.values())
    assert counted == made.account["n_in_part"] == made.account["n_read"] == 5
