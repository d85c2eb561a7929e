"""Start a program, watch it, end it with all its children."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Literal

from modelfactory.errors import SandboxMissing
from modelfactory.sandbox.bubblewrap import environment, require_sandbox, sandboxed, unsandboxed
from modelfactory.sandbox.outcome import Ended, Outcome, judge

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from modelfactory.sandbox.limits import Limits

KEPT_BYTES = 4096
"""Bytes of standard error that are kept, from its end."""
_PIECE = 1 << 16


def run_programs(
    programs: Iterable[str], limits: Limits, *, n_workers: int, allow_unsandboxed: bool = False
) -> list[Outcome]:
    """Run programs, `n_workers` at once, each in a sandbox of its own; outcomes come in their order.

    Raises:
        SandboxMissing: no sandbox can be made here, and `allow_unsandboxed` does not say to do without.
    """
    run = partial(_run, limits=limits, sandbox=_has_sandbox(allow_unsandboxed=allow_unsandboxed))
    with ThreadPoolExecutor(n_workers, thread_name_prefix="sandbox") as pool:
        return list(pool.map(run, programs))


def run_program(program: str, limits: Limits, *, allow_unsandboxed: bool = False) -> Outcome:
    """Run one Python program; where no sandbox can be made, only if `allow_unsandboxed`.

    Raises:
        SandboxMissing: no sandbox can be made here, and `allow_unsandboxed` does not say to do without.
    """
    return _run(program, limits, _has_sandbox(allow_unsandboxed=allow_unsandboxed))


def _has_sandbox(*, allow_unsandboxed: bool) -> bool:
    """Say whether to sandbox; a sandbox that is there is used, whatever is allowed."""
    try:
        require_sandbox()
    except SandboxMissing:
        if not allow_unsandboxed:
            raise
        return False
    return True


def _run(program: str, limits: Limits, sandbox: bool) -> Outcome:
    began = time.monotonic()
    with _started(program, limits, sandbox) as (process, report):
        output = _Output(process=process, left=limits.output_bytes)
        try:
            killed = _watch(output, began + limits.wall_s)
        finally:
            _kill(process)
        code = process.wait()
        output.read()
        word = _read(report)
    ended = Ended(
        word=word, code=code, stderr=bytes(output.stderr), killed=killed, seconds=time.monotonic() - began
    )
    return judge(ended, limits)


@contextlib.contextmanager
def _started(program: str, limits: Limits, sandbox: bool) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Start a program; it is given by a file in memory, so that a huge one cannot block."""
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(os.fdopen(os.memfd_create("program"), "w+b"))
        source.write(program.encode("utf-8", "surrogatepass"))  # what is no text is a SyntaxError there
        source.seek(0)
        report, theirs = os.pipe()
        stack.callback(os.close, report)
        try:
            folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
            process = subprocess.Popen(
                sandboxed(limits, theirs) if sandbox else unsandboxed(limits, theirs, folder),
                stdin=source, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=(theirs,),
                start_new_session=True, env=environment(), cwd="/",
            )  # fmt: skip
        finally:
            os.close(theirs)
        stack.enter_context(process)
        os.set_blocking(report, False)
        yield process, report


class _Output:
    """What a program has written: the end of its standard error is kept, the rest counted."""

    def __init__(self, process: subprocess.Popen[bytes], left: int) -> None:
        assert process.stdout
        assert process.stderr
        self.process = process
        self.left = left
        self.stderr = bytearray()
        self.open = [process.stdout.fileno(), process.stderr.fileno()]
        for fd in self.open:
            os.set_blocking(fd, False)

    def read(self) -> None:
        """Take what is there, a piece of each."""
        assert self.process.stderr
        for fd in self.open:
            piece = _read(fd)
            self.left -= len(piece)
            if fd == self.process.stderr.fileno():
                self.stderr = (self.stderr + piece)[-KEPT_BYTES:]


def _watch(output: _Output, until: float) -> Literal["", "time", "output"]:
    """Read what a program writes until it ends or must be ended; return why."""
    ended = os.pidfd_open(output.process.pid)  # readable at the end, and keeps the number ours until the kill
    try:
        with selectors.DefaultSelector() as waiting:
            for fd in (ended, *output.open):
                waiting.register(fd, selectors.EVENT_READ)
            while (left_s := until - time.monotonic()) > 0:
                ready = {key.fd for key, _ in waiting.select(left_s)}
                output.read()
                if output.left < 0:
                    return "output"
                if ended in ready:
                    return ""
            return "time"
    finally:
        os.close(ended)


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, _PIECE)
    except BlockingIOError:
        return b""


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill bubblewrap, with whom its whole namespace dies; without it, the group of the program."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
