"""The driver's side of one worker process: start it, talk to it, know how it died."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections import deque
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import modelfactory
from modelfactory.engine import memory
from modelfactory.engine.failure import describe_death
from modelfactory.engine.logs import tail
from modelfactory.engine.protocol import Event, Failed, Finished, Job, Started, Stop

if TYPE_CHECKING:
    from collections.abc import Iterator

_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "RAYON_NUM_THREADS",
    "POLARS_MAX_THREADS",
)
"""Read by libraries when they are imported, so they must be set before the worker starts."""

_N_REMEMBERED = 16
"""So many jobs back a worker is preferred for what continues one of them."""

_UNEXPECTED = ("raised", "memory")
"""After these failures the worker's memory may be in any state, so it is not used again."""


@dataclass(frozen=True, kw_only=True)
class _Death:
    exit_code: int
    peak_bytes: int


class WorkerProcess:
    """One worker, in a process group of its own."""

    def __init__(self, threads: int, niceness: int = 0) -> None:
        """Start the process; it need not be waited for, the first job lies in the pipe until it is up."""
        self.niceness = niceness
        ours, theirs = socket.socketpair()
        lifeline_read, self._lifeline = os.pipe()
        self._printed: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the worker
        with theirs:
            self._process = subprocess.Popen(
                _command(theirs.fileno(), lifeline_read, niceness),
                pass_fds=[theirs.fileno(), lifeline_read],
                stdin=subprocess.DEVNULL,
                stdout=self._printed,
                stderr=self._printed,
                env=_environment(threads),
                process_group=0,
            )
        os.close(lifeline_read)
        self.connection: Connection[Any, Any] = Connection(ours.detach())
        self.pidfd = _pidfd(self._process.pid)
        self.job: Job | None = None
        self.remembered: deque[str] = deque(maxlen=_N_REMEMBERED)
        self.usable = True
        self.unbegun: Job | None = None
        """A job that was sent while the process, idle until then, was dying: another worker can have it."""
        self._has_spoken = False
        self._begun = False
        self._stop_asked = False
        self._n_oom_kills = 0

    @property
    def pid(self) -> int:
        """Process id, which is also that of its group."""
        return self._process.pid

    def waitables(self) -> list[Any]:
        """Return what becomes readable when the worker speaks or dies."""
        return [self.connection] if self.pidfd is None else [self.connection, self.pidfd]

    def send(self, job: Job) -> None:
        """Give it a job to run."""
        self.job = job
        self.remembered.append(job.fingerprint)
        self._begun = False
        self._stop_asked = False
        self._n_oom_kills = memory.n_oom_kills()
        with contextlib.suppress(OSError):  # it died this moment; `events` will say so
            self.connection.send(job)

    def stop(self) -> None:
        """Ask it to end its job."""
        if self.job is not None:
            self._stop_asked = True
            with contextlib.suppress(OSError):
                self.connection.send(Stop(fingerprint=self.job.fingerprint))

    def kill(self) -> None:
        """Kill it and its children now; `events` still reports how its job ended."""
        self._stop_asked = True
        self._kill_group()

    def is_dead(self) -> bool:
        """Say whether the process has ended, without collecting it."""
        if self._process.returncode is not None:
            return True
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.pid, flags) is not None

    def events(self) -> Iterator[Event]:
        """Yield what it said since last time, and the failure of its job when it died."""
        dead = self.is_dead()  # asked first: what it said before it died is then all in the pipe
        try:
            while self.connection.poll(0):
                event: Event = self.connection.recv()
                self._note(event)
                yield event
        except (EOFError, OSError):
            self._kill_group()  # it is dying, or cannot be heard any more; an exit code that is set stays
        if dead:
            yield from self._after_death()

    def close(self) -> None:
        """Kill what is left of it and let go of everything."""
        if self._process.returncode is None:
            self._kill_group()
            self._reap()
        self.usable = False
        self.connection.close()
        self._printed.close()
        for fd in (self._lifeline, self.pidfd):
            if fd is not None:
                with contextlib.suppress(OSError):
                    os.close(fd)
        self.pidfd = None

    def _note(self, event: Event) -> None:
        self._has_spoken = True
        if isinstance(event, Started):
            self._begun = True
        elif isinstance(event, Finished):
            self.job = None
        elif isinstance(event, Failed):
            self.job = None
            self.remembered.clear()
            self.usable = event.kind not in _UNEXPECTED

    def _after_death(self) -> Iterator[Failed]:
        self.usable = False
        if self._process.returncode is not None:
            return
        self._kill_group()  # children it left behind; before reaping, while the number is surely its own
        death = self._reap()
        if self.job is not None and self._has_spoken and not self._begun and not self._stop_asked:
            self.unbegun = self.job
        elif self.job is not None:
            yield self._failure(self.job, death)
        self.job = None

    def _failure(self, job: Job, death: _Death) -> Failed:
        if self._stop_asked:
            return Failed(
                fingerprint=job.fingerprint, error="stopped", kind="stopped", log_tail=tail(job.log)
            )
        error, kind = describe_death(death.exit_code, death.peak_bytes, self._n_oom_kills)
        log_tail = tail(job.log) if self._begun else self._last_words()
        return Failed(fingerprint=job.fingerprint, error=error, kind=kind, log_tail=log_tail)

    def _last_words(self) -> str:
        """Return what it printed outside jobs: why it could not start."""
        self._printed.seek(0)
        return "\n".join(self._printed.read().decode(errors="replace").splitlines()[-20:])

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def _reap(self) -> _Death:
        _, status, usage = os.wait4(self.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        unit = 1 if sys.platform == "darwin" else 1_024
        return _Death(exit_code=self._process.returncode, peak_bytes=usage.ru_maxrss * unit)


def _command(*numbers: int) -> list[str]:
    """Return the command line; -P, because the driver says in each job where to look for modules."""
    return [sys.executable, "-P", "-m", "modelfactory.engine.worker", *map(str, numbers)]


def _environment(threads: int) -> dict[str, str]:
    """Return the driver's environment with the threads, and what makes runs repeatable and private."""
    here = str(Path(modelfactory.__file__).parents[1])
    paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        **dict.fromkeys(_THREAD_VARIABLES, str(threads)),
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONHASHSEED": "0",
        "DO_NOT_TRACK": "true",
    }


def _pidfd(pid: int) -> int | None:
    """Return a descriptor that tells of the process's death even while a child holds its connection open."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            return os.pidfd_open(pid)
    return None
