"""Pins: exactly which bytes a source holds, fixed when it is planned."""

from __future__ import annotations

import hashlib
import json
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from modelfactory.data.opening import hashed
from modelfactory.data.patterns import matching_files
from modelfactory.data.sources import Files
from modelfactory.errors import InvalidInputs, SourceError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from modelfactory.data.sources import Source

CHECKED_AT_PLAN = 64 * 1024 * 1024
"""Bytes of one file up to which a plan that has to read it for its hash also checks that it is UTF-8."""
FAULTS_SHOWN = 10


class PinCache(Protocol):
    """Hashes of files seen before, so that an unchanged file is not read again."""

    def get(self, path: str, size: int, mtime_ns: int) -> str | None:
        """Return the SHA-256 of the file when it had this size and time, or None."""

    def put(self, path: str, size: int, mtime_ns: int, sha256: str) -> None:
        """Keep the SHA-256 of a file."""


@dataclass(kw_only=True)
class MemoryCache:
    """A PinCache for notebooks and tests."""

    known: dict[tuple[str, int, int], str] = field(default_factory=dict)

    def get(self, path: str, size: int, mtime_ns: int) -> str | None:
        """Return the SHA-256 of the file when it had this size and time, or None."""
        return self.known.get((path, size, mtime_ns))

    def put(self, path: str, size: int, mtime_ns: int, sha256: str) -> None:
        """Keep the SHA-256 of a file."""
        self.known[path, size, mtime_ns] = sha256


@dataclass(frozen=True, kw_only=True)
class PinnedFile:
    """One file of a source, by content."""

    path: str
    """Relative to the root, with `/`."""
    sha256: str
    n_bytes: int


@dataclass(frozen=True, kw_only=True)
class Pin:
    """The files of one source, by content, sorted by path."""

    kind: str
    """Class of the source: files, jsonl, parquet, or file for a single one."""
    root: str
    """Absolute folder in which the files lay; no part of the digest."""
    files: tuple[PinnedFile, ...]

    @property
    def digest(self) -> str:
        """The SHA-256 of all relative paths and content hashes: the identity of the source's content."""
        content = hashlib.sha256()
        for file in self.files:
            content.update(f"{file.sha256} {file.path}\0".encode())
        return content.hexdigest()

    @property
    def n_bytes(self) -> int:
        """Bytes of all files as they lie on disk."""
        return sum(file.n_bytes for file in self.files)

    def to_json(self) -> dict[str, Any]:
        """Return JSON data: `kind`, `root`, `digest`, and `files` as [path, sha256, n_bytes]."""
        files = [[file.path, file.sha256, file.n_bytes] for file in self.files]
        return {"kind": self.kind, "root": self.root, "digest": self.digest, "files": files}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Pin:
        """Rebuild what `to_json` returned."""
        files = (PinnedFile(path=path, sha256=sha256, n_bytes=n) for path, sha256, n in data["files"])
        return cls(kind=data["kind"], root=data["root"], files=tuple(files))

    def write(self, path: Path) -> None:
        """Write a pin file."""
        path.write_text(json.dumps(self.to_json(), ensure_ascii=False), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Pin:
        """Read a pin file."""
        return cls.from_json(json.loads(path.read_text(encoding="utf-8")))


def pin(source: Source, cache: PinCache, *, place: str = "") -> Pin:
    """Return the files of `source` by content; files that `cache` knows by path, size and time are not read.

    Args:
        source: of a dataset.
        cache: hashes of files seen before.
        place: what an error calls the source, such as `dataset 'python': sources[0]`.

    Raises:
        SourceError: the root is missing, nothing matches, a file cannot be read or is being written, or
            `not_utf8="refuse"` and a file that had to be read is not UTF-8. Several as `InvalidInputs`.
    """
    root = Path(source.root).resolve()
    try:
        paths = matching_files(Path(source.root), source.pattern, source.exclude)
    except SourceError as fault:
        here = f"{place}: {fault.place}" if place else fault.place
        raise SourceError(place=here, found=fault.found, wanted=fault.wanted, remedy=fault.remedy) from fault
    utf8_only = isinstance(source, Files) and source.not_utf8 == "refuse"
    files = _all_pinned(root, paths, cache, utf8_only=utf8_only)
    return Pin(kind=type(source).__name__.lower(), root=str(root), files=files)


def pin_file(path: str | Path, cache: PinCache) -> Pin:
    """Return the pin of one file; its root is the folder that holds it."""
    file = Path(path).resolve()
    files = _all_pinned(file.parent, [file.name], cache, utf8_only=False)
    return Pin(kind="file", root=str(file.parent), files=files)


def _all_pinned(
    root: Path, paths: Iterable[str], cache: PinCache, *, utf8_only: bool
) -> tuple[PinnedFile, ...]:
    files: list[PinnedFile] = []
    faults: list[SourceError] = []
    for path in paths:
        try:
            files.append(_pinned(root, path, cache, utf8_only=utf8_only))
        except SourceError as fault:
            faults.append(fault)
            if len(faults) == FAULTS_SHOWN:
                break
    if faults:
        raise faults[0] if len(faults) == 1 else InvalidInputs(faults)
    return tuple(files)


def _pinned(root: Path, path: str, cache: PinCache, *, utf8_only: bool) -> PinnedFile:
    file = root / path
    before = _status(file)
    known = cache.get(str(file), before.st_size, before.st_mtime_ns)
    if known is not None:
        return PinnedFile(path=path, sha256=known, n_bytes=before.st_size)
    sha256 = hashed(file, utf8_only=utf8_only and before.st_size <= CHECKED_AT_PLAN)
    after = _status(file)
    if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
        raise SourceError(
            place=str(file),
            found="a file that changed while it was read",
            wanted="a file at rest",
            remedy="Plan again when it is written.",
        )
    cache.put(str(file), after.st_size, after.st_mtime_ns, sha256)
    return PinnedFile(path=path, sha256=sha256, n_bytes=after.st_size)


def _status(file: Path) -> os.stat_result:
    try:
        str(file).encode("utf-8")
        status = file.stat()
    except UnicodeEncodeError:
        raise _unusable(repr(str(file)), "a name that is not UTF-8", "Rename it, or exclude it.") from None
    except OSError as error:
        remedy = "Restore it or change its permissions, or leave it out with `exclude`."
        raise _unusable(str(file), f"no readable file ({error.strerror})", remedy) from error
    if not stat.S_ISREG(status.st_mode):
        raise _unusable(str(file), "a pipe, socket or device", "Leave it out with `exclude`.")
    return status


def _unusable(place: str, found: str, remedy: str) -> SourceError:
    return SourceError(place=place, found=found, wanted="a regular file", remedy=remedy)
