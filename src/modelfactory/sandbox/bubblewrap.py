"""The command lines that start a program, and whether this machine can sandbox."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from modelfactory.errors import SandboxMissing
from modelfactory.sandbox import runner

if TYPE_CHECKING:
    from modelfactory.sandbox.limits import Limits

_SYSTEM = ("/bin", "/lib", "/lib32", "/lib64", "/sbin", "/etc/ld.so.cache", "/etc/alternatives")
"""Beside /usr, what programs need to start; on merged systems the first are links into /usr."""
_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "HOME": "/tmp",  # noqa: S108  inside the sandbox
    "MALLOC_ARENA_MAX": "1",  # else each thread takes 64 MiB of the limit on memory
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}
"""All that a program sees; hashes are the same in each run, so that its outcome is."""


def sandbox_version() -> str:
    """Return what `bwrap --version` prints, after it has shown that it can sandbox here.

    Raises:
        SandboxMissing: it is not installed, or this machine does not let it make namespaces.
    """
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise _missing("no bubblewrap (`bwrap`)", "Install it: apt-get install bubblewrap.")
    tried = subprocess.run(
        [bwrap, *_namespaces(), "--ro-bind", "/", "/", "--", "/bin/true"],
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode:
        remedy = "Allow namespaces: as root in a container with CAP_SYS_ADMIN, else user namespaces."
        raise _missing(f"a bubblewrap that cannot start here ({tried.stderr.strip()[-200:]})", remedy)
    return subprocess.run([bwrap, "--version"], capture_output=True, text=True, check=True).stdout.strip()


def require_sandbox() -> None:
    """Refuse now, before work, where programs cannot be sandboxed.

    Raises:
        SandboxMissing: no sandbox can be made here.
    """
    sandbox_version()


def _missing(found: str, remedy: str) -> SandboxMissing:
    return SandboxMissing(
        place="sandbox",
        found=found,
        wanted="a sandbox for programs that a model wrote",
        remedy=f"{remedy} Or accept that they run as you: --allow-unsandboxed.",
    )


def _namespaces() -> list[str]:
    spaces = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    if os.geteuid() == 0:  # root needs no user namespace, and other users can then be become inside
        spaces += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    return [*spaces, "--die-with-parent", "--new-session"]


def _files(limits: Limits) -> list[str]:
    files = ["--ro-bind", "/usr", "/usr"]
    for path in _SYSTEM:
        if Path(path).is_symlink():
            files += ["--symlink", str(Path(path).readlink()), path]
        else:
            files += ["--ro-bind-try", path, path]
    if not sys.base_prefix.startswith("/usr/"):
        for parent in reversed(Path(sys.base_prefix).parents[:-1]):  # another user must get through
            files += ["--perms", "0755", "--dir", str(parent)]
        files += ["--ro-bind", sys.base_prefix, sys.base_prefix]
    files += ["--ro-bind", runner.__file__, "/runner.py", "--proc", "/proc", "--dev", "/dev"]
    size = str(2 * limits.file_bytes)  # the program itself lies there as well
    return [*files, "--perms", "1777", "--size", size, "--tmpfs", "/tmp", "--remount-ro", "/dev"]  # noqa: S108


def sandboxed(limits: Limits, report: int) -> list[str]:
    """Return the command that sandboxes the program on its standard input and reports on `report`."""
    variables = [word for name, value in _ENVIRONMENT.items() for word in ("--setenv", name, value)]
    inside = [*_python("/runner.py"), *_arguments(limits, report, _other_user(), limits.n_processes)]
    return [
        "bwrap", *_namespaces(), *_files(limits), "--clearenv", *variables, "--remount-ro", "/",
        "--", *inside, "/tmp",  # noqa: S108  inside the sandbox
    ]  # fmt: skip


def unsandboxed(limits: Limits, report: int, folder: str) -> list[str]:
    """Return the command that runs it as the user, in `folder`; nothing limits its processes."""
    return [*_python(runner.__file__), *_arguments(limits, report, 0, 0), folder]


def environment() -> dict[str, str]:
    """Return all variables that a program sees."""
    return dict(_ENVIRONMENT)


def _python(script: str) -> list[str]:
    return [str(Path(sys.executable).resolve()), "-s", "-S", "-P", script]


def _arguments(limits: Limits, report: int, uid: int, n_processes: int) -> list[str]:
    return [str(number) for number in (report, uid, limits.memory_bytes, n_processes, limits.file_bytes)]


def _other_user() -> int:
    """Return a user for this thread alone: the system counts processes by user; 0 where we are not root.

    Within the 65,536 users that a container has at least. What it meets of another user's is a shared count.
    """
    return 10_000 + threading.get_native_id() % 50_000 if os.geteuid() == 0 else 0
