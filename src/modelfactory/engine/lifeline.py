"""A worker dies with its driver, however the driver dies, and so do the worker's children.

The driver holds the writing end of a pipe and never writes. When the driver ends, also by kill -9, the pipe
closes. On Linux the kernel then kills the worker's whole process group itself (a pipe can be told which
signal to send to whom), within about a millisecond and also while C code holds the interpreter's lock; a
thread that waits for the end of the pipe does the same elsewhere. `PR_SET_PDEATHSIG` alone would not do: it
kills the worker only, its children live on, and it fires when the driver's *thread* that started it ends.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import threading

_F_SETSIG = 10
"""Linux: `fcntl(fd, F_SETSIG, signal)`; the module `fcntl` does not name it."""


def hold(read_fd: int) -> None:
    """Tie this process group to the pipe `read_fd`; call once, in the leader of the group."""
    os.set_inheritable(read_fd, False)
    if sys.platform == "linux":
        _let_the_kernel_watch(read_fd)
    threading.Thread(target=_watch, args=(read_fd,), name="lifeline", daemon=True).start()


def _let_the_kernel_watch(read_fd: int) -> None:
    try:
        fcntl.fcntl(read_fd, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(read_fd, _F_SETSIG, signal.SIGKILL)
        flags = fcntl.fcntl(read_fd, fcntl.F_GETFL)
        fcntl.fcntl(read_fd, fcntl.F_SETFL, flags | os.O_ASYNC)
    except OSError:  # a kernel in a sandbox may not know it; the thread remains
        return


def _watch(read_fd: int) -> None:
    os.read(read_fd, 1)
    os.killpg(os.getpgrp(), signal.SIGKILL)
