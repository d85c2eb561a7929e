"""A folder in Hugging Face format, to be damaged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from modelfactory.interchange import export_hugging_face
from tests.interchange.material import SPECS, bpe, built

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    _, spec = SPECS["llama"]
    export_hugging_face(built(spec), spec, bpe(), tmp_path / "model")
    return tmp_path / "model"
