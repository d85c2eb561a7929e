"""Whether a stage directory still holds what its manifest says."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from modelfactory.errors import StageDamaged
from modelfactory.store import files
from modelfactory.store.manifest import MANIFEST, RECORD, load

if TYPE_CHECKING:
    from modelfactory.store.database import Database
    from modelfactory.store.layout import Layout
    from modelfactory.store.manifest import FileEntry, Manifest

Problem = Literal["record", "directory", "manifest", "missing", "extra", "size", "hash"]


@dataclass(frozen=True, kw_only=True)
class Damage:
    """One thing that is wrong with a stage."""

    fingerprint: str
    path: str
    """File within the stage; empty when the stage as a whole is meant."""
    problem: Problem
    found: str
    wanted: str

    def __str__(self) -> str:
        """Return one line for people."""
        place = f"stage {self.fingerprint[:12]}" + (f", {self.path}" if self.path else "")
        return f"{place}: {self.problem}: found {self.found}, wanted {self.wanted}"


class Verifier:
    """Checks of published stages against their manifests."""

    def __init__(self, database: Database, layout: Layout) -> None:
        self._database = database
        self._layout = layout

    def verify(self, fingerprint: str, *, deep: bool) -> list[Damage]:
        """Compare names and sizes, and with `deep` the hash of every file."""
        # Another process may be replacing the stage: its new directory beside the old record looks like
        # damage. Publication holds the write lock, so the record read under that lock tells whether it did.
        for _ in range(10):
            before = self._read(fingerprint, "manifest_sha256")
            found = self._compare(fingerprint, before, deep=deep)
            if not found:
                return []
            with self._database.write():
                after = self._read(fingerprint, "manifest_sha256")
            if after == before:
                break
        return found

    def check_served(self, fingerprint: str) -> list[Damage]:
        """Check a stage before its bytes are used: names and sizes, and hashes only where times have changed.

        A write through the file system changes a file's times even when it keeps the size; a directory that
        was copied from elsewhere has new times and is hashed once. What is left to `verify(deep=True)` is a
        disk that returns other bytes than it was given.
        """
        known = self._read(fingerprint, "signature")
        found = self.verify(fingerprint, deep=False)
        if found:
            return found
        signature = _sign_if_there(self._layout.stage(fingerprint))
        if signature == known:
            return []
        found = self.verify(fingerprint, deep=True)
        if not found:
            self._remember(fingerprint, signature)
        return found

    def _compare(self, fingerprint: str, manifest_sha256: str | None, *, deep: bool) -> list[Damage]:
        if manifest_sha256 is None:
            return [_damage(fingerprint, "", "record", "none", "a record of a published stage")]
        return compare(self._layout.stage(fingerprint), manifest_sha256, deep=deep)

    def _read(self, fingerprint: str, column: Literal["manifest_sha256", "signature"]) -> str | None:
        rows = self._database.rows(
            f"SELECT {column} FROM records WHERE fingerprint = ? AND state = 'stored'",  # noqa: S608
            (fingerprint,),
        )
        return str(rows[0][0]) if rows else None

    def _remember(self, fingerprint: str, signature: str) -> None:
        with self._database.write() as connection:
            connection.execute(
                "UPDATE records SET signature = ? WHERE fingerprint = ? AND state = 'stored'",
                (signature, fingerprint),
            )


def compare(directory: Path, manifest_sha256: str, *, deep: bool) -> list[Damage]:
    """Compare a stage directory with its manifest; the directory's name is the fingerprint."""
    fingerprint = directory.name
    if not directory.is_dir():
        return [_damage(fingerprint, "", "directory", "none", "the stage's directory")]
    try:
        manifest, found = load(directory)
    except StageDamaged as error:
        return [_damage(fingerprint, MANIFEST, "manifest", str(error), "the stage's manifest")]
    if found != manifest_sha256:
        return [_damage(fingerprint, MANIFEST, "manifest", f"sha256 {found}", f"sha256 {manifest_sha256}")]
    try:
        return _compare_files(directory, manifest, deep=deep)
    except FileNotFoundError as error:
        return [_damage(fingerprint, "", "directory", f"gone while it was read ({error})", "the directory")]


def sign(directory: Path) -> str:
    """Return a hash over names, sizes and times of a stage's files: equal means not written to since.

    Raises:
        FileNotFoundError: something went away meanwhile.
    """
    seen = []
    for entry in files.tree(directory):
        found = entry.stat(follow_symlinks=False)
        seen.append(
            (os.path.relpath(entry.path, directory), found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        )
    return hashlib.sha256(repr(sorted(seen)).encode("utf-8", "surrogateescape")).hexdigest()


def _sign_if_there(directory: Path) -> str:
    # Another process may be replacing the stage at this moment; no signature means: hash it.
    try:
        return sign(directory)
    except FileNotFoundError:
        return "gone"


def _compare_files(directory: Path, manifest: Manifest, *, deep: bool) -> list[Damage]:
    wanted = {each.path: each for each in manifest.files}
    sizes = {
        Path(entry.path).relative_to(directory).as_posix(): entry.stat(follow_symlinks=False).st_size
        for entry in files.tree(directory)
    }
    extra = sizes.keys() - wanted.keys() - {MANIFEST, RECORD}
    found = [_damage(directory.name, path, "extra", "a file", "no such file") for path in sorted(extra)]
    for path, entry in wanted.items():
        found += _compare_file(directory, entry, sizes.get(path), deep=deep)
    return found


def _compare_file(directory: Path, entry: FileEntry, size: int | None, *, deep: bool) -> list[Damage]:
    if size is None:
        return [_damage(directory.name, entry.path, "missing", "nothing", f"{entry.size:,} bytes")]
    if size != entry.size:
        return [_damage(directory.name, entry.path, "size", f"{size:,} bytes", f"{entry.size:,} bytes")]
    if not deep:
        return []
    try:
        found = files.sha256_of(directory / entry.path)
    except OSError as error:
        return [_damage(directory.name, entry.path, "hash", f"unreadable: {error}", f"sha256 {entry.sha256}")]
    return [] if found == entry.sha256 else [
        _damage(directory.name, entry.path, "hash", f"sha256 {found}", f"sha256 {entry.sha256}")
    ]  # fmt: skip


def _damage(fingerprint: str, path: str, problem: Problem, found: str, wanted: str) -> Damage:
    return Damage(fingerprint=fingerprint, path=path, problem=problem, found=found, wanted=wanted)
