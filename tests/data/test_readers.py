"""Every kind of file, plain, compressed and broken."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from modelfactory.data import Files, Jsonl, Parquet
from modelfactory.errors import SourceError

HINDI = "नमस्ते दुनिया"
TEXTS = ["plain", HINDI, "日本語\r\nテキスト\n", "\ufeffmark", "emoji 🧪\x00end"]
COMPRESS = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".zst": lambda data: pa.compress(data, codec="zstd", asbytes=True),
}


def jsonl(place, pattern="*", **options):
    return Jsonl(root=str(place.source), pattern=pattern, text_field="text", **options)


def parquet(place, pattern="*"):
    return Parquet(root=str(place.source), pattern=pattern, text_field="text")


@pytest.mark.parametrize("ending", COMPRESS)
def test_files_are_read_to_the_byte(place, ending):
    for n, text in enumerate(TEXTS):
        place.put(f"{n}.txt{ending}", COMPRESS[ending](text.encode()))
    made = place.run(place.dataset())
    assert list(made.texts.values()) == TEXTS
    assert list(made.texts) == [f"{n}.txt{ending}" for n in range(len(TEXTS))]


@pytest.mark.parametrize("ending", COMPRESS)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_json_lines_are_read_to_the_character(place, ending, ascii_only):
    lines = "\n\n".join(json.dumps({"id": 1, "text": text}, ensure_ascii=ascii_only) for text in TEXTS)
    place.put(f"a.jsonl{ending}", COMPRESS[ending](b"\xef\xbb\xbf" + lines.encode()))
    made = place.run(place.dataset(jsonl(place)))
    assert list(made.texts.values()) == TEXTS
    assert list(made.texts)[-1] == f"a.jsonl{ending}#9"  # blank lines count


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_parquet_is_read_and_null_is_counted(place, kind):
    pq.write_table(pa.table({"text": pa.array([*TEXTS, None], kind)}), place.source / "a.parquet")
    made = place.run(place.dataset(parquet(place)))
    assert list(made.texts.values()) == TEXTS
    assert made.drops == {"no text": 1}


def test_sources_follow_each_other_and_keep_the_same_path_apart(place):
    place.put("one/a.txt", "from one")
    place.put("two/a.txt", "from two")
    sources = [Files(root=str(place.source / name), pattern="*") for name in ("two", "one")]
    rows = place.run(place.dataset(*sources)).rows
    assert [(r["source"], r["path"], r["text"]) for r in rows] == [
        ("source0", "a.txt", "from two"),
        ("source1", "a.txt", "from one"),
    ]


def test_null_and_surrogates_and_bad_bytes_follow_the_policy(place):
    place.put("a.jsonl", b'{"text": null}\n{"text": "a \\ud800 b"}\n{"text": "caf\xe9"}\n{"text": "good"}\n')
    dropped = place.run(place.dataset(jsonl(place, not_utf8="drop")), "drop")
    assert dropped.drops == {"no text": 1, "not UTF-8": 2}
    assert list(dropped.texts.values()) == ["good"]
    replaced = place.run(place.dataset(jsonl(place, not_utf8="replace")), "replace")
    assert list(replaced.texts.values()) == ["a \ufffd b", "caf\ufffd", "good"]
    with pytest.raises(SourceError, match=r"lone surrogate '\\ud800' in the line at byte 15"):
        place.run(place.dataset(jsonl(place, not_utf8="refuse")), "refuse")


def test_refuse_names_the_byte_of_a_compressed_file(place):
    place.put("a.jsonl.gz", gzip.compress(b'{"text": "x"}\n{"text": "caf\xe9"}\n'))
    with pytest.raises(SourceError, match=r"a\.jsonl\.gz: found 0xe9 at byte 27"):
        place.run(place.dataset(jsonl(place)))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"a\.jsonl, line 2: found no JSON \("),
        ("[1]", "found a JSON list, wanted a JSON object"),
        ('{"txt": "x"}', r"wanted the field 'text'. Did you mean 'txt'\?"),
        ('{"text": 3}', "found a int in 'text', wanted a string"),
        ("[" * 100_000, "found no JSON"),
    ],
)
def test_a_broken_line_is_refused_by_file_and_line(place, line, message):
    place.put("a.jsonl", f'{{"text": "x"}}\n{line}\n')
    with pytest.raises(SourceError, match=message):
        place.run(place.dataset(jsonl(place)))


def test_broken_parquet_and_wrong_columns_are_refused(place):
    pq.write_table(pa.table({"texts": ["x"], "number": [1]}), place.source / "a.parquet")
    with pytest.raises(SourceError, match=r"wanted the column 'text'. Did you mean 'texts'"):
        place.run(place.dataset(parquet(place)), "one")
    numbers = Parquet(root=str(place.source), pattern="*", text_field="number")
    with pytest.raises(SourceError, match="the column 'number' of type int64"):
        place.run(place.dataset(numbers), "two")
    place.put("a.parquet", "PAR1 nonsense")
    with pytest.raises(SourceError, match=r"a\.parquet: found no readable Parquet"):
        place.run(place.dataset(parquet(place)), "three")


@pytest.mark.parametrize("ending", [".gz", ".zst"])
@pytest.mark.parametrize("damage", ["cut", "nonsense", "trailing"])
def test_a_damaged_archive_is_refused(place, ending, damage):
    whole = COMPRESS[ending](b'{"text": "x"}\n' * 1000)
    content = {"cut": whole[: len(whole) // 2], "nonsense": b"\x01" * 30, "trailing": whole + b"\x01" * 30}
    place.put(f"a.jsonl{ending}", content[damage])
    with pytest.raises(SourceError, match="compressed data that is damaged or cut off"):
        place.run(place.dataset(jsonl(place)))


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_archives_put_one_behind_the_other_are_read_whole(place, ending):
    place.put(f"a.txt{ending}", COMPRESS[ending](b"one ") + COMPRESS[ending](b"two"))
    assert list(place.run(place.dataset()).texts.values()) == ["one two"]


def test_a_file_changed_after_planning_is_refused_by_name(place):
    place.put("a.txt", "as planned")
    file = place.put("b.txt", "as planned too")
    dataset = place.dataset()
    inputs = place.pins(dataset)
    place.put("b.txt", "as planned tob")
    with pytest.raises(SourceError, match=r"b\.txt: found a file that changed after it was planned"):
        place.run_pinned(dataset, inputs, "changed")
    file.unlink()
    with pytest.raises(SourceError, match=r"b\.txt: found a file that cannot be read \(No such file"):
        place.run_pinned(dataset, inputs, "gone")


@pytest.mark.parametrize("ending", COMPRESS)
def test_a_document_over_the_limit_is_refused_and_one_at_the_limit_is_not(place, ending):
    place.put(f"a.txt{ending}", COMPRESS[ending](b"x" * 1000))
    whole = Files(root=str(place.source), pattern="*", max_document_bytes=1000)
    assert list(place.run(place.dataset(whole)).texts.values()) == ["x" * 1000]
    place.put(f"a.txt{ending}", COMPRESS[ending](b"x" * 1001))
    with pytest.raises(SourceError, match=r"a\.txt.*max_document_bytes"):
        place.run(place.dataset(whole), "again")


@pytest.mark.parametrize("ending", COMPRESS)
def test_a_line_over_the_limit_is_refused_by_number(place, ending):
    lines = [json.dumps({"text": "x" * n}) for n in (10, 500, 10)]
    place.put(f"a.jsonl{ending}", COMPRESS[ending]("\n".join(lines).encode()))
    with pytest.raises(SourceError, match=r"line 2: found a document of more than 300 bytes"):
        place.run(place.dataset(jsonl(place, max_document_bytes=300)))


def test_a_row_over_the_limit_is_refused_by_number(place):
    pq.write_table(pa.table({"text": ["short", "é" * 500]}), place.source / "a.parquet")
    source = Parquet(root=str(place.source), pattern="*", text_field="text", max_document_bytes=999)
    with pytest.raises(SourceError, match="row 2: found a document of 1,000 bytes"):
        place.run(place.dataset(source))
