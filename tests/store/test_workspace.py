from __future__ import annotations

import errno
import json
import os
import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest

from modelfactory.errors import DiskFull, WorkspaceError
from modelfactory.store import Store, database, files

A, B = "a" * 64, "b" * 64


def _bytes(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def test_a_workspace_is_made_with_its_format(bench):
    with bench.open() as store:
        assert json.loads((store.root / "workspace.json").read_text()) == {"format": 1}
        assert store.lake.is_dir()
        assert store.check_database() == []
    with bench.open(create=False) as store:
        assert store.records() == []


def test_a_newer_format_is_refused_and_left_untouched(bench):
    bench.open().close()
    (bench.root / "workspace.json").write_text('{"format": 2}')
    before = _bytes(bench.root)
    with pytest.raises(WorkspaceError, match=r"format 2, made by a newer version.*Upgrade modelfactory"):
        bench.open()
    assert _bytes(bench.root) == before


def test_a_newer_schema_is_refused_and_left_untouched(bench):
    bench.open().close()
    connection = sqlite3.connect(bench.root / "factory.db")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = _bytes(bench.root)
    with pytest.raises(WorkspaceError, match="schema 99, made by a newer version"):
        bench.open()
    after = _bytes(bench.root)
    assert {name: after[name] for name in before} == before


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "one"}', '{"format": 0}', "\x00\x01", "3"])
def test_a_damaged_mark_is_refused(bench, text):
    bench.open().close()
    (bench.root / "workspace.json").write_text(text)
    with pytest.raises(WorkspaceError, match=r"workspace\.json"):
        bench.open()


def test_a_folder_with_other_things_is_not_taken(bench):
    bench.root.mkdir()
    (bench.root / "thesis.tex").write_text("do not touch")
    with pytest.raises(WorkspaceError, match="a folder with other things in it"):
        bench.open()
    assert [path.name for path in bench.root.iterdir()] == ["thesis.tex"]


def test_no_workspace_is_made_when_that_was_not_asked_for(bench):
    with pytest.raises(WorkspaceError, match="no workspace"):
        bench.open(create=False)
    assert not bench.root.exists()


def test_a_half_made_workspace_is_completed(bench):
    bench.root.mkdir()
    (bench.root / ".workspace.json.abc").write_text('{"for')
    bench.open().close()
    shutil.rmtree(bench.root / "aside")
    bench.open().close()
    assert (bench.root / "aside").is_dir()


def test_a_file_in_place_of_the_folder(bench):
    bench.root.write_text("")
    with pytest.raises(WorkspaceError, match=r"found a file, wanted a folder.*--workspace"):
        bench.open()
    with pytest.raises(WorkspaceError, match="found a file, wanted a folder"):
        Store.open(bench.root / "below")


def test_a_file_in_place_of_a_folder_inside(bench):
    bench.open().close()
    (bench.root / "aside").rmdir()
    (bench.root / "aside").write_text("")
    with pytest.raises(WorkspaceError, match="aside: found a file, wanted a folder"):
        bench.open()


def _as_nobody(bench, work) -> None:
    """Run as a user without rights, which root is not."""

    def drop_and_work() -> None:
        if os.getuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        work()

    assert bench.wait(bench.in_child(drop_and_work)) == 0


def _expect_read_only(root: Path) -> None:
    with pytest.raises(WorkspaceError, match=r"read-only.*--workspace"):
        Store.open(root)


@pytest.fixture
def open_tmp_path(tmp_path):
    """pytest's folders are closed to other users."""
    made = Path("/tmp") / f"modelfactory-{os.getpid()}-{tmp_path.name}"
    made.mkdir(mode=0o755)
    yield made
    shutil.rmtree(made)


def test_a_read_only_workspace(bench, open_tmp_path):
    root = open_tmp_path / "workspace"
    Store.open(root).close()
    for path in (root, *root.iterdir()):
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = _bytes(root)
    _as_nobody(bench, lambda: _expect_read_only(root))
    assert _bytes(root) == before
    root.chmod(0o755)


def test_a_folder_in_which_none_can_be_made(bench, open_tmp_path):
    open_tmp_path.chmod(0o555)
    _as_nobody(bench, lambda: _expect_read_only(open_tmp_path / "workspace"))
    open_tmp_path.chmod(0o755)


def test_a_read_only_database_says_so(bench, monkeypatch):
    with bench.open() as store:
        store._database._connection.execute("PRAGMA query_only = ON")
        with pytest.raises(WorkspaceError, match="read-only"):
            store.cache_put("key", 1)


def test_a_full_database_is_a_full_disk(bench):
    with bench.open() as store:
        store._database._connection.execute("PRAGMA max_page_count = 40")
        with pytest.raises(DiskFull, match="no space left"):
            store.cache_put("key", "x" * 10_000_000)
        store.cache_put("key", "small")
        assert store.cache_get("key") == "small"


@pytest.mark.parametrize(
    ("code", "wanted"), [(errno.ENOSPC, DiskFull), (errno.EDQUOT, DiskFull), (errno.EROFS, WorkspaceError)]
)
def test_errors_of_the_file_system_in_words(tmp_path, code, wanted):
    with pytest.raises(wanted), files.workspace_errors(tmp_path):
        raise OSError(code, os.strerror(code), str(tmp_path / "x"))
    with pytest.raises(ValueError, match="other"), files.workspace_errors(tmp_path):
        raise ValueError("other")


def _small_disk(place: Path) -> bool:
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True, check=False
    )
    return done.returncode == 0


def test_a_disk_that_fills_up_while_stages_are_written(bench, tmp_path):
    place = tmp_path / "disk"
    place.mkdir()
    if os.getuid() != 0 or not _small_disk(place):
        pytest.skip(
            "needs the right to mount a small tmpfs; the injected ENOSPC of test_publish.py covers the rest"
        )
    try:
        with Store.open(place / "workspace") as store:
            stored = _fill(bench, store)
            assert stored, "some stages fitted"
            assert [each for each in stored if store.verify(each, deep=True)] == []
        with Store.open(place / "workspace") as store:
            assert sorted(record.fingerprint for record in store.records()) == sorted(stored)
    finally:
        subprocess.run(["umount", str(place)], check=True)


def _fill(bench, store) -> list[str]:
    stored = []
    for n in range(1, 1000):
        try:
            bench.publish(store, bench.fingerprint(n), {"x": "y" * 3000})
        except (DiskFull, OSError) as error:
            # The test itself writes the stage's file: as in a worker, that may be what fails.
            assert isinstance(error, DiskFull) or error.errno == errno.ENOSPC  # noqa: PT017
            return stored
        stored.append(bench.fingerprint(n))
    raise AssertionError("the disk did not fill up")


def _use(bench) -> None:
    with bench.open() as store:
        store.states([A])
        store.check_database()
        bench.publish(store, B)


def test_a_truncated_database_is_named_and_its_records_can_be_read_back(bench):
    with bench.open() as store:
        made = [bench.publish(store, fp, inputs={"documents": "d" * 64}, flops=10**25) for fp in (A, B)]
    path = bench.root / "factory.db"
    with path.open("r+b") as stream:
        stream.truncate(path.stat().st_size // 2)
    with pytest.raises(WorkspaceError, match=r"factory\.db: found a damaged file.*Move factory\.db\* away"):
        _use(bench)
    for part in bench.root.glob("factory.db*"):
        part.unlink()
    with bench.open() as store:
        assert store.states([A, B]) == {each.fingerprint: each for each in made}
        assert [edge.child for edge in store.children("d" * 64)] == [A, B]
        assert store.check_served(A) == []


def test_a_database_that_is_none(bench):
    bench.open().close()
    for part in bench.root.glob("factory.db*"):
        part.unlink()
    (bench.root / "factory.db").write_text("this is not a database, however long it may be " * 50)
    with pytest.raises(WorkspaceError, match="a damaged file"):
        bench.open()


def test_an_emptied_database_is_filled_from_the_stages(bench):
    with bench.open() as store:
        made = bench.publish(store, A)
    for part in bench.root.glob("factory.db*"):
        part.write_bytes(b"")
    with bench.open() as store:
        assert store.states([A]) == {A: made}


def test_a_lock_that_is_never_given_back_is_an_error_in_words(bench, monkeypatch):
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0.05)
    with bench.open() as store, bench.open() as other, other._database.write():
        with pytest.raises(WorkspaceError, match="a lock held for"):
            store.cache_put("key", 1)
        assert store.records() == [], "readers do not wait for a writer"


def test_two_processes_make_one_workspace_at_once(bench):
    children = [bench.in_child(lambda: bench.open().close()) for _ in range(6)]
    assert {bench.wait(child) for child in children} == {0}
    with bench.open() as store:
        assert store.check_database() == []


def test_pin_files_are_whole(store):
    path = store.write_pin("d" * 64, '{"files": []}')
    assert path == store.pin_path("d" * 64)
    before = path.stat().st_mtime_ns
    store.write_pin("d" * 64, '{"files": []}')
    assert (path.read_text(), path.stat().st_mtime_ns) == ('{"files": []}', before)
