"""Engines run stages: worker processes on this machine."""

from modelfactory.engine.local import LocalEngine, n_cores
from modelfactory.engine.protocol import Engine, Event, Failed, Finished, Job, Reported, Started

__all__ = ["Engine", "Event", "Failed", "Finished", "Job", "LocalEngine", "Reported", "Started", "n_cores"]
