"""Bytes that are not what they were, disks that are full, folders that take nothing."""

from __future__ import annotations

import errno
import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from modelfactory.store import Store
from tests.end_to_end.factory import Line, new_line
from tests.end_to_end.outcomes import stage_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def stages_of(line: Line, kind: str) -> list[Path]:
    with Store.open(line.workspace) as store:
        return [store.stage_dir(record.fingerprint) for record in store.records(kind)]


def without_measuring(line: Line) -> None:
    """Put a speed of this machine into the workspace, whose measuring would take a minute."""
    speed = {
        "eager_flops_per_s": 1e10,
        "compile_speedup": 1.5,
        "compile_seconds": 40.0,
        "bf16_peak_flops_per_s": 2e11,
        "fp32_peak_flops_per_s": 1e11,
        "faster_precision": "bf16",
    }
    with Store.open(line.workspace) as store:
        store.cache_put("machine/speed", speed)


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_damaged_stage_is_named_and_made_again(line: Line, saved: tuple[Path, Path]) -> None:
    without_measuring(line)
    tokens = stages_of(line, "tokens")[0]
    flip_a_byte(tokens / "tokens.bin")
    found = line.call("doctor", "--deep", "--json")
    assert found.code == 1
    bad = [check for check in found.json["checks"] if not check["good"]]
    assert [check["name"] for check in bad] == [f"stage {tokens.name[:10]}"]
    assert "tokens.bin" in bad[0]["found"]
    answer = line.run()
    assert answer.code == 0
    assert (answer.json["ran"], answer.json["stored"]) == (1, 19)
    assert tokens.name[:10] in answer.err or "tokens.bin" in answer.err
    assert line.call("doctor", "--deep", "--json").code == 0
    assert stage_bytes(line) == stage_bytes(Line(saved[1]))


def test_a_truncated_checkpoint_is_never_used(line: Line, saved: tuple[Path, Path]) -> None:
    checkpoint = next(
        path for path in stages_of(line, "train") if '"step": 8' in (path / "model.json").read_text()
    )
    largest = max((checkpoint / "checkpoint").iterdir(), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[: largest.stat().st_size // 2])
    refused = line.ask("sample", checkpoint.name, "import ", "--max-new-tokens", "4")
    assert refused.code == 1
    assert "Traceback" not in refused.err
    assert largest.name in refused.err
    answer = line.run()
    assert (answer.code, answer.json["ran"], answer.json["stored"]) == (0, 1, 19), answer.err
    assert stage_bytes(line) == stage_bytes(Line(saved[1]))


def test_a_damaged_table_of_the_lake(line: Line) -> None:
    without_measuring(line)
    flip_a_byte(max(line.workspace.glob("lake/**/*.parquet"), key=lambda path: path.stat().st_size))
    found = line.call("doctor", "--deep", "--json")
    assert found.code == 1
    assert sum(not check["good"] for check in found.json["checks"]) == 1
    assert line.call("doctor", "--deep", "--rebuild", "--json").code == 1
    answer = line.run()
    assert (answer.code, answer.json["ran"], answer.json["stored"]) == (0, 1, 19), answer.err
    assert line.call("doctor", "--deep", "--json").code == 0


def test_a_workspace_of_a_newer_version(line: Line) -> None:
    mark = line.workspace / "workspace.json"
    mark.write_text(json.dumps({"format": 99}))
    for verb in ("run", "plan", "compare"):
        answer = line.call(verb, line.study)
        assert answer.code == 2
        assert all(word in answer.err for word in (str(line.workspace), "99", "wanted"))
    assert json.loads(mark.read_text()) == {"format": 99}


def test_a_folder_that_is_no_workspace(fresh: Line) -> None:
    fresh.workspace.mkdir()
    (fresh.workspace / "thesis.tex").write_text("mine")
    answer = fresh.call("run", fresh.study)
    assert answer.code == 2
    assert str(fresh.workspace) in answer.err
    assert [path.name for path in fresh.workspace.iterdir()] == ["thesis.tex"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return the folder of a disk of less than a megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=700k", "tmpfs", str(folder)]
    if subprocess.run(words, check=False, capture_output=True).returncode:
        pytest.skip("mounting a tmpfs needs root; errors of full disks are injected in tests/store")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk(fresh: Line, small_disk: Path) -> None:
    """The stage that met it fails, what hangs on it is blocked, nothing half written is left or served."""
    fresh.edit(fresh.study, "seed in (1, 2)", "seed in (1,)")
    (fresh.folder / "w").symlink_to(small_disk)
    answer = fresh.run()
    assert answer.code == 2, answer.err
    assert "Traceback" not in answer.err
    assert "no space left" in answer.err.lower()
    # Where not even the database can be written any more, the run ends there and counts nothing.
    assert answer.json.get("failed", 1) >= 1
    subprocess.run(["mount", "-o", "remount,size=20m", str(small_disk)], check=True)
    with Store.open(fresh.workspace) as store:
        assert list(store.inspect(deep=True)) == []
        assert store.running() == []
    assert list((small_disk / "aside").iterdir()) == []
    again = fresh.run()
    assert again.code == 0, again.err
    assert again.json["ran"] + again.json["stored"] == 12
    assert again.json["stored"] >= 1


def test_a_read_only_workspace(fresh: Line, small_disk: Path) -> None:
    (fresh.folder / "w").symlink_to(small_disk)
    Store.open(fresh.workspace).close()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for verb in ("run", "plan"):
        answer = fresh.call(verb, fresh.study)
        assert answer.code == 2, answer.err
        assert "read-only" in answer.err.lower()
        assert str(fresh.workspace) in answer.err


def test_a_read_only_workspace_by_injection(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing can be mounted: the system refuses the first write."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("modelfactory.store.files.write_durably", refuse)
    line.edit(line.study, "held_out_share=0.25", "held_out_share=0.3")
    (line.corpus / "more.py").write_text("x = 1\n" * 300)
    answer = line.call("run", line.study)
    assert answer.code == 2, answer.err
    assert "read-only" in answer.err.lower()


def test_a_report_that_cannot_be_written(line: Line) -> None:
    (line.folder / "file").write_text("")
    for verb, words in (
        ("run", ("--report", "file/r.html")),
        ("report", ("-o", "file/r.html")),
        ("run", ("--report", ".")),
    ):
        answer = line.call(verb, line.study, *words)
        assert answer.code == 2
        assert "report" in answer.err
        assert "Traceback" not in answer.err


def test_new_lines_are_made_alike(tmp_path: Path) -> None:
    """The helper of these tests: two folders hold one study."""
    one, two = new_line(tmp_path / "1"), new_line(tmp_path / "2")
    assert [s["id"] for s in one.plan()["stages"]] == [s["id"] for s in two.plan()["stages"]]
