"""Which stage is next: readiness, order, and what a failure blocks. Knows no process and no disk."""

from __future__ import annotations

import heapq
from collections import defaultdict
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from modelfactory.plan import PlannedStage

Lane: TypeAlias = Literal["continue", "evaluate", "prepare", "begin"]
_ORDER: tuple[Lane, ...] = ("continue", "evaluate", "prepare", "begin")
"""Continue a training chain whose trainer is warm; else look at its checkpoints; else prepare what others
wait for; else begin another chain."""
_EVALUATE_FIRST: tuple[Lane, ...] = ("evaluate", "continue", "prepare", "begin")


class Agenda:
    """The stages of a plan that are not settled yet.

    Every stage is in one place: waiting for parents, ready, taken, or settled (there, failed or blocked).
    """

    def __init__(self, stages: Sequence[PlannedStage], jobs: int) -> None:
        """Take over the stages, which come parents first."""
        self._jobs = jobs
        self._stages = {stage.id: stage for stage in stages}
        self._index = {stage.id: n for n, stage in enumerate(stages)}
        self._waits: dict[str, set[str]] = {}
        self._children: defaultdict[str, list[str]] = defaultdict(list)
        self._ready: dict[Lane, list[tuple[float, int, str]]] = {lane: [] for lane in _ORDER}
        self._taken: dict[str, str] = {}
        self._warm: set[str] = set()
        self._unsettled = set(self._stages)
        self._there: set[str] = set()
        self._failed: set[str] = set()
        self.blocked: dict[str, set[str]] = {}
        """Stage that cannot run -> the failed stages it hangs on."""
        for stage in stages:
            self._await_parents(stage)
        self._ahead = self._seconds_ahead(stages)

    def unsettled(self) -> list[str]:
        """Return the stages that are neither there nor failed nor blocked, in the order of the plan."""
        return sorted(self._unsettled, key=self._index.__getitem__)

    def is_settled(self) -> bool:
        """Say whether every stage is there, failed or blocked."""
        return not self._unsettled

    def free_of_parents(self) -> list[PlannedStage]:
        """Return the stages that wait for nothing, in the order of the plan; for the start of a run."""
        return [self._stages[name] for name, waits in self._waits.items() if not waits]

    def push(self, stage: PlannedStage) -> None:
        """Make a stage ready to be taken: its parents are there, and it must run."""
        self._taken.pop(stage.id, None)
        # nothing trains on from an evaluation: the cheap ones first, so that most is known soon
        first = stage.seconds if stage.kind == "evaluate" else -self._ahead[stage.id]
        entry = (first, self._index[stage.id], stage.id)
        heapq.heappush(self._ready[self._lane(stage)], entry)

    def take(self) -> PlannedStage | None:
        """Return the ready stage that should run next, or None."""
        for lane in self._lanes():
            if self._ready[lane]:
                stage = self._stages[heapq.heappop(self._ready[lane])[2]]
                self._taken[stage.id] = stage.kind
                return stage
        return None

    def wait_for(self, stage: PlannedStage, parent: str) -> bool:
        """Hold a stage back for a parent it turned out to need; False when the parent is there already."""
        if parent in self._there or parent not in self._stages:
            return False
        self._waits[stage.id].add(parent)
        self._children[parent].append(stage.id)
        return True

    def let_go(self, stage: PlannedStage) -> None:
        """Take a stage off the jobs without putting it back: another process makes it."""
        self._taken.pop(stage.id, None)

    def causes(self, fingerprint: str) -> set[str]:
        """Return the failed stages that keep this one from being there; none when nothing does."""
        return {fingerprint} if fingerprint in self._failed else self.blocked.get(fingerprint, set())

    def settle(self, fingerprint: str, *, ran_here: bool) -> list[PlannedStage]:
        """Note that a stage is there; return the stages that wait for nothing now."""
        self._leave(fingerprint)
        self._there.add(fingerprint)
        if ran_here:
            self._warm.add(fingerprint)
        freed = []
        for child in self._children[fingerprint]:
            waits = self._waits[child]
            if fingerprint in waits:
                waits.discard(fingerprint)
                if not waits and child in self._unsettled:
                    freed.append(self._stages[child])
        return freed

    def fail(self, fingerprint: str) -> list[PlannedStage]:
        """Note that a stage failed for good; return the stages that are blocked from now on."""
        self._leave(fingerprint)
        self._failed.add(fingerprint)
        return self._block(self._children[fingerprint], fingerprint)

    def block(self, stage: PlannedStage, cause: str) -> list[PlannedStage]:
        """Note that a stage cannot run because `cause` failed; return all that is blocked from now on."""
        return self._block([stage.id], cause)

    def _block(self, names: Iterable[str], cause: str) -> list[PlannedStage]:
        newly, pending = [], list(names)
        while pending:
            name = pending.pop()
            if name in self._there or cause in self.blocked.get(name, ()):
                continue
            if name not in self.blocked:
                newly.append(self._stages[name])
            self.blocked.setdefault(name, set()).add(cause)
            self._leave(name)
            pending += self._children[name]
        return newly

    def _leave(self, fingerprint: str) -> None:
        self._taken.pop(fingerprint, None)
        self._unsettled.discard(fingerprint)

    def _await_parents(self, stage: PlannedStage) -> None:
        # A stored state needs no earlier state; only one that is made anew continues from it.
        parents = stage.inputs.values() if stage.state == "stored" else stage.parents()
        self._waits[stage.id] = {parent for parent in parents if parent in self._stages}
        for parent in self._waits[stage.id]:
            self._children[parent].append(stage.id)

    def _lane(self, stage: PlannedStage) -> Lane:
        if stage.kind == "evaluate":
            return "evaluate"
        if stage.kind != "train":
            return "prepare"
        return "continue" if stage.resumes in self._warm else "begin"

    def _lanes(self) -> tuple[Lane, ...]:
        """Keep one job for evaluations while others train, so that checkpoints are judged as they land."""
        kinds = list(self._taken.values())
        keep_one = self._jobs > 1 and "train" in kinds and "evaluate" not in kinds
        return _EVALUATE_FIRST if keep_one else _ORDER

    def _seconds_ahead(self, stages: Sequence[PlannedStage]) -> Mapping[str, float]:
        """Return for each stage the estimated seconds of the longest way from its start to an end."""
        ahead: dict[str, float] = {}
        for stage in reversed(stages):
            ahead[stage.id] = stage.seconds + _longest(ahead, self._children[stage.id])
        return ahead


def _longest(ahead: Mapping[str, float], children: Iterable[str]) -> float:
    return max((ahead[child] for child in children), default=0.0)
