"""A model that was trained here, exported, and imported again: it says the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tests.end_to_end.factory import Line

NAME = "high/seed=1"


def test_exported_and_imported_again_it_says_the_same(line: Line, tmp_path: Path) -> None:
    to = str(tmp_path / "exported")
    exported = line.call("export", NAME, "--to", to, "--json")
    assert exported.code == 0, exported.err
    assert exported.json["architecture"] == "GPT2LMHeadModel"
    card = (tmp_path / "exported" / "README.md").read_text("utf-8")
    assert "| trained for | " in card
    assert exported.json["checkpoint"] in card
    imported = line.call("import", to, "--name", "again", "--json")
    assert imported.code == 0, imported.err
    told = [
        line.call("sample", name, "def ", "--max-new-tokens", "12", "--seed", "3", "--json").json["text"]
        for name in (NAME, "again")
    ]
    assert told[0] == told[1]
    assert line.call("gc", "--dry-run", "--json").json["garbage"] == []
    assert line.call("import", to, "--name", NAME, "--json").code == 2  # an experiment is called so
