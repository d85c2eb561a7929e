"""The loop that carries out a plan."""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter, deque
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelfactory.engine.protocol import Failed, Finished, Reported, Started
from modelfactory.errors import ClaimLost, CommandError, DiskFull, FactoryError
from modelfactory.run import events as told
from modelfactory.run.agenda import Agenda
from modelfactory.run.ledger import Ledger
from modelfactory.run.making import failed_here, job_of, record_of
from modelfactory.run.shelf import Shelf
from modelfactory.run.signals import StopRequests, stop_requests
from modelfactory.store import Claim, this_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from modelfactory.engine.protocol import Engine, Event
    from modelfactory.plan import Plan, PlannedStage  # noqa: TC004  # a type only
    from modelfactory.store import Record, Store

BEAT_EVERY_S = 1.0
"""How often others hear that this process lives and how far its stages are."""
LOOK_EVERY_S = 0.5
"""How often to look whether another process has finished a stage that is waited for."""


def _nobody_listens(event: told.Event) -> None:
    """Stand in for a display."""


def carry_out(
    plan: Plan,
    store: Store,
    engine: Engine,
    options: told.RunOptions | None = None,
    on_event: Callable[[told.Event], None] = _nobody_listens,
) -> told.Outcome:
    """Make every stage of a plan that is not stored yet.

    Safe to be stopped or killed at any moment and begun again, and to run in several processes over one
    workspace at once: each stage is made by one of them. A stage that fails becomes a record and blocks what
    hangs on it; all else goes on. SIGINT and SIGTERM end the run; a second one at once.

    Raises:
        CommandError: stored stages are stale and the options refuse that.
        WorkspaceError: the workspace can no longer be written.
    """
    chosen = options or told.RunOptions()
    _refuse_stale(plan, chosen)
    for digest, pin in plan.pins.items():
        store.write_pin(digest, json.dumps(pin.to_json(), ensure_ascii=False))
    run = _Run(plan, store, engine, chosen, on_event)
    with stop_requests(engine.wake) as requests:
        try:
            return run.go(requests)
        finally:
            engine.kill()
            with contextlib.suppress(DiskFull):
                store.leave(run.holder)


def _refuse_stale(plan: Plan, options: told.RunOptions) -> None:
    stale = [stage for stage in plan.stages if stage.state == "stale"]
    if options.on_stale == "fail" and stale:
        first = "; ".join(f"{stage.kind} {stage.label}: {stage.reason}" for stage in stale[:3])
        raise CommandError(
            place="--on-stale fail",
            found=f"{len(stale)} stale stages ({first})",
            wanted="none",
            remedy="Use --on-stale rebuild to make them again, or keep to serve them as they are.",
        )


@dataclass
class _Running:
    """A stage that a worker has."""

    stage: PlannedStage
    claim: Claim
    aside: Path
    attempt: int
    progress: dict[str, Any] = field(default_factory=dict)


class _Run:
    """One run, and the steps of its loop."""

    def __init__(
        self,
        plan: Plan,
        store: Store,
        engine: Engine,
        options: told.RunOptions,
        tell: Callable[[told.Event], None],
    ) -> None:
        self.holder = this_process()
        self._stages = plan.stages
        self._store = store
        self._engine = engine
        self._options = options
        self._tell = tell
        self._agenda = Agenda(plan.stages, engine.jobs)
        self._shelf = Shelf(plan.stages, store, options, tell)
        self._ledger = Ledger(plan.stages, store)
        self._running: dict[str, _Running] = {}
        self._awaited: dict[str, PlannedStage] = {}
        self._attempts: Counter[str] = Counter()
        self._n_stops = 0
        self._kill_at = 0.0
        self._next_beat = 0.0
        self._next_look = 0.0

    def go(self, requests: StopRequests) -> told.Outcome:
        """Run the loop to its end."""
        began = time.monotonic()
        self._tell(told.RunBegan(stages=self._stages, jobs=self._engine.jobs, threads=self._engine.threads))
        self._offer(self._agenda.free_of_parents())
        while self._goes_on():
            self._fill()
            self._hear(self._engine.wait(self._patience()))
            self._beat()
            self._look_at_awaited()
            self._heed(requests)
        seconds = time.monotonic() - began
        outcome = self._ledger.outcome(self._agenda, seconds, stopped=self._n_stops > 0)
        self._tell(told.RunEnded(outcome=outcome))
        return outcome

    def _goes_on(self) -> bool:
        return bool(self._running) if self._halted() else not self._agenda.is_settled()

    def _halted(self) -> bool:
        """Say whether nothing more may start."""
        return self._n_stops > 0 or (bool(self._ledger.failures) and not self._options.keep_going)

    def _patience(self) -> float:
        """Return how long to wait for the engine before there is something else to do."""
        if not self._goes_on():
            return 0.0
        if self._n_stops:
            return max(0.01, min(BEAT_EVERY_S, self._kill_at - time.monotonic()))
        assert self._running or self._awaited, "stages are left, and nothing can bring them on"
        return LOOK_EVERY_S if self._awaited else BEAT_EVERY_S

    def _offer(self, stages: Iterable[PlannedStage]) -> None:
        """Serve stages whose parents are there, and all that this frees in turn; make the others ready."""
        pending = deque(stages)
        while pending:
            stage = pending.popleft()
            record = self._shelf.servable(stage)
            if record is not None:
                pending += self._serve(stage, record)
            elif not self._lacks_earlier_state(stage):
                self._agenda.push(stage)

    def _serve(self, stage: PlannedStage, record: Record) -> list[PlannedStage]:
        self._shelf.contents[stage.id] = record.content_sha256
        self._ledger.stored.append(stage.id)
        self._tell(told.StageServed(stage=stage))
        return self._agenda.settle(stage.id, ran_here=False)

    def _lacks_earlier_state(self, stage: PlannedStage) -> bool:
        """Hold back a stage that was planned as stored and must run after all, until it can be continued."""
        if not stage.resumes:
            return False
        causes = self._agenda.causes(stage.resumes)
        for cause in causes:
            self._tell_blocked(self._agenda.block(stage, cause), cause)
        return bool(causes) or self._agenda.wait_for(stage, stage.resumes)

    def _fill(self) -> None:
        """Give every free worker the stage that should run next."""
        while not self._halted() and self._engine.free() > 0:
            stage = self._agenda.take()
            if stage is None:
                return
            try:
                self._start(stage)
            except DiskFull as error:
                self._give_up(stage, failed_here(stage, error), None)

    def _start(self, stage: PlannedStage) -> None:
        claim = self._store.claim(stage.id, self.holder)
        if claim is None:
            self._await(stage)
        elif claim.stored is not None and self._shelf.fits(stage, claim.stored):
            self._store.release(claim)  # another process made it since the plan was drawn up
            self._offer(self._serve(stage, claim.stored))
        else:
            self._submit(stage, claim)

    def _submit(self, stage: PlannedStage, claim: Claim) -> None:
        self._shelf.clear(stage)
        if not self._attempts[stage.id]:
            self._store.log_path(stage.id).unlink(missing_ok=True)
        self._attempts[stage.id] += 1
        aside = self._store.new_aside(stage.id)
        self._running[stage.id] = _Running(stage, claim, aside, self._attempts[stage.id])
        self._engine.submit(job_of(stage, aside, self._store, self._engine, self._options))

    def _await(self, stage: PlannedStage) -> None:
        """Leave a stage to the other process that makes it."""
        self._agenda.let_go(stage)
        self._awaited[stage.id] = stage
        self._tell(told.StageAwaited(stage=stage))

    def _look_at_awaited(self) -> None:
        """Offer again the stages that no other living process holds any more."""
        if not self._awaited or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK_EVERY_S
        held = {each.fingerprint for each in self._store.running() if each.alive}
        freed = [self._awaited.pop(name) for name in list(self._awaited) if name not in held]
        self._shelf.look_again(freed)
        self._offer(freed)

    def _hear(self, heard: Iterable[Event]) -> None:
        for event in heard:
            run = self._running.get(event.fingerprint)
            if run is None:
                continue  # of an earlier run with this engine, which ended in an error
            if isinstance(event, Started):
                self._tell(told.StageBegan(stage=run.stage, attempt=run.attempt, pid=event.pid))
            elif isinstance(event, Reported):
                run.progress = asdict(event.progress)
                self._tell(told.StageProgressed(stage=run.stage, progress=event.progress))
            elif isinstance(event, Finished):
                self._finish(self._running.pop(event.fingerprint), event)
            else:
                self._fail(self._running.pop(event.fingerprint), event)

    def _finish(self, run: _Running, result: Finished) -> None:
        stage = run.stage
        try:
            record = self._store.publish(run.claim, run.aside, self._record(stage, result))
        except ClaimLost:
            self._await(stage)
        except FactoryError as error:
            self._fail(run, failed_here(stage, error))
        else:
            self._shelf.contents[stage.id] = record.content_sha256
            self._ledger.ran.append(stage.id)
            self._tell(told.StageDone(stage=stage, seconds=result.seconds, n_bytes=record.n_bytes))
            self._offer(self._agenda.settle(stage.id, ran_here=True))

    def _fail(self, run: _Running, result: Failed) -> None:
        """Try again, or give up; a stage that was stopped is left for the next run."""
        again = run.attempt <= self._options.retries and result.kind != "refused"
        if self._n_stops and (result.kind == "stopped" or again):
            self._store.release(run.claim)
        elif again:
            self._store.release(run.claim)
            failure = self._ledger.failure(run.stage, result, run.attempt)
            self._tell(told.StageRetried(stage=run.stage, failure=failure))
            self._agenda.push(run.stage)
        else:
            self._give_up(run.stage, result, run.claim)

    def _give_up(self, stage: PlannedStage, result: Failed, claim: Claim | None) -> None:
        """Record a failure and block what hangs on it."""
        if claim is not None:
            with contextlib.suppress(ClaimLost, DiskFull):  # a full disk takes no record either
                self._store.fail(claim, self._record(stage, result))
        failure = self._ledger.failure(stage, result, self._attempts[stage.id])
        self._ledger.failures.append(failure)
        self._tell(told.StageBroke(stage=stage, failure=failure))
        self._tell_blocked(self._agenda.fail(stage.id), stage.id)

    def _tell_blocked(self, stages: Iterable[PlannedStage], cause: str) -> None:
        for stage in stages:
            self._tell(told.StageBlocked(stage=stage, cause=self._ledger.stage(cause)))

    def _record(self, stage: PlannedStage, result: Finished | Failed) -> Record:
        return record_of(
            stage,
            result,
            self._shelf.contents,
            host=self.holder.host,
            log=self._store.log_path(stage.id),
            attempt=self._attempts[stage.id],
        )

    def _beat(self) -> None:
        """Let others know that this process lives, and how far it is."""
        if not self._running or time.monotonic() < self._next_beat:
            return
        self._next_beat = time.monotonic() + BEAT_EVERY_S
        with contextlib.suppress(DiskFull):
            self._store.heartbeat(self.holder, {name: run.progress for name, run in self._running.items()})

    def _heed(self, requests: StopRequests) -> None:
        """Ask running stages to end; kill them when asked twice, or when they take too long."""
        if requests.n_asked > self._n_stops:
            if not self._n_stops:
                self._kill_at = time.monotonic() + self._options.grace_s
                self._engine.stop()
            self._n_stops = requests.n_asked
            self._tell(told.StopAsked(at_once=self._n_stops > 1))
        if self._n_stops > 1 or (self._n_stops and time.monotonic() >= self._kill_at):
            self._engine.kill()
