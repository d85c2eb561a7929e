"""What a run is told, what it says while it goes on, and what it returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from modelfactory.engine.protocol import FailureKind
from modelfactory.stage import Checkpointing, Device, Parallel, Progress

if TYPE_CHECKING:
    from modelfactory.plan import PlannedStage  # noqa: TC004  # a type only; nothing reads these at run time

OnStale: TypeAlias = Literal["rebuild", "keep", "fail"]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a plan is carried out; nothing here changes what is made."""

    retries: int = 0
    """Further attempts at a stage that failed; none where another try would only repeat the failure."""
    on_stale: OnStale = "rebuild"
    """What happens to stored stages that other code or other input bytes made: they are made again, served
    as they are, or the run is refused."""
    keep_going: bool = True
    """Whether all that does not depend on a failed stage still runs."""
    grace_s: float = 2.0
    """Seconds a running stage has to end by itself once the user asked to stop."""
    micro_batch_tokens: int = 16_384
    """Tokens a trainer passes through the model at once."""
    compile: bool = False
    """Whether trainers use torch.compile."""
    device: Device = "cpu"
    """Where trainers compute."""
    parallel: Parallel = field(default_factory=Parallel)
    """Processes of each training stage."""
    checkpointing: Checkpointing = "none"
    """What trainers compute again in the backward pass, to save memory."""
    peak_flops_per_s: Mapping[str, float] = field(default_factory=dict)
    """Of matrix products with the threads of one job, by precision; empty where unknown."""
    sys_path: tuple[str, ...] = ()
    """Where workers look for modules."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A stage that could not be made."""

    fingerprint: str
    label: str
    kind: FailureKind
    error: str
    log: Path
    log_tail: str
    """Last lines of the log."""
    attempts: int


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended."""

    ran: tuple[str, ...]
    """Fingerprints of the stages that this run made."""
    stored: tuple[str, ...]
    """Those that were there already, or that another process made meanwhile."""
    failed: tuple[Failure, ...]
    blocked: Mapping[str, tuple[str, ...]]
    """Stages that could not start -> labels of the failed stages they hang on."""
    left: tuple[str, ...]
    """Stages that were not started because the run was stopped or does not keep going."""
    seconds: float
    stopped: bool
    """Whether the user asked to stop."""

    @property
    def complete(self) -> bool:
        """Whether everything planned is there now."""
        return not (self.failed or self.blocked or self.left)

    @property
    def code(self) -> int:
        """The exit code: 0 complete; 2 where the user must mend something first; 1 where work broke."""
        if self.complete:
            return 0
        mendable = [failure.kind in {"refused", "disk"} for failure in self.failed]
        return 2 if mendable and all(mendable) else 1

    def counts(self) -> dict[str, Any]:
        """Return the numbers that `factory run --json` prints."""
        return {
            "ran": len(self.ran),
            "stored": len(self.stored),
            "failed": len(self.failed),
            "blocked": len(self.blocked),
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True, kw_only=True)
class RunBegan:
    """Before anything else."""

    stages: tuple[PlannedStage, ...]
    jobs: int
    threads: int
    """CPU threads of each job."""


@dataclass(frozen=True, kw_only=True)
class StageServed:
    """The stage is stored; nothing is done for it."""

    stage: PlannedStage


@dataclass(frozen=True, kw_only=True)
class StageDamagedFound:
    """The stored bytes are not those of the manifest; the stage is made again."""

    stage: PlannedStage
    damage: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class StageAwaited:
    """Another process makes the stage; its result will be used."""

    stage: PlannedStage


@dataclass(frozen=True, kw_only=True)
class StageBegan:
    """A worker began the stage."""

    stage: PlannedStage
    attempt: int
    pid: int


@dataclass(frozen=True, kw_only=True)
class StageProgressed:
    """The stage said how far it is."""

    stage: PlannedStage
    progress: Progress


@dataclass(frozen=True, kw_only=True)
class StageDone:
    """The stage was made and is published."""

    stage: PlannedStage
    seconds: float
    n_bytes: int


@dataclass(frozen=True, kw_only=True)
class StageRetried:
    """The stage failed and is tried again."""

    stage: PlannedStage
    failure: Failure


@dataclass(frozen=True, kw_only=True)
class StageBroke:
    """The stage failed for good."""

    stage: PlannedStage
    failure: Failure


@dataclass(frozen=True, kw_only=True)
class StageBlocked:
    """The stage cannot run because one it needs failed."""

    stage: PlannedStage
    cause: PlannedStage


@dataclass(frozen=True, kw_only=True)
class StopAsked:
    """The user asked to stop."""

    at_once: bool
    """Asked for the second time: running stages are killed."""


@dataclass(frozen=True, kw_only=True)
class RunEnded:
    """After everything else."""

    outcome: Outcome


Event: TypeAlias = (
    RunBegan
    | StageServed
    | StageDamagedFound
    | StageAwaited
    | StageBegan
    | StageProgressed
    | StageDone
    | StageRetried
    | StageBroke
    | StageBlocked
    | StopAsked
    | RunEnded
)
