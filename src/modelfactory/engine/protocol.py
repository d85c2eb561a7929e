"""What a driver and an engine say to each other.

A driver submits `Job`s and waits for `Event`s; who runs them, and where, is the engine's affair. Everything
here pickles, so that a job crosses to another process or machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeAlias

from modelfactory.stage import Checkpointing, Device, Parallel, Progress

if TYPE_CHECKING:
    from types import TracebackType

FailureKind: TypeAlias = Literal["raised", "refused", "memory", "disk", "killed", "stopped"]
"""Why a job ended without a result.

raised: the stage raised. refused: it raised `InvalidInput` or `NonFiniteLoss`, which another try would only
repeat. memory: it ran out of memory, by its own words or the kernel's. disk: no space left. killed: its
process died otherwise. stopped: the user asked to stop.
"""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One stage, ready to run: its inputs exist."""

    fingerprint: str
    run: str
    """`module:function` of the stage."""
    spec_json: Mapping[str, Any]
    inputs: Mapping[str, str]
    """Name to path of an input's folder or pin file."""
    output_dir: str
    """An empty folder that the stage fills and that nobody reads before it is published."""
    log: str
    """File that receives what the stage, and C libraries below it, print; appended to."""
    lake: str
    threads: int
    micro_batch_tokens: int = 16_384
    compile: bool = False
    device: Device = "cpu"
    parallel: Parallel = field(default_factory=Parallel)
    """Processes that the worker starts for a training stage."""
    checkpointing: Checkpointing = "none"
    peak_flops_per_s: Mapping[str, float] = field(default_factory=dict)
    affinity: str = ""
    """Fingerprint of the stage whose live state this one continues; a worker that ran it is preferred."""
    niceness: int = 0
    """How far the job's process steps back for others that want its cores, 0 to 19."""
    sys_path: tuple[str, ...] = ()
    """Where the driver looks for modules; the worker looks there too."""


@dataclass(frozen=True, kw_only=True)
class Started:
    """A worker began the job."""

    fingerprint: str
    pid: int
    started: float
    """Seconds since 1970."""


@dataclass(frozen=True, kw_only=True)
class Reported:
    """The stage said how far it is."""

    fingerprint: str
    progress: Progress


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The output is complete, hashed and on disk; it is not published yet."""

    fingerprint: str
    content_sha256: str
    n_bytes: int
    started: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Failed:
    """The job ended without a result."""

    fingerprint: str
    error: str
    """What happened, for a person."""
    kind: FailureKind
    log_tail: str
    """Last lines of the log."""
    started: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Stop:
    """To a worker: end the job of this fingerprint at its next safe place."""

    fingerprint: str


Event: TypeAlias = Started | Reported | Finished | Failed


class Engine(Protocol):
    """Runs jobs, up to some number at once.

    `wait` reports exactly one `Finished` or `Failed` for each job submitted, whatever happens to the process
    that runs it. An engine is used by one thread, save `wake`, which a signal handler may call.
    """

    jobs: int
    """How many jobs run at once."""
    threads: int
    """CPU threads each job gets."""

    def free(self) -> int:
        """Return how many jobs may be submitted now."""

    def submit(self, job: Job) -> None:
        """Start the job; only when `free()` is above 0."""

    def wait(self, timeout_s: float) -> list[Event]:
        """Return what happened, as soon as something has, or nothing after `timeout_s` or a `wake`."""

    def wake(self) -> None:
        """Make a `wait` that is going on, or else the next one, return at once."""

    def stop(self) -> None:
        """Ask all running jobs to stop soon; go on calling `wait` for how they end."""

    def kill(self) -> None:
        """Kill all running jobs now; `wait` reports them as stopped."""

    def close(self) -> None:
        """End the workers. The engine cannot be used after."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
