from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.train.material import write_inputs

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_inputs(tmp_path_factory.mktemp("inputs"))
