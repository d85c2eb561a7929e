"""Carry out a plan: serve what is stored, run the rest, retry, record failures, go on."""

from modelfactory.run.driver import carry_out
from modelfactory.run.events import (
    Event,
    Failure,
    Outcome,
    RunBegan,
    RunEnded,
    RunOptions,
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

__all__ = [
    "Event",
    "Failure",
    "Outcome",
    "RunBegan",
    "RunEnded",
    "RunOptions",
    "StageAwaited",
    "StageBegan",
    "StageBlocked",
    "StageBroke",
    "StageDamagedFound",
    "StageDone",
    "StageProgressed",
    "StageRetried",
    "StageServed",
    "StopAsked",
    "carry_out",
]
