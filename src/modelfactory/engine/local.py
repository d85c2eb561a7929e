"""The default engine: worker processes on this machine."""

from __future__ import annotations

import contextlib
import os
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Self

from modelfactory.engine.process import WorkerProcess
from modelfactory.errors import CommandError

if TYPE_CHECKING:
    from types import TracebackType

    from modelfactory.engine.protocol import Event, Job

_LOOK_EVERY_S = 0.5
"""Where the system cannot tell of a death, workers are looked at this often."""


def n_cores() -> int:
    """Return the CPU cores this process may use."""
    with contextlib.suppress(AttributeError):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class LocalEngine:
    """Up to `jobs` worker processes, started when first needed and kept warm.

    Threads are divided evenly between the jobs. A worker that dies, or in which a stage raised something
    unexpected, is replaced. Workers die with this process, however it ends.

    A process that has stepped back may not step forward again without privileges, so jobs of another niceness
    have workers of their own: a trainer that is warm stays so while its job is lent to an evaluation. At most
    `jobs` workers of one niceness are kept, and never more than `jobs` work.
    """

    def __init__(self, jobs: int = 1, threads_total: int | None = None) -> None:
        """Start nothing yet.

        Args:
            jobs: stages that run at once.
            threads_total: CPU threads for all of them together; by default the cores this process may use.

        Raises:
            CommandError: fewer than one job or thread.
        """
        total = n_cores() if threads_total is None else threads_total
        for place, value in (("jobs", jobs), ("threads", total)):
            if value < 1:
                raise CommandError(place=place, found=str(value), wanted="a number of at least 1", remedy="")
        self.jobs = jobs
        self.threads = max(1, total // jobs)
        self._workers: list[WorkerProcess] = []
        self._woken, self._waker = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._waker, False)
        self._closed = False

    def free(self) -> int:
        """Return how many jobs may be submitted now."""
        return self.jobs - sum(worker.job is not None for worker in self._workers)

    def submit(self, job: Job) -> None:
        """Give the job to the worker that holds what it continues, else the one idle longest, else a new."""
        assert not self._closed
        assert self.free() > 0
        worker = self._choose(job)
        worker.send(job)
        self._workers.remove(worker)
        self._workers.append(worker)  # the list is in the order of last use

    def wait(self, timeout_s: float) -> list[Event]:
        """Return what happened, as soon as something has, or nothing after `timeout_s` or a `wake`."""
        waitables = [item for worker in self._workers for item in worker.waitables()]
        blind = any(worker.pidfd is None for worker in self._workers)
        wait([*waitables, self._woken], min(timeout_s, _LOOK_EVERY_S) if blind else timeout_s)
        self._drain_wakes()
        events = [event for worker in self._workers for event in worker.events()]
        for job in self._bury():
            self.submit(job)
        return events

    def wake(self) -> None:
        """Make a `wait` that is going on, or else the next one, return at once; safe in a signal handler."""
        with contextlib.suppress(BlockingIOError, OSError):
            os.write(self._waker, b"w")

    def stop(self) -> None:
        """Ask all running jobs to stop soon; go on calling `wait` for how they end."""
        for worker in self._workers:
            worker.stop()

    def kill(self) -> None:
        """Kill all running jobs now; `wait` reports them as stopped."""
        for worker in self._workers:
            if worker.job is not None:
                worker.kill()

    def close(self) -> None:
        """End the workers, also in the middle of a job."""
        if self._closed:
            return
        self._closed = True
        for worker in self._workers:
            worker.close()
        self._workers.clear()
        os.close(self._woken)
        os.close(self._waker)

    def __enter__(self) -> Self:
        """Return the engine itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def _choose(self, job: Job) -> WorkerProcess:
        alike = [worker for worker in self._workers if worker.niceness == job.niceness]
        idle = [worker for worker in alike if worker.job is None and not worker.is_dead()]
        for worker in reversed(idle):
            if job.affinity and job.affinity in worker.remembered:
                return worker
        if idle:
            return idle[0]
        if len(alike) >= self.jobs:
            self._remove_dead(alike)
        self._workers.append(WorkerProcess(self.threads, job.niceness))
        return self._workers[-1]

    def _remove_dead(self, alike: list[WorkerProcess]) -> None:
        """Make room for a new worker in the place of one that died idle."""
        dead = next(worker for worker in alike if worker.job is None)
        dead.close()
        self._workers.remove(dead)

    def _bury(self) -> list[Job]:
        """Let go of workers that cannot be used any more; return jobs that they had not begun."""
        gone = [worker for worker in self._workers if not worker.usable]
        for worker in gone:
            worker.close()
            self._workers.remove(worker)
        return [worker.unbegun for worker in gone if worker.unbegun is not None]

    def _drain_wakes(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._woken, 1_024):
                pass
