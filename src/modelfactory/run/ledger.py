"""How the stages of a run ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelfactory.run.events import Failure, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable

    from modelfactory.engine.protocol import Failed
    from modelfactory.plan import PlannedStage
    from modelfactory.run.agenda import Agenda
    from modelfactory.store import Store


class Ledger:
    """Collects what `Outcome` tells in the end."""

    def __init__(self, stages: Iterable[PlannedStage], store: Store) -> None:
        """Begin with nothing done."""
        self._stages = {stage.id: stage for stage in stages}
        self._store = store
        self.ran: list[str] = []
        self.stored: list[str] = []
        self.failures: list[Failure] = []

    def stage(self, fingerprint: str) -> PlannedStage:
        """Return a stage of the plan."""
        return self._stages[fingerprint]

    def failure(self, stage: PlannedStage, result: Failed, attempts: int) -> Failure:
        """Return a failure for people."""
        return Failure(
            fingerprint=stage.id,
            label=_named(stage),
            kind=result.kind,
            error=result.error,
            log=self._store.log_path(stage.id),
            log_tail=result.log_tail,
            attempts=attempts,
        )

    def outcome(self, agenda: Agenda, seconds: float, *, stopped: bool) -> Outcome:
        """Return how the run ended."""
        causes = {
            name: tuple(sorted(_named(self._stages[cause]) for cause in found))
            for name, found in agenda.blocked.items()
        }
        return Outcome(
            ran=tuple(self.ran),
            stored=tuple(self.stored),
            failed=tuple(self.failures),
            blocked=causes,
            left=tuple(agenda.unsettled()),
            seconds=seconds,
            stopped=stopped,
        )


def _named(stage: PlannedStage) -> str:
    return f"{stage.kind} {stage.label}"
