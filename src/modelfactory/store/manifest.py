"""The list of a stage's files with their sizes and hashes, written when the stage is complete.

`seal` needs no database and no workspace: a worker calls it on the directory it wrote.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelfactory.errors import StageDamaged, StageFailed
from modelfactory.store import files

if TYPE_CHECKING:
    from collections.abc import Mapping

MANIFEST = "manifest.json"
RECORD = "record.json"
"""Copy of the record beside the manifest, from which a lost database is read back."""
OBSERVED = "observed/"
_FORMAT = 1


@dataclass(frozen=True)
class FileEntry:
    """One file of a stage."""

    path: str
    """Relative to the stage directory, with forward slashes."""
    size: int
    """Bytes."""
    sha256: str
    """Hex."""


@dataclass(frozen=True)
class Manifest:
    """Files of a stage, sorted by path."""

    files: tuple[FileEntry, ...]

    @property
    def content_sha256(self) -> str:
        """Hash of paths, sizes and hashes of all files except those below observed/."""
        content = [
            (each.path, each.size, each.sha256) for each in self.files if not each.path.startswith(OBSERVED)
        ]
        return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()

    @property
    def n_bytes(self) -> int:
        """Bytes of all files."""
        return sum(each.size for each in self.files)

    def to_json(self) -> dict[str, Any]:
        """Return plain values, ready for json.dumps."""
        return {
            "format": _FORMAT,
            "content_sha256": self.content_sha256,
            "n_bytes": self.n_bytes,
            "files": [asdict(each) for each in self.files],
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Manifest:
        """Rebuild a manifest.

        Raises:
            ValueError: it is of another format, or its own content hash does not fit.
        """
        if data.get("format") != _FORMAT:
            raise ValueError(f"format {data.get('format')!r} instead of {_FORMAT}")
        manifest = Manifest(tuple(FileEntry(**each) for each in data["files"]))
        if manifest.content_sha256 != data["content_sha256"]:
            raise ValueError("its content hash does not fit its files")
        return manifest


def seal(aside: Path) -> Manifest:
    """Hash and fsync every file of a finished stage, then write its manifest.

    Calling it again after files changed makes the manifest anew.

    Raises:
        StageFailed: the stage wrote something that is not a regular file, or a file with a reserved name.
        DiskFull: no space is left.
    """
    _refuse_reserved(aside)
    with files.workspace_errors(aside):
        found = [_entry(aside, Path(each.path)) for each in files.tree(aside) if not _is_own(aside, each)]
        manifest = Manifest(tuple(sorted(found, key=lambda entry: entry.path)))
        files.write_synced(aside / MANIFEST, json.dumps(manifest.to_json(), indent=1) + "\n")
        for directory, _, _ in os.walk(aside, topdown=False):
            files.sync_directory(Path(directory))
    return manifest


def load(directory: Path) -> tuple[Manifest, str]:
    """Return the manifest of a stage directory and the hash of the manifest's own bytes.

    Raises:
        StageDamaged: it is missing or cannot be understood.
    """
    path = directory / MANIFEST
    try:
        text = path.read_bytes()
        return Manifest.from_json(json.loads(text)), hashlib.sha256(text).hexdigest()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StageDamaged(f"{path}: not a manifest that can be read ({error}).") from error


def _entry(aside: Path, path: Path) -> FileEntry:
    relative = path.relative_to(aside).as_posix()
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        raise StageFailed(
            f"{relative}: a stage may leave only regular files, found {stat.filemode(found.st_mode)}. "
            "Write a copy instead of a link."
        )
    files.sync_file(path)
    return FileEntry(path=relative, size=found.st_size, sha256=files.sha256_of(path))


def _is_own(aside: Path, entry: os.DirEntry[str]) -> bool:
    return entry.name == MANIFEST and Path(entry.path).parent == aside


def _refuse_reserved(aside: Path) -> None:
    for name in (MANIFEST, RECORD):
        path = aside / name
        if not path.exists():
            continue
        try:
            Manifest.from_json(json.loads(path.read_bytes()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise StageFailed(
                f"{name}: this name is kept for the store. Name the stage's file otherwise."
            ) from error
