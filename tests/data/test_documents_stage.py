"""The stage as a whole: same bytes on every run, whatever kills or accompanies it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from modelfactory.data import (
    ExactDedup,
    Files,
    Jsonl,
    MinAlphanumeric,
    MinLength,
    Parquet,
    Split,
    check_dataset,
    lake,
    pin,
    python_standard_library,
    read_documents,
)
from modelfactory.errors import DiskFull, SourceError, SpecError, StageDamaged, Stopped
from modelfactory.spec import to_json

STEPS = (
    ExactDedup(normalise="whitespace", unit="document"),
    ExactDedup(normalise="nothing", unit="line", min_characters=40),
)
POINTS = (
    "while documents are spilled",
    "before the table is in place",
    "between the files and the catalog",
    "after the catalog",
    "before the account",
)


def real(place, **options):
    """Packages of the standard library, which hold duplicates, empty files and files that are not UTF-8."""
    library = python_standard_library()
    email = Files(root=library.root, pattern="email/**/*.py", not_utf8="drop")
    small = Files(root=library.root, pattern="lib2to3/**/*.py", not_utf8="drop")
    values = {"filters": (MinLength(n_bytes=20), MinAlphanumeric(share=0.2)), "dedup": STEPS, **options}
    return place.dataset(email, small, **values)


def started(place, dataset, name, *, threads=1, dies="", fingerprint="ab" * 32):
    (place.root / name).mkdir()
    job = {
        "spec": to_json(dataset),
        "inputs": {key: str(path) for key, path in place.pins(dataset).items()},
        "output_dir": str(place.root / name),
        "lake": str(place.lake),
        "threads": threads,
        "fingerprint": fingerprint,
        "dies": dies,
    }
    script = str(Path(__file__).with_name("run_stage.py"))
    return subprocess.Popen([sys.executable, "-W", "error", script, json.dumps(job)])


def test_two_runs_and_another_thread_count_make_the_same_bytes(place):
    dataset = real(place)
    first = place.run(dataset, "first", fingerprint="")
    assert set(first.hashes) == {"documents.json", "drops.json", "drops.parquet", "part-00000.parquet"}
    place.lake = place.root / "other_lake"
    assert started(place, dataset, "second", threads=2).wait() == 0
    second = place.made("second")
    assert second.hashes == first.hashes
    assert second.rows == first.rows
    assert first.account["n_documents"] > 20


def test_killed_at_any_point_and_run_again_nothing_is_twice_and_nothing_left(place):
    dataset = real(place)
    for n, point in enumerate(POINTS):
        assert started(place, dataset, f"killed{n}", dies=point).wait() == -9
    again = place.run(dataset, "again")
    whole = place.run(dataset, "whole")
    assert again.hashes == whole.hashes
    assert lake.damaged(again.folder, place.lake) == []
    assert lake.unreferenced([again.folder], place.lake) == {}
    assert list((place.lake / "incoming").iterdir()) == []
    assert scanned(place.lake, again) == [row["path"] for row in again.rows]


def scanned(folder, made):
    """Return the paths of the documents as another reader of Iceberg sees them."""
    from modelfactory.data.catalog import opened

    with opened(folder) as catalog:
        table = catalog.load_table(lake.LakeTable.read(made.folder).table)
        assert len(table.snapshots()) == 1
        return table.scan().to_arrow()["path"].to_pylist()


def test_processes_write_to_one_new_lake_at_once(place):
    names = [f"stage{n}" for n in range(3)]
    runs = [
        started(
            place, real(place, filters=(MinLength(n_bytes=100 * (n + 1)),)), name, fingerprint=str(n) * 64
        )
        for n, name in enumerate(names)
    ]
    assert [run.wait() for run in runs] == [0, 0, 0]
    for name in names:
        made = place.made(name)
        assert lake.damaged(made.folder, place.lake) == []
        assert scanned(place.lake, made) == [row["path"] for row in made.rows]


def test_what_its_own_process_removes_at_the_same_moment_is_no_fault(place, monkeypatch):
    left = place.lake / "incoming" / "left"
    left.mkdir(parents=True)
    remove = shutil.rmtree

    def both_remove(folder, **options):
        remove(folder, **options)
        if folder == left:
            raise FileNotFoundError(folder)

    monkeypatch.setattr(lake.shutil, "rmtree", both_remove)
    with lake.workbench(place.lake) as bench:
        assert [path.name for path in (place.lake / "incoming").iterdir()] == [bench.name]


def test_a_table_of_the_same_content_is_used_again(place):
    place.put("a.txt", "text")
    first, second = (place.run(place.dataset(), name) for name in ("first", "second"))
    one, two = (lake.LakeTable.read(made.folder) for made in (first, second))
    assert one == two
    stored = place.lake / one.files[0].path
    stored.write_bytes(stored.read_bytes()[:-1])
    third = place.run(place.dataset(), "third")
    assert lake.LakeTable.read(third.folder).files == one.files
    assert lake.LakeTable.read(third.folder).snapshot_id != one.snapshot_id
    assert third.texts == {"a.txt": "text"}


def test_each_document_is_counted_in_one_part_and_none_is_in_both(place):
    parts = [
        place.run(real(place, split=Split(part=part, held_out_share=0.3)), part)
        for part in ("train", "held_out")
    ]
    accounts = [made.account for made in parts]
    assert sum(account["n_in_part"] for account in accounts) == accounts[0]["n_read"]
    assert accounts[0]["n_in_part"] == accounts[1]["n_other_part"] > 0
    for account, made in zip(accounts, parts, strict=True):
        assert account["n_documents"] + sum(made.drops.values()) == account["n_in_part"]
        assert sum(of["n_documents"] for of in account["by_source"].values()) == account["n_documents"]
    both = [{(row["source"], row["path"]) for row in made.rows} for made in parts]
    assert not both[0] & both[1]


def test_samples_are_at_most_twenty_of_each_reason_and_short(place):
    for n in range(50):
        place.put(f"{n}.txt", "é" * 400)
        place.put(f"{n}.empty", "")
    made = place.run(place.dataset(dedup=STEPS[:1]))
    assert made.drops == {"empty": 50, "duplicate up to white space": 49}
    reasons = [sample["reason"] for sample in made.samples]
    assert reasons == ["duplicate up to white space"] * 20 + ["empty"] * 20
    assert made.samples[0]["sample"] == "é" * 300


def test_all_dropped_says_why(place):
    place.put("a.txt", "ab")
    place.put("b.txt", " ")
    with pytest.raises(
        SourceError,
        match=r"'pages': found no document left of 2 \(dropped: 1 empty, 1 shorter than 9 bytes\)",
    ):
        place.run(place.dataset(filters=(MinLength(n_bytes=9),)))
    assert list((place.lake / "incoming").iterdir()) == []


def test_nothing_but_empty_files_is_told_by_plan_and_stage(place):
    for n in range(3):
        place.put(f"{n}.txt", "")
    dataset = place.dataset()
    with pytest.raises(SourceError, match=r"no document left of 3 \(dropped: 3 empty\)"):
        check_dataset(dataset, [pin(dataset.sources[0], place.cache)])
    with pytest.raises(SourceError, match="3 empty"):
        place.run(dataset)


def test_an_empty_part_is_told_by_the_plan_for_files_and_by_the_stage_for_lines(place):
    place.put("a.txt", "one")
    place.put("a.jsonl", '{"text": "one"}\n{"text": "two"}')
    split = Split(part="held_out", held_out_share=1e-9)
    files = place.dataset(place.files("*.txt"), split=split)
    with pytest.raises(SourceError, match=r"split: found none of 1 documents in the part 'held_out'"):
        check_dataset(files, [pin(files.sources[0], place.cache)])
    lines = place.dataset(Jsonl(root=str(place.source), pattern="*.jsonl", text_field="text"), split=split)
    check_dataset(lines, [pin(lines.sources[0], place.cache)])
    with pytest.raises(SourceError, match="found none of 2 documents"):
        place.run(lines)


def test_progress_and_stopping(place):
    place.put("a.txt", "one")
    seen = []
    place.run(place.dataset(), report=seen.append)
    assert (seen[-1].done, seen[-1].total, seen[-1].unit) == (3, 3, "bytes")
    with pytest.raises(Stopped):
        place.run(place.dataset(), "stopped", stopping=lambda: True)


def test_a_full_disk_is_named_and_leaves_nothing(place, monkeypatch):
    place.put("a.txt", "one")

    def full(*_args, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
    with pytest.raises(DiskFull, match="no space left"):
        place.run(place.dataset())
    assert list((place.lake / "incoming").iterdir()) == []


def test_columns_can_be_chosen(place):
    place.put("a.txt", "one")
    made = place.run(place.dataset())
    (batch,) = read_documents(made.folder, place.lake, ["n_bytes", "path"])
    assert batch.to_pylist() == [{"n_bytes": 3, "path": "a.txt"}]
    with pytest.raises(SpecError, match=r"found 'texts', wanted a column of a document. Did you mean 'text'"):
        list(read_documents(made.folder, place.lake, ["texts"]))


@pytest.mark.parametrize("harm", ["flip", "cut", "remove"])
def test_damage_is_found_and_never_read(place, harm):
    place.put("a.txt", os.urandom(4096).hex())
    made = place.run(place.dataset())
    file = place.lake / lake.LakeTable.read(made.folder).files[0].path
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    if harm == "remove":
        file.unlink()
    else:
        file.write_bytes(content if harm == "flip" else content[:-7])
    (fault,) = lake.damaged(made.folder, place.lake)
    assert str(file) in fault
    with pytest.raises(StageDamaged, match=r"part-00000\.parquet"):
        list(read_documents(made.folder, place.lake))


def test_a_lost_catalog_or_lake_file_is_damage(place):
    place.put("a.txt", "one")
    made = place.run(place.dataset())
    (place.lake / "catalog.db").write_bytes(b"not a database" * 100)
    assert "catalog.db: cannot be read" in lake.damaged(made.folder, place.lake)[0]
    (place.lake / "catalog.db").unlink()
    assert lake.damaged(made.folder, place.lake) == [f"{place.lake / 'catalog.db'}: missing"]
    (made.folder / "observed/lake.json").write_text("{")
    assert "lake.json: cannot be read" in lake.damaged(made.folder, place.lake)[0]
    with pytest.raises(StageDamaged):
        list(read_documents(made.folder, place.lake))


def test_drop_removes_one_table_and_can_be_repeated(place):
    place.put("a.txt", "one")
    gone = place.run(place.dataset(), "gone", fingerprint="1" * 64)
    stays = place.run(place.dataset(), "stays", fingerprint="2" * 64)
    assert list(lake.unreferenced([stays.folder], place.lake)) == [lake.LakeTable.read(gone.folder).table]
    lake.drop(gone.folder, place.lake)
    lake.drop(gone.folder, place.lake)
    assert lake.unreferenced([stays.folder], place.lake) == {}
    assert lake.damaged(stays.folder, place.lake) == []
    assert len(lake.damaged(gone.folder, place.lake)) == 2


def test_a_lake_can_be_moved_and_read(place):
    place.put("a.txt", "one")
    made = place.run(place.dataset())
    place.lake = place.lake.rename(place.root / "moved # lake?")
    assert place.made(made.folder.name).texts == {"a.txt": "one"}


def test_many_batches_and_parts_keep_order(place, monkeypatch):
    from modelfactory.data import documents, parts

    monkeypatch.setattr(documents, "BATCH_DOCUMENTS", 3)
    monkeypatch.setattr(parts, "BATCH_BYTES", 40)
    monkeypatch.setattr(parts, "PART_BYTES", 100)
    texts = [f"text number {n % 40}" for n in range(50)]
    pq.write_table(pa.table({"text": texts}), place.source / "a.parquet")
    made = place.run(
        place.dataset(Parquet(root=str(place.source), pattern="*", text_field="text"), dedup=STEPS)
    )
    assert list(made.texts.values()) == texts[:40]
    assert len(lake.LakeTable.read(made.folder).files) > 2
    assert lake.damaged(made.folder, place.lake) == []
    assert made.drops == {"duplicate up to white space": 10}


@pytest.mark.slow
def test_two_hundred_megabytes_on_one_line(place):
    from modelfactory.data import MaxLineLength

    place.put("long.txt", b"word " * 40_000_000)
    place.put("short.txt", "word")
    allowed = Files(root=str(place.source), pattern="**/*", max_document_bytes=200_000_000)
    made = place.run(place.dataset(allowed, dedup=(STEPS[1],)), "kept")
    assert made.account["n_bytes"] == 200_000_004
    assert [batch.num_rows for batch in read_documents(made.folder, place.lake, ["n_bytes"])] == [1, 1]
    dropped = place.run(place.dataset(allowed, filters=(MaxLineLength(n_characters=10_000),)), "dropped")
    assert dropped.drops == {"a line longer than 10000 characters": 1}


def test_the_standard_library_itself(place):
    dataset = place.dataset(
        python_standard_library(), dedup=(ExactDedup(normalise="nothing", unit="document"),)
    )
    made = place.run(dataset)
    account = made.account
    assert account["n_documents"] > 500
    assert account["n_documents"] + sum(made.drops.values()) == account["n_read"]
    ids = [
        row["document_id"] for batch in read_documents(made.folder, place.lake) for row in batch.to_pylist()
    ]
    assert len(set(ids)) == len(ids)
