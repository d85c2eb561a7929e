"""Who survives."""

from modelfactory.data import ExactDedup, MinLength


def texts_after(place, step, files):
    for path, text in files.items():
        place.put(path, text)
    made = place.run(place.dataset(dedup=(step,)))
    return made, made.texts


def test_the_first_of_equal_documents_survives(place):
    files = {"c.txt": "same", "b/z.txt": "same", "a.txt": "other", "b.txt": "same "}
    step = ExactDedup(normalise="nothing", unit="document")
    made, texts = texts_after(place, step, files)
    assert texts == {"a.txt": "other", "b.txt": "same ", "b/z.txt": "same"}
    assert made.drops == {"duplicate": 1}
    assert made.samples == [
        {"reason": "duplicate", "source": "source0", "path": "c.txt", "n_bytes": 4, "sample": "same"}
    ]


def test_white_space_can_be_ignored_without_being_changed(place):
    files = {"a.txt": " one\n two ", "b.txt": "one two", "c.txt": "one\u3000two", "d.txt": "onetwo"}
    made, texts = texts_after(place, ExactDedup(normalise="whitespace", unit="document"), files)
    assert texts == {"a.txt": " one\n two ", "d.txt": "onetwo"}
    assert made.drops == {"duplicate up to white space": 2}


def test_lines_seen_before_go_within_and_across_documents(place):
    files = {
        "a.txt": "licence text\nfirst\n\n\nfirst\nend",
        "b.txt": "licence text\nsecond\n}\nlicence text\n",
        "c.txt": "licence text\nfirst\n",
        "d.txt": "}\nlast line",
    }
    step = ExactDedup(normalise="nothing", unit="line", min_characters=3)
    made, texts = texts_after(place, step, files)
    assert texts == {
        "a.txt": "licence text\nfirst\n\n\nend",
        "b.txt": "second\n}\n",
        "d.txt": "}\nlast line",
    }
    assert made.drops == {"duplicate lines only": 1}
    assert made.account["removed"]["lines"]["n"] == 5
    assert made.account["n_bytes"] == sum(len(text) for text in texts.values())
    assert [s["sample"] for s in made.samples] == ["licence text\nfirst\n"]


def test_paragraphs_go_with_the_blank_lines_after_them(place):
    files = {"a.txt": "one\nstill one\n\ntwo\n \n\nthree", "b.txt": "two\n\nfour\n\none\nstill  one"}
    made, texts = texts_after(place, ExactDedup(normalise="whitespace", unit="paragraph"), files)
    assert texts == {"a.txt": "one\nstill one\n\ntwo\n \n\nthree", "b.txt": "four"}
    assert made.account["removed"] == {"paragraphs": {"n": 2, "n_bytes": 21}}
    ids = {row["path"]: row["document_id"] for row in made.rows}
    assert ids["b.txt"] != ids["a.txt"]


def test_steps_follow_each_other(place):
    for name, text in {"a": "x1\nyy", "b": "yy\nzz", "c": "zz", "d": "x1 \nyy"}.items():
        place.put(name, text)
    steps = (
        ExactDedup(normalise="whitespace", unit="document"),
        ExactDedup(normalise="nothing", unit="line"),
        ExactDedup(normalise="nothing", unit="document"),
    )
    made = place.run(place.dataset(dedup=steps, filters=(MinLength(n_bytes=2),)))
    assert made.texts == {"a": "x1\nyy", "b": "zz"}
    assert made.drops == {"duplicate lines only": 1, "duplicate up to white space": 1}
