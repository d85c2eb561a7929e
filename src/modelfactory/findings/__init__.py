"""From stored stages to the tables that verdicts and reports are made of."""

from modelfactory.findings.curves import Checkpoint, TrainedStep, checkpoints, trained_steps
from modelfactory.findings.outcomes import Verdict, gather_outcomes, judge, measures_of

__all__ = [
    "Checkpoint",
    "TrainedStep",
    "Verdict",
    "checkpoints",
    "gather_outcomes",
    "judge",
    "measures_of",
    "trained_steps",
]
