"""Where things are inside a workspace, and the check that a folder is one this version may use."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from modelfactory.errors import WorkspaceError
from modelfactory.store import files

FORMAT = 1
"""Format of the folder. Raised when an older version could misread or damage what a newer one wrote."""

_MARK = "workspace.json"


@dataclass(frozen=True)
class Layout:
    """Paths of a workspace; builds no folder by itself."""

    root: Path

    @property
    def mark(self) -> Path:
        """The file that says that this folder is a workspace, and of which format."""
        return self.root / _MARK

    @property
    def database(self) -> Path:
        """SQLite file of records, claims and caches."""
        return self.root / "factory.db"

    @property
    def stages(self) -> Path:
        """Published stages, two levels deep."""
        return self.root / "stages"

    @property
    def aside(self) -> Path:
        """Stages being written, and directories on their way out; same file system as `stages`."""
        return self.root / "aside"

    @property
    def pins(self) -> Path:
        """Pin files of outside inputs."""
        return self.root / "pins"

    @property
    def logs(self) -> Path:
        """One log a stage."""
        return self.root / "logs"

    @property
    def lake(self) -> Path:
        """Folder of the Iceberg lake."""
        return self.root / "lake"

    def stage(self, fingerprint: str) -> Path:
        """Return the directory of a published stage."""
        _check_name(fingerprint)
        return self.stages / fingerprint[:2] / fingerprint

    def log(self, fingerprint: str) -> Path:
        """Return the log file of a stage."""
        _check_name(fingerprint)
        return self.logs / f"{fingerprint}.log"

    def pin(self, digest: str) -> Path:
        """Return the pin file of a digest."""
        _check_name(digest)
        return self.pins / f"{digest}.json"

    def make(self) -> None:
        """Make what is missing; the mark first, so that a half-made workspace is known as one."""
        with files.workspace_errors(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
            if not self.mark.exists():
                files.write_durably(self.mark, json.dumps({"format": FORMAT}) + "\n")
            for folder in (self.stages, self.aside, self.pins, self.logs, self.lake):
                folder.mkdir(exist_ok=True)


def check(layout: Layout, *, create: bool) -> None:
    """Refuse a folder that is not a workspace of this format, before anything in it is touched.

    Raises:
        WorkspaceError: not a folder, not a workspace, of a newer format, damaged, read-only, or spread over
            two file systems.
    """
    root = layout.root
    with files.workspace_errors(root):
        if root.exists() and not root.is_dir():
            raise _fault(root, "a file", "a folder", "Name another folder with --workspace.")
        names = {path.name for path in root.iterdir()} if root.is_dir() else set()
    if _MARK in names:
        _check_format(layout.mark)
        _check_writable(layout)
    elif not create:
        raise _fault(
            root,
            "no workspace",
            "a workspace",
            "`factory run FILE` makes one; --workspace names another folder.",
        )
    elif any(not name.startswith(f".{_MARK}") for name in names):
        raise _fault(
            root, "a folder with other things in it", "a workspace or an empty folder",
            "Name an empty folder with --workspace.",
        )  # fmt: skip


def check_one_file_system(layout: Layout) -> None:
    """Refuse a workspace whose stages lie on another disk than the place they are written first."""
    if layout.stages.stat().st_dev != layout.aside.stat().st_dev:
        raise _fault(
            layout.stages,
            "another file system than aside/",
            "both on one, so that a rename publishes at once",
            "Move the whole workspace to that disk rather than one folder of it.",
        )


def _check_format(mark: Path) -> None:
    try:
        with files.workspace_errors(mark.parent):
            found = json.loads(mark.read_text(encoding="utf-8"))["format"]
        known = isinstance(found, int) and found >= 1
    except (ValueError, TypeError, KeyError) as error:
        raise _fault(mark, "text that is not a workspace's mark", f'{{"format": {FORMAT}}}',
                     "Restore the file, if this folder is a workspace.") from error  # fmt: skip
    if not known:
        raise _fault(mark, f"format {found!r}", f"a format from 1 to {FORMAT}", "Restore the file.")
    if found > FORMAT:
        raise _fault(mark, f"format {found}, made by a newer version", f"format {FORMAT} or older",
                     "Upgrade modelfactory, or name another folder with --workspace.")  # fmt: skip


def _check_writable(layout: Layout) -> None:
    places = (layout.root, layout.stages, layout.aside, layout.logs, layout.pins, layout.database)
    for place in places:
        if place.exists() and not os.access(place, os.W_OK):
            raise files.read_only(place)


def _check_name(name: str) -> None:
    assert len(name) > 2, f"{name!r} is no fingerprint"
    assert "/" not in name, f"{name!r} is no fingerprint"
    assert not name.startswith("."), f"{name!r} is no fingerprint"


def _fault(place: Path, found: str, wanted: str, remedy: str) -> WorkspaceError:
    return WorkspaceError(place=f"workspace {place}", found=found, wanted=wanted, remedy=remedy)
