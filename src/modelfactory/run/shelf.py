"""What is stored and may be served instead of being made again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelfactory.run import events as told
from modelfactory.run.making import is_current

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from modelfactory.plan import PlannedStage
    from modelfactory.store import Record, Store


class Shelf:
    """The stored stages of a plan, checked before they are used."""

    def __init__(
        self,
        stages: Iterable[PlannedStage],
        store: Store,
        options: told.RunOptions,
        tell: Callable[[told.Event], None],
    ) -> None:
        """Look up all stages at once."""
        self._store = store
        self._keep = options.on_stale == "keep"
        self._tell = tell
        listed = list(stages)
        self._records: dict[str, Record] = store.states([stage.id for stage in listed])
        self._damaged: set[str] = set()
        outside = {i for stage in listed for i in stage.inputs.values()} - {stage.id for stage in listed}
        self.contents: dict[str, str] = {
            found.fingerprint: found.content_sha256 for found in store.states(sorted(outside)).values()
        }
        """Fingerprint -> content_sha256 of the stages that are there now."""

    def look_again(self, stages: Iterable[PlannedStage]) -> None:
        """Read the records of stages that another process may have made."""
        self._records |= self._store.states([stage.id for stage in stages])

    def servable(self, stage: PlannedStage) -> Record | None:
        """Return the record of a stage whose stored bytes may be used; its parents are there."""
        record = self._records.get(stage.id)
        return record if record is not None and self.fits(stage, record) else None

    def fits(self, stage: PlannedStage, record: Record) -> bool:
        """Say whether a record is what a run today would make, and its bytes are whole."""
        if not self._keep and not is_current(stage, record, self.contents):
            return False
        damage = self._store.check_served(stage.id)
        if damage and stage.id not in self._damaged:
            self._damaged.add(stage.id)
            self._tell(told.StageDamagedFound(stage=stage, damage=tuple(str(each) for each in damage)))
        return not damage

    def clear(self, stage: PlannedStage) -> None:
        """Remove damaged bytes, so that nobody meets them should the stage fail; needs the stage's claim."""
        if stage.id in self._damaged:
            self._damaged.discard(stage.id)
            self._store.discard(stage.id)
