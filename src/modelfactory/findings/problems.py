"""What a reader should know before believing a verdict."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from modelfactory.plan import Plan
    from modelfactory.store import Store

MOST_REASONS = 3
"""Named in the sentence on stale stages."""


@dataclass(frozen=True, kw_only=True)
class Stale:
    """Stages whose stored results were made by other code or inputs than those of now."""

    n: int
    n_stages: int
    """Of the whole plan."""
    reasons: Sequence[str]
    """Each once; of stages that only wait for a stale one, none."""

    def sentence(self) -> str:
        """Return one line for a person; empty where nothing is stale."""
        if not self.n:
            return ""
        more = f" +{len(self.reasons) - MOST_REASONS} more" if len(self.reasons) > MOST_REASONS else ""
        why = "; ".join(self.reasons[:MOST_REASONS]) + more
        return (
            f"{self.n} of {self.n_stages} stages were made by other code or inputs: "
            f"{why} (run again to rebuild)"
        )


def stale_of(plan: Plan, made: Collection[str] = ()) -> Stale:
    """Return what is stale of a plan, without the stages that were `made` since it was drawn up."""
    stale = [stage for stage in plan.stages if stage.state == "stale" and stage.id not in made]
    own = [stage.reason for stage in stale if not stage.waits_on]
    reasons = tuple(dict.fromkeys(own or [stage.reason for stage in stale]))
    return Stale(n=len(stale), n_stages=len(plan.stages), reasons=reasons)


def short_vocabularies(plan: Plan, store: Store) -> Iterator[str]:
    """Say of each stored tokenizer that found fewer tokens than were asked for."""
    for stage in plan.stages:
        path = store.stage_dir(stage.id) / "tokenizer_facts.json"
        if stage.kind == "tokenizer" and path.exists():
            facts = json.loads(path.read_text(encoding="utf-8"))
            asked, found = facts.get("asked"), facts.get("vocab_size")
            if asked is not None and found is not None and found < asked:
                yield (
                    f"The tokenizer ({stage.label}) has a vocabulary of {found:,} "
                    f"in place of the {asked:,} asked for."
                )
