"""The content of one pinned file."""

from __future__ import annotations

import hashlib
from pathlib import Path

from modelfactory.data import Pin
from modelfactory.errors import SourceError


def pinned_content(pin_path: Path, wanted: str) -> tuple[Path, bytes]:
    """Return path and content of the one file of a pin.

    Args:
        pin_path: a pin file.
        wanted: what the file is, for errors.

    Raises:
        SourceError: it is gone, or changed after it was planned.
    """
    pin = Pin.read(pin_path)
    path, sha256 = Path(pin.root) / pin.files[0].path, pin.files[0].sha256
    try:
        content = path.read_bytes()
    except OSError as error:
        found = f"no readable file ({error.strerror})"
        raise SourceError(place=str(path), found=found, wanted=wanted, remedy="Restore it.") from error
    if hashlib.sha256(content).hexdigest() != sha256:
        raise SourceError(
            place=str(path),
            found="other content than when it was planned",
            wanted=f"SHA-256 {sha256}",
            remedy="Plan again, or restore the file.",
        )
    return path, content
