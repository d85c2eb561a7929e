from __future__ import annotations

import os
import shutil

import pytest

from modelfactory.store import Store

A, B = "a" * 64, "b" * 64
CONTENTS = {"model.bin": "0123456789", "deep/er.txt": "text", "observed/t": "1 s"}


def _problems(damages) -> list[tuple[str, str]]:
    return [(damage.path, damage.problem) for damage in damages]


def _flip(path) -> None:
    data = bytearray(path.read_bytes())
    data[3] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "wanted"),
    [
        (lambda d: (d / "model.bin").unlink(), [("model.bin", "missing")]),
        (lambda d: (d / "deep/new").write_text(""), [("deep/new", "extra")]),
        (lambda d: os.truncate(d / "model.bin", 9), [("model.bin", "size")]),
        (lambda d: os.truncate(d / "observed/t", 0), [("observed/t", "size")]),
        (lambda d: (d / "manifest.json").unlink(), [("manifest.json", "manifest")]),
        (lambda d: (d / "manifest.json").write_text("{}"), [("manifest.json", "manifest")]),
        (lambda d: (d / "manifest.json").write_bytes((d / "manifest.json").read_bytes() + b" "),
         [("manifest.json", "manifest")]),
        (shutil.rmtree, [("", "directory")]),
    ],
)  # fmt: skip
def test_what_a_cheap_look_finds(store, bench, damage, wanted):
    bench.publish(store, A, CONTENTS)
    damage(store.stage_dir(A))
    assert _problems(store.verify(A, deep=False)) == wanted
    assert _problems(store.verify(A, deep=True)) == wanted
    assert _problems(store.check_served(A)) == wanted


def test_several_damages_are_all_named(store, bench):
    bench.publish(store, A, CONTENTS)
    (store.stage_dir(A) / "model.bin").unlink()
    (store.stage_dir(A) / "new").write_text("")
    _flip(store.stage_dir(A) / "deep/er.txt")
    found = store.verify(A, deep=True)
    assert _problems(found) == [("new", "extra"), ("deep/er.txt", "hash"), ("model.bin", "missing")]
    assert str(found[2]) == "stage aaaaaaaaaaaa, model.bin: missing: found nothing, wanted 10 bytes"


def test_a_flipped_bit_is_found_by_hashing(store, bench):
    bench.publish(store, A, CONTENTS)
    _flip(store.stage_dir(A) / "model.bin")
    assert store.verify(A, deep=False) == []
    assert _problems(store.verify(A, deep=True)) == [("model.bin", "hash")]
    assert _problems(store.inspect(deep=True)) == [("model.bin", "hash")]


def test_a_flipped_bit_is_found_before_a_stage_is_served_because_times_changed(store, bench):
    bench.publish(store, A, CONTENTS)
    path = store.stage_dir(A) / "model.bin"
    before = path.stat()
    assert store.check_served(A) == []
    _flip(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert _problems(store.check_served(A)) == [("model.bin", "hash")]


def test_a_copied_workspace_is_hashed_once_and_then_trusted(store, bench, tmp_path, monkeypatch):
    bench.publish(store, A, CONTENTS)
    store.close()
    shutil.copytree(store.root, tmp_path / "copy")
    hashed = []
    with Store.open(tmp_path / "copy") as copy:
        from modelfactory.store import files

        real = files.sha256_of
        monkeypatch.setattr(files, "sha256_of", lambda path: hashed.append(path.name) or real(path))
        assert copy.check_served(A) == []
        assert sorted(hashed) == ["er.txt", "model.bin", "t"]
        assert copy.check_served(A) == []
        assert len(hashed) == 3


def test_a_discarded_stage_is_gone_and_can_be_built_again(store, bench):
    bench.publish(store, A, CONTENTS)
    bench.publish(store, B, inputs={"tokens": A})
    _flip(store.stage_dir(A) / "model.bin")
    store.discard(A)
    assert store.states([A, B]).keys() == {B}
    assert not store.stage_dir(A).exists()
    assert list((store.root / "aside").iterdir()) == []
    assert [edge.child for edge in store.children(A)] == [B], "what was made from it is still known"
    bench.publish(store, A, CONTENTS)
    assert store.verify(A, deep=True) == []
    store.discard("c" * 64)


def test_a_deleted_directory_is_not_stored(store, bench):
    bench.publish(store, A, CONTENTS)
    shutil.rmtree(store.stage_dir(A))
    assert store.states([A]) == {}
    assert store.record(A) is None
    assert store.records() == []
    assert _problems(store.inspect(deep=False)) == [("", "directory")]


def test_a_stage_that_is_being_replaced_is_not_taken_for_damaged(bench_in_memory):
    bench = bench_in_memory

    def replace_it_over_and_over() -> None:
        with bench.open() as other:
            for n in range(60):
                bench.publish(other, A, {f"{k}/x": str(n) for k in range(1 + n % 7)})

    with bench.open() as store:
        bench.publish(store, A, CONTENTS)
        child = bench.in_child(replace_it_over_and_over)
        n_looks = 0
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            assert store.check_served(A) == []
            assert store.verify(A, deep=True) == []
            n_looks += 1
    assert n_looks > 5


def test_a_stage_without_a_record(store):
    assert _problems(store.verify(A, deep=True)) == [("", "record")]
