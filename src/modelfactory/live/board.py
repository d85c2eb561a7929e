"""Where a run stands, put together from its events; knows no terminal."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from modelfactory.run import (
    Event,
    RunBegan,
    RunEnded,
    StageAwaited,
    StageBegan,
    StageBlocked,
    StageBroke,
    StageDamagedFound,
    StageDone,
    StageProgressed,
    StageRetried,
    StageServed,
    StopAsked,
)
from modelfactory.stage import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from modelfactory.plan import PlannedStage  # noqa: TC004  # a type only


@dataclass
class Row:
    """A stage that runs."""

    stage: PlannedStage
    since: float
    progress: Progress | None = None


class Board:
    """Counts, running stages and an estimate of the time left.

    The plan's estimates are corrected by what stages of the same kind took in this run.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` returns seconds; its zero does not matter."""
        self._clock = clock
        self._open: dict[str, PlannedStage] = {}
        self._taken: defaultdict[str, float] = defaultdict(float)
        self._estimated: defaultdict[str, float] = defaultdict(float)
        self.jobs = 1
        self.n_stages = 0
        self.n_ran = 0
        self.n_stored = 0
        self.n_failed = 0
        self.n_blocked = 0
        self.rows: dict[str, Row] = {}
        self.awaited: dict[str, PlannedStage] = {}
        self.stopping = False

    def note(self, event: Event) -> str:  # noqa: C901, PLR0912  # one branch for each kind of event
        """Take an event in; return a line that a person should see even in a log, or nothing."""
        match event:
            case RunBegan():
                self._open = {stage.id: stage for stage in event.stages}
                self.n_stages, self.jobs = len(event.stages), event.jobs
            case StageBegan():
                self.rows[event.stage.id] = Row(stage=event.stage, since=self._clock())
            case StageProgressed():
                if event.stage.id in self.rows:
                    self.rows[event.stage.id].progress = event.progress
                if event.progress.warning:
                    return f"WARNING: {named(event.stage)}: {event.progress.warning}"
            case StageServed():
                self._close(event.stage)
                self.n_stored += 1
            case StageDone():
                self._close(event.stage)
                self.n_ran += 1
                self._taken[event.stage.kind] += event.seconds
                self._estimated[event.stage.kind] += event.stage.seconds
            case StageBroke():
                self._close(event.stage)
                self.n_failed += 1
                return f"failed: {event.failure.label}: {event.failure.error} (log: {event.failure.log})"
            case StageBlocked():
                self._close(event.stage)
                self.n_blocked += 1
            case StageAwaited():
                self.rows.pop(event.stage.id, None)
                self.awaited[event.stage.id] = event.stage
            case StageRetried():
                self.rows.pop(event.stage.id, None)
                return f"trying again: {event.failure.label}: {event.failure.error}"
            case StageDamagedFound():
                return f"damaged, made again: {named(event.stage)}: {'; '.join(event.damage[:3])}"
            case StopAsked():
                self.stopping = True
                return "stopping at once" if event.at_once else "stopping; once more to stop at once"
            case RunEnded():
                self.rows.clear()
        return ""

    def n_settled(self) -> int:
        """Return how many stages need no more work."""
        return self.n_stages - len(self._open)

    def seconds_left(self) -> float:
        """Estimate the wall time until everything is done."""
        running = [self._left_of(row) for row in self.rows.values()]
        waiting = [self._expected(stage) for stage in self._open.values() if stage.id not in self.rows]
        together = sum(running) + sum(waiting)
        return max(together / self.jobs, max(running, default=0.0))

    def elapsed(self, row: Row) -> float:
        """Return for how long a stage has run."""
        return self._clock() - row.since

    def _close(self, stage: PlannedStage) -> None:
        for known in (self._open, self.rows, self.awaited):
            known.pop(stage.id, None)

    def _expected(self, stage: PlannedStage) -> float:
        estimated = self._estimated[stage.kind]
        return stage.seconds * (self._taken[stage.kind] / estimated if estimated > 0 else 1.0)

    def _left_of(self, row: Row) -> float:
        found = row.progress
        if found is not None and found.total > 0 and found.rate > 0:
            return max(0.0, (found.total - found.done) / found.rate)
        return max(0.0, self._expected(row.stage) - self.elapsed(row))


def named(stage: PlannedStage) -> str:
    """Return kind and label."""
    return f"{stage.kind} {stage.label}"


def how_far(row: Row) -> str:
    """Return `steps 120/200, loss 3.214, 1,950 tokens/s` and the like."""
    found = row.progress
    if found is None:
        return ""
    of = f"/{found.total:,}" if found.total else ""
    return ", ".join([f"{found.unit} {found.done:,}{of}", *_measured(found)])


def _measured(found: Progress) -> Iterable[str]:
    metrics = dict(found.metrics)
    speed, mfu = metrics.pop("tokens_per_s", None), metrics.pop("mfu", None)
    for name, value in itertools.islice(metrics.items(), 3):
        yield f"{name} {value:.4g}"
    if speed is not None:
        yield f"{speed:,.0f} tokens/s"
        if mfu is not None:
            yield f"MFU {mfu:.1%}"
    elif found.rate > 0:
        yield f"{found.rate:,.3g} {found.unit}/s"


def duration(seconds: float) -> str:
    """Return `48 s`, `3 min 20 s`, `2 h 05 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3_600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3_600:,} h {whole % 3_600 // 60:02d} min"
