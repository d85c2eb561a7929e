"""A worker process: takes one job after the other from its driver and runs it.

Started as `python -m modelfactory.engine.worker CONNECTION LIFELINE NICENESS`, the first two inherited file
descriptors.
What a stage imports stays imported, and what it puts into `Site.warm` stays there, so the second training
stage pays neither for torch nor for building its model. This module itself imports little.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelfactory.engine import lifeline
from modelfactory.engine.failure import classify, describe
from modelfactory.engine.logs import printed_to, tail
from modelfactory.engine.protocol import Event, Failed, Finished, Job, Reported, Started, Stop
from modelfactory.spec import from_json, load_object
from modelfactory.stage import Progress, Site
from modelfactory.store import seal

if TYPE_CHECKING:
    from collections.abc import Iterator

_REPORT_EVERY_S = 0.2
"""A stage may report every step; the driver hears at most this often, and of the last one."""


class Channel:
    """The worker's end of the connection: any thread sends, one thread listens."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._stopped = ""
        self.jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        threading.Thread(target=self._listen, name="listener", daemon=True).start()

    def send(self, event: Event) -> None:
        """Tell the driver; a driver that is gone needs nothing, the lifeline ends this process."""
        with self._sending, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._connection.send(event)

    def is_stopped(self, job: Job) -> bool:
        """Say whether the driver asked to stop this job."""
        return self._stopped == job.fingerprint

    def _listen(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                message = self._connection.recv()
                if isinstance(message, Stop):
                    self._stopped = message.fingerprint
                else:
                    self.jobs.put(message)
        self.jobs.put(None)


class Reporter:
    """Passes progress on, but not more often than a person or a database wants it."""

    def __init__(self, job: Job, channel: Channel) -> None:
        self._job = job
        self._channel = channel
        self._due = 0.0

    def __call__(self, progress: Progress) -> None:
        """Send `progress` when it is due, or the last, or warns."""
        now = time.monotonic()
        if now >= self._due or progress.done == progress.total or progress.warning:
            self._due = now + _REPORT_EVERY_S
            self._channel.send(Reported(fingerprint=self._job.fingerprint, progress=progress))


def carry_out(job: Job, channel: Channel, warm: dict[str, Any]) -> Finished | Failed:
    """Run one job and hash what it made; whatever it raises becomes a `Failed`."""
    started, clock = time.time(), time.monotonic()
    channel.send(Started(fingerprint=job.fingerprint, pid=os.getpid(), started=started))
    try:
        with printed_to(job.log), _traced():
            _call(job, channel, warm)
            manifest = seal(Path(job.output_dir))
    except BaseException as error:  # noqa: BLE001  # a stage failure becomes a record, whatever it is
        warm.clear()  # a trainer that was interrupted half way through a step must not be continued
        return _failed(job, error, started, time.monotonic() - clock)
    return Finished(
        fingerprint=job.fingerprint,
        content_sha256=manifest.content_sha256,
        n_bytes=manifest.n_bytes,
        started=started,
        seconds=time.monotonic() - clock,
    )


def _call(job: Job, channel: Channel, warm: dict[str, Any]) -> None:
    sys.path[:0] = [entry for entry in job.sys_path if entry not in sys.path]
    run = load_object(job.run, "stage")
    spec = from_json(job.spec_json)
    inputs = {name: Path(path) for name, path in job.inputs.items()}
    run(spec, inputs, Path(job.output_dir), _site(job, channel, warm))


def _site(job: Job, channel: Channel, warm: dict[str, Any]) -> Site:
    return Site(
        lake=Path(job.lake),
        threads=job.threads,
        fingerprint=job.fingerprint,
        micro_batch_tokens=job.micro_batch_tokens,
        compile=job.compile,
        device=job.device,
        parallel=job.parallel,
        checkpointing=job.checkpointing,
        peak_flops_per_s=job.peak_flops_per_s,
        report=Reporter(job, channel),
        stopping=lambda: channel.is_stopped(job),
        warm=warm,
    )


@contextlib.contextmanager
def _traced() -> Iterator[None]:
    """Write the traceback of what passes through into the log."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):  # the disk that is full may be the log's
            traceback.print_exc()
        raise


def _failed(job: Job, error: BaseException, started: float, seconds: float) -> Failed:
    kind = classify(error)
    return Failed(
        fingerprint=job.fingerprint,
        error=describe(error, kind, job.output_dir),
        kind=kind,
        log_tail=tail(job.log),
        started=started,
        seconds=seconds,
    )


def main() -> None:
    """Serve the driver until it hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to handle
    connection_fd, lifeline_fd, niceness = map(int, sys.argv[1:])
    os.nice(niceness)  # before any thread starts: on Linux each thread has its own, taken from its parent
    lifeline.hold(lifeline_fd)
    os.set_inheritable(connection_fd, False)
    home = Path.cwd()
    channel = Channel(Connection(connection_fd))
    warm: dict[str, Any] = {}
    while (job := channel.jobs.get()) is not None:
        channel.send(carry_out(job, channel, warm))
        os.chdir(home)  # a stage that went elsewhere must not take the next one along


if __name__ == "__main__":
    main()
