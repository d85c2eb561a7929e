from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.end_to_end.factory import Line, new_line

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the folder of a study that was carried out, and a copy of it.

    Tables of the lake know their absolute place, so each test gets the copy back at the first place.
    """
    base = tmp_path_factory.mktemp("end_to_end")
    line = new_line(base / "line")
    answer = line.run()
    assert answer.code == 0, answer.err
    assert (answer.json["ran"], answer.json["stored"]) == (20, 0)
    shutil.copytree(line.folder, base / "saved", symlinks=True)
    return line.folder, base / "saved"


@pytest.fixture
def line(saved: tuple[Path, Path]) -> Iterator[Line]:
    """Return a study all of whose stages are stored."""
    place, copy = saved
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(copy, place, symlinks=True)
    yield Line(place)
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture
def fresh(tmp_path: Path) -> Line:
    """Return a study that was not carried out yet."""
    return new_line(tmp_path / "line")
