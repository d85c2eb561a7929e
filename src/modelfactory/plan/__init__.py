"""Experiments to stages: merged, compared with what is stored, and priced."""

from modelfactory.plan.cost import Way, note_speed
from modelfactory.plan.evaluations import checkpoint_of, plan_evaluations, with_added
from modelfactory.plan.planned import Plan, PlannedStage, State, Totals
from modelfactory.plan.planning import plan_experiments, try_plan
from modelfactory.plan.repetition import refuse_repetition
from modelfactory.plan.sources import PinnedSources, is_pinned, pin_sources, try_sources

__all__ = [
    "PinnedSources",
    "Plan",
    "PlannedStage",
    "State",
    "Totals",
    "Way",
    "checkpoint_of",
    "is_pinned",
    "note_speed",
    "pin_sources",
    "plan_evaluations",
    "plan_experiments",
    "refuse_repetition",
    "try_plan",
    "try_sources",
    "with_added",
]
