"""Where an export goes: places that cannot take it, disks that are full, processes that are killed."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from modelfactory.errors import CommandError, DiskFull, StageFailed
from modelfactory.interchange import export_gguf, export_hugging_face
from modelfactory.interchange.aside import BEGUN, aside
from tests.interchange.material import SPECS, built
from tests.limits import files_of_at_most

if TYPE_CHECKING:
    from collections.abc import Callable

LLAMA = SPECS["llama"][1]
EXPORTS = [export_hugging_face, export_gguf]
Export = Any


def exported(export: Export, to: Path, module: torch.nn.Module | None = None, **options: Any) -> None:
    export(module or built(LLAMA), LLAMA, None, to, **options)


@pytest.mark.parametrize("export", EXPORTS)
@pytest.mark.parametrize(
    ("place", "words"),
    [
        (lambda folder: folder / ("x" * 300), "name too long"),
        (lambda folder: folder / "file" / "model", "no folder"),
        (lambda folder: folder / "nul\0" / "model", "null"),
        (lambda folder: folder / "link", "nothing is overwritten"),
        (lambda _: Path("/"), "(no name|nothing is overwritten)"),
        (lambda folder: folder / "caf\udce9", "no UTF-8"),
    ],
)
def test_a_place_that_cannot_take_it(
    export: Export, place: Callable[[Path], Path], words: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(CommandError, match=f"(?i){words}"):
        exported(export, place(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]


def test_a_folder_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # a superuser may write everywhere
    with pytest.raises(CommandError, match="may not write to"):
        exported(export_hugging_face, tmp_path / "model")


@pytest.mark.parametrize("export", EXPORTS)
def test_no_space_for_the_weights(export: Export, tmp_path: Path) -> None:
    with pytest.raises(DiskFull, match="no space left"), files_of_at_most(20_000):
        exported(export, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_folders_made_for_what_failed_are_removed(tmp_path: Path) -> None:
    with pytest.raises(DiskFull), files_of_at_most(20_000):
        exported(export_hugging_face, tmp_path / "a" / "b" / "model")
    assert list(tmp_path.iterdir()) == []


KILLED = textwrap.dedent("""
    import sys
    import time
    from pathlib import Path
    from modelfactory.interchange.aside import aside
    with aside(Path(sys.argv[1]) / "model") as folder:
        (folder / "weights").write_text("half of them")
        print("begun", flush=True)
        time.sleep(60)
""")


def test_what_a_killed_export_left_is_removed_and_a_living_ones_stays(tmp_path: Path) -> None:
    words = [sys.executable, "-c", KILLED, str(tmp_path)]
    with (
        subprocess.Popen(words, stdout=subprocess.PIPE) as living,
        subprocess.Popen(words, stdout=subprocess.PIPE) as dead,
    ):
        for process in (living, dead):
            assert process.stdout is not None
            assert process.stdout.readline() == b"begun\n"
        dead.kill()
        dead.wait()
        assert len(list(tmp_path.glob(f"{BEGUN}*"))) == 2
        with aside(tmp_path / "other") as folder:
            (folder / "weights").write_text("all of them")
        assert len(list(tmp_path.glob(f"{BEGUN}*"))) == 1
        assert (tmp_path / "other" / "weights").read_text() == "all of them"
        living.kill()


def test_two_at_once_to_one_place(tmp_path: Path) -> None:
    to, refused = tmp_path / "model", pytest.raises(CommandError, match="nothing is overwritten")
    with refused, aside(to), aside(to) as folder:
        (folder / "weights").write_text("first")
    assert (tmp_path / "model" / "weights").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def changed(value: float) -> torch.nn.Module:
    module = built(LLAMA)
    with torch.no_grad():
        module.state_dict()["blocks.0.feed_forward.down.weight"][0, 0] = value
    return module


@pytest.mark.parametrize("export", EXPORTS)
def test_a_number_too_large_for_float16(export: Export, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"blocks.0.feed_forward.down.weight as float16.*70,000.*65,504"):
        exported(export, tmp_path / "model", changed(70_000.0), dtype="float16")
    assert list(tmp_path.iterdir()) == []
    exported(export, tmp_path / "model", changed(70_000.0), dtype="bfloat16")


@pytest.mark.parametrize("export", EXPORTS)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite(export: Export, value: float, tmp_path: Path) -> None:
    with pytest.raises(StageFailed, match=r"blocks\.0\.feed_forward\.down\.weight: NaN or infinite"):
        exported(export, tmp_path / "model", changed(value))
