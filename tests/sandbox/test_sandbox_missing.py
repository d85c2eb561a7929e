"""Machines that cannot sandbox."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import pytest

from modelfactory.cli.upkeep import doctor
from modelfactory.errors import SandboxMissing, SpecError
from modelfactory.sandbox import Limits, run_program, run_programs

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def no_bubblewrap(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.usefixtures("no_bubblewrap")
def test_without_bubblewrap_nothing_runs() -> None:
    with pytest.raises(SandboxMissing, match=r"apt-get install bubblewrap.*--allow-unsandboxed"):
        run_program("", Limits())


def test_a_bubblewrap_that_cannot_start_is_told_with_its_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bwrap = tmp_path / "bwrap"
    bwrap.write_text("#!/bin/sh\necho 'No permissions to create new namespace' >&2; exit 1\n")
    bwrap.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxMissing, match="No permissions to create new namespace"):
        run_program("", Limits())


@pytest.mark.usefixtures("no_bubblewrap")
def test_what_is_allowed_runs_without_a_sandbox_still_limited() -> None:
    programs = ["assert 1", "assert 0", "import time; time.sleep(60)", "x = bytearray(10**10)", "input()"]
    seen = run_programs(programs, Limits(wall_s=5.0), n_workers=2, allow_unsandboxed=True)
    assert [each.verdict for each in seen] == ["passed", "failed", "timed out", "memory", "failed"]


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), float("inf")])
def test_limits_must_limit(wrong: float) -> None:
    with pytest.raises(SpecError, match="wall_s"):
        Limits(wall_s=wrong)


@pytest.mark.usefixtures("no_bubblewrap")
def test_the_doctor_says_what_is_refused_and_how_to_mend_it(tmp_path: Path) -> None:
    arguments = argparse.Namespace(workspace=tmp_path / "none", deep=False, rebuild=False)
    checks = {check["name"]: check for check in doctor(arguments).data["checks"]}
    assert "apt-get install bubblewrap" in checks["sandbox"]["found"]


@pytest.mark.usefixtures("bubblewrap")
def test_the_doctor_names_the_sandbox_it_tried(tmp_path: Path) -> None:
    arguments = argparse.Namespace(workspace=tmp_path / "none", deep=False, rebuild=False)
    checks = {check["name"]: check for check in doctor(arguments).data["checks"]}
    assert checks["sandbox"]["found"].startswith("bubblewrap ")
