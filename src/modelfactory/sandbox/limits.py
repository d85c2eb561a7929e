"""What a program may use."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from modelfactory.errors import SpecError

_MEBIBYTE = 1024**2


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one program may use before it is stopped."""

    wall_s: float = 3.0
    """Seconds from the start of its sandbox to its end; then it and all its children are killed."""
    memory_bytes: int = 512 * _MEBIBYTE
    """Address space of each of its processes, the interpreter's own 20 MiB included."""
    n_processes: int = 32
    """Processes and threads that it may have at once."""
    output_bytes: int = _MEBIBYTE
    """Bytes on standard output and standard error together; one more and it is killed."""
    file_bytes: int = 16 * _MEBIBYTE
    """Bytes of one file, and of all its files together."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (math.isfinite(value) and value > 0):
                raise SpecError(
                    place=field.name, found=repr(value), wanted="a finite number above 0", remedy="Mend it."
                )
