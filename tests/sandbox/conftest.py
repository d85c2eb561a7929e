from __future__ import annotations

import pytest

from modelfactory.errors import SandboxMissing
from modelfactory.sandbox import require_sandbox


@pytest.fixture(scope="session")
def bubblewrap() -> None:
    try:
        require_sandbox()
    except SandboxMissing as missing:
        pytest.skip(f"programs cannot be sandboxed here: {missing}")
