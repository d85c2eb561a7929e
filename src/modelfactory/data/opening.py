"""Bytes of source files: hashed, checked against their pin, decompressed."""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, cast

from modelfactory.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BLOCK = 1024 * 1024


def is_compressed(path: str) -> bool:
    """Say whether a file of this name is decompressed when it is read."""
    return path.endswith((".gz", ".zst"))


def hashed(file: Path, *, utf8_only: bool) -> str:
    """Return the SHA-256 of a file.

    Args:
        file: Read from start to end.
        utf8_only: Refuse a file that is not UTF-8; compressed ones are left to the stage.
    """
    with reading(file), file.open("rb") as stream:
        if utf8_only and not is_compressed(file.name):
            content = stream.read()
            require_utf8(content, file)
            return hashlib.sha256(content).hexdigest()
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def verified(file: Path, sha256: str) -> Iterator[IO[bytes]]:
    """Open a pinned file for reading, decompressed, after its bytes were found to be those of the pin.

    Raises:
        SourceError: the file is gone, cannot be read, is damaged, or changed after the plan.
    """
    with reading(file), file.open("rb") as stream:
        now = hashlib.file_digest(stream, "sha256").hexdigest()
        if now != sha256:
            raise changed(file, now, sha256)
        stream.seek(0)
        with decompressed(stream, file) as content:
            yield content


def changed(file: Path, now: str, sha256: str) -> SourceError:
    """Return the error for a file that is not the one that was planned."""
    return SourceError(
        place=str(file),
        found=f"a file that changed after it was planned (SHA-256 {now[:12]}...)",
        wanted=f"the planned content (SHA-256 {sha256[:12]}...)",
        remedy="Start again: the new plan takes the file as it is now.",
    )


@contextmanager
def decompressed(stream: IO[bytes], file: Path) -> Iterator[IO[bytes]]:
    """Yield the content of an open file; `.gz` and `.zst` are recognised by name."""
    if file.name.endswith(".gz"):
        with gzip.open(stream) as content:
            yield cast("IO[bytes]", content)
    elif file.name.endswith(".zst"):
        import pyarrow as pa  # the zstandard package takes a file that was cut off for a whole one

        with pa.CompressedInputStream(pa.PythonFile(stream, mode="r"), "zstd") as content:
            yield io.BufferedReader(content)
    else:
        yield stream


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Turn what goes wrong while a file is read into a SourceError that names it."""
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise _damaged(file, error) from error
    except OSError as error:
        if error.errno is None:  # from the decompressor, not from the system
            raise _damaged(file, error) from error
        raise SourceError(
            place=str(file),
            found=f"a file that cannot be read ({error.strerror})",
            wanted="a file that this user may read",
            remedy="Restore it or change its permissions, or leave it out with `exclude`.",
        ) from error


def _damaged(file: Path, error: Exception) -> SourceError:
    return SourceError(
        place=str(file),
        found=f"compressed data that is damaged or cut off ({error})",
        wanted=f"a whole {file.suffix} file",
        remedy="Fetch it again, or leave it out with `exclude`.",
    )


def require_utf8(content: bytes, file: Path, offset: int = 0) -> None:
    """Raise SourceError, naming the first bad byte, unless `content`, which starts at `offset`, is UTF-8."""
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise not_utf8(file, offset + error.start, f"0x{content[error.start]:02x}") from None


def not_utf8(file: Path, offset: int, shown: str) -> SourceError:
    """Return the error for a file that must be UTF-8 and is not."""
    return SourceError(
        place=str(file),
        found=f"{shown} at byte {offset:,}, which is not UTF-8",
        wanted="UTF-8, because the source says not_utf8='refuse'",
        remedy="Convert the file, leave it out with `exclude`, or declare not_utf8='drop' or 'replace'.",
    )
