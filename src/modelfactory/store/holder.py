"""Who holds a claim, and whether that process still lives.

A process is known by host, boot, process number and the moment it started, because process numbers are
used again. The random token tells apart two holders within one process.
"""

from __future__ import annotations

import importlib
import os
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_FIRST_PID_NAMESPACE = "pid:[4026531836]"


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A process that may hold claims."""

    host: str
    """Name of the machine; with the process namespace when that is not the machine's first one, because
    process numbers of one container mean nothing in another."""
    boot_id: str
    """Changes at each start of the machine."""
    pid: int
    """Process number."""
    started_ticks: int
    """When the process started, in clock ticks since boot."""
    token: str
    """Random; one for each holder."""


Presence = Literal["alive", "dead", "elsewhere"]


def this_process() -> Holder:
    """Return a new holder for the process that calls."""
    pid = os.getpid()
    return Holder(
        host=_host(), boot_id=_boot_id(), pid=pid, started_ticks=started_ticks(pid) or 0,
        token=secrets.token_hex(16),
    )  # fmt: skip


def presence(holder: Holder, here: Holder) -> Presence:
    """Say whether a holder lives, as far as `here` can see; "elsewhere" when it cannot see."""
    if holder.host != here.host:
        return "elsewhere"
    if holder.boot_id != here.boot_id:
        return "dead"
    return "alive" if started_ticks(holder.pid) in {holder.started_ticks, -1} else "dead"


def started_ticks(pid: int) -> int | None:
    """Return when a process started; None when it is gone or a zombie; -1 when it may not be seen."""
    try:
        status = Path(f"/proc/{pid}/stat").read_bytes()
    except FileNotFoundError:
        return _started_without_proc(pid)
    except (ProcessLookupError, PermissionError):
        return None if not _exists(pid) else -1
    # The command's name stands in brackets and may itself hold brackets and spaces.
    fields = status.rpartition(b")")[2].split()
    return None if fields[0] in {b"Z", b"X", b"x"} else int(fields[19])


def _started_without_proc(pid: int) -> int | None:
    if not _exists(pid):
        return None
    if Path("/proc/self/stat").exists():
        return -1  # /proc mounted with hidepid: the process is there and belongs to somebody else
    psutil = importlib.import_module("psutil")
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else int(process.create_time() * 100)
    except psutil.NoSuchProcess:
        return None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _host() -> str:
    name = socket.gethostname()
    try:
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return name
    return name if namespace == _FIRST_PID_NAMESPACE else f"{name} {namespace}"


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        psutil = importlib.import_module("psutil")
        return f"{psutil.boot_time():.0f}"
