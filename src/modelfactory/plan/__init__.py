"""Experiments to stages: merged, compared with what is stored, and priced."""

from modelfactory.plan.cost import Way, note_speed
from modelfactory.plan.planned import Plan, PlannedStage, State, Totals
from modelfactory.plan.planning import plan_experiments
from modelfactory.plan.repetition import refuse_repetition
from modelfactory.plan.sources import PinnedSources, pin_sources

__all__ = [
    "PinnedSources",
    "Plan",
    "PlannedStage",
    "State",
    "Totals",
    "Way",
    "note_speed",
    "pin_sources",
    "plan_experiments",
    "refuse_repetition",
]
