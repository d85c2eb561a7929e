"""Facts about memory, to tell a process that was killed for want of it from one that somebody killed."""

from __future__ import annotations

from pathlib import Path

import psutil

_SUSPICIOUS_SHARE = 0.5
"""A process that held this share of its limit when it was killed was probably killed for it."""

_CGROUPS = Path("/sys/fs/cgroup")


def n_oom_kills() -> int:
    """Return how many processes the kernel has killed for want of memory; 0 when it does not say."""
    for line in _read(Path("/proc/vmstat")).splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return 0


def was_out_of_memory(*, n_oom_kills_before: int, peak_bytes: int) -> bool:
    """Say whether a process that SIGKILL ended was probably killed for its memory."""
    return n_oom_kills() > n_oom_kills_before or peak_bytes > _SUSPICIOUS_SHARE * limit()


def limit() -> int:
    """Return the bytes of memory that the processes of this control group may use together."""
    limits = [int(psutil.virtual_memory().total)]
    limits += [int(text) for text in map(_read, _limit_files()) if text.isdigit()]
    return min(limits)


def gigabytes(n_bytes: int) -> str:
    """Return `n_bytes` for a person."""
    return f"{n_bytes / 1e9:.1f} GB"


def _limit_files() -> list[Path]:
    """Return the limit files of this control group and those above it, of both versions of control groups."""
    files = []
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            files += _upwards(_CGROUPS, path, "memory.max")
        if "memory" in controllers.split(","):
            files += _upwards(_CGROUPS / "memory", path, "memory.limit_in_bytes")
    return files


def _upwards(root: Path, path: str, name: str) -> list[Path]:
    inner = root / path.lstrip("/")
    return [folder / name for folder in (inner, *inner.parents) if folder.is_relative_to(root)]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
