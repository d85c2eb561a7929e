"""The few things the store does to files, each durable before it returns."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import resource
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from modelfactory.errors import DiskFull, WorkspaceError

if TYPE_CHECKING:
    from collections.abc import Iterator

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NO_PERMISSION = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


def sync_file(path: Path) -> None:
    """Bring the bytes of a file to the disk."""
    _sync(path, os.O_RDONLY)


def sync_directory(path: Path) -> None:
    """Bring the names in a directory to the disk, so that a rename survives a power cut."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_synced(path: Path, text: str) -> None:
    """Write and fsync a file in a directory that nobody sees yet; that directory is the caller's to fsync."""
    path.write_text(text, encoding="utf-8")
    sync_file(path)


def write_durably(path: Path, text: str) -> None:
    """Write a whole file or none: aside, fsync, rename, fsync of the directory."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        write_synced(aside, text)
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file's bytes, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def names(directory: Path) -> list[str]:
    """Return the names in a directory; none when it does not exist."""
    try:
        return os.listdir(directory)  # noqa: PTH208
    except FileNotFoundError:
        return []


def tree(directory: Path) -> list[os.DirEntry[str]]:
    """Return everything below a directory that is not itself a directory, without following links."""
    found: list[os.DirEntry[str]] = []
    waiting = [os.fspath(directory)]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                else:
                    found.append(entry)
    return found


def tree_bytes(path: Path) -> int:
    """Return the bytes of a file, or of all files below a directory; 0 for what vanishes meanwhile."""
    try:
        if not path.is_dir():
            return path.lstat().st_size
        return sum(entry.stat(follow_symlinks=False).st_size for entry in tree(path))
    except FileNotFoundError:
        return 0


def remove_tree(path: Path) -> bool:
    """Remove a directory as far as possible; True when nothing is left.

    A worker whose driver was killed may still be writing below it for a moment: what is left then is found
    again by the next opening of the workspace.
    """
    shutil.rmtree(path, ignore_errors=True)
    return not path.exists()


def read_only(place: Path | str) -> WorkspaceError:
    """Return the error for a place that must be written and cannot be."""
    return WorkspaceError(
        place=f"workspace {place}",
        found="a place this user may not write to (read-only)",
        wanted="a writable folder",
        remedy="Change its owner or mount, or name another folder with --workspace.",
    )


@contextlib.contextmanager
def workspace_errors(place: Path) -> Iterator[None]:
    """Turn 'no space' and 'not permitted' of the operating system into errors that say what to do."""
    try:
        yield
    except OSError as error:
        where = Path(os.fsdecode(error.filename)) if isinstance(error.filename, (str, bytes)) else place
        if error.errno in _NO_SPACE:
            raise disk_full(where) from error
        if error.errno in _NO_PERMISSION:
            raise read_only(where) from error
        if error.errno in {errno.ENOTDIR, errno.EEXIST}:
            raise WorkspaceError(place=f"workspace {where}", found="a file", wanted="a folder",
                                 remedy="Move it away.") from error  # fmt: skip
        raise


def disk_full(place: Path) -> DiskFull:
    """Return the error for a full disk, with what is free where known."""
    free = "unknown"
    with contextlib.suppress(OSError):
        free = f"{shutil.disk_usage(nearest_existing(place)).free:,}"
    bound = ", or the limit on the size of files (`ulimit -f`) is met" if limited() else ""
    return DiskFull(
        f"{place}: no space left on the disk ({free} bytes free){bound}. Nothing that was stored is damaged. "
        "Free some space (`factory gc --dry-run` shows what the workspace can give back) and run again."
    )


def limited() -> bool:
    """Return whether files of this process may not grow beyond a size."""
    return resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY


def nearest_existing(path: Path) -> Path:
    """Return the path or the nearest folder above it that exists."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path
