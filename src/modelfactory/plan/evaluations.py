"""Tasks asked of one checkpoint that is there already, whatever experiment or import made it.

Their stages are those that an experiment with these tasks would have, so neither makes the other's anew.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from modelfactory.plan.cost import Prices, Way, totals
from modelfactory.plan.planned import Plan
from modelfactory.plan.planning import Graph
from modelfactory.plan.sources import pin_tasks
from modelfactory.plan.states import with_states
from modelfactory.store import NamedExperiment
from modelfactory.tokens import TokenizerFile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from modelfactory.evaluate import Task
    from modelfactory.store import Record, Store

ADDED = "added:"
"""Begins the role of an evaluation that no experiment file asks for; `factory run` leaves those alone."""


@dataclass(frozen=True, kw_only=True)
class StoredCheckpoint:
    """A training or import stage that is stored."""

    fingerprint: str
    tokenizer: str
    """Fingerprint of its tokenizer."""
    step: int
    """Optimizer steps taken; 0 for an import."""
    runs: tuple[NamedExperiment, ...]
    """Experiments and imports that have it; several where runs share a beginning."""

    @property
    def label(self) -> str:
        """For people."""
        name = self.runs[0].name if self.runs else self.fingerprint[:10]
        return f"{name} at step {self.step:,}" if self.step else name


def checkpoint_of(store: Store, record: Record) -> StoredCheckpoint:
    """Return what a record of a training or import stage says about its checkpoint."""
    fingerprint = record.fingerprint
    return StoredCheckpoint(
        fingerprint=fingerprint,
        tokenizer=record.inputs["tokenizer"],
        step=int(json.loads(record.spec_json).get("to_step", 0)),
        runs=tuple(each for each in store.experiments() if fingerprint in each.stages.values()),
    )


def plan_evaluations(
    store: Store, checkpoint: StoredCheckpoint, tasks: Sequence[Task], *, jobs: int, threads: int
) -> Plan:
    """Return the stages that evaluate a checkpoint, with what they read besides it.

    Its roles are those of each run that has the checkpoint: `added:TASK@STEP`.

    Raises:
        InvalidInputs: every fault of what the tasks read.
    """
    tokenizer = _tokenizer_of(store, checkpoint)
    graph = Graph(pin_tasks(tasks, tokenizer, store.pins))
    step = checkpoint.step
    have = {f"train@{step}": checkpoint.fingerprint, "tokenizer": checkpoint.tokenizer}
    made = graph.evaluations(checkpoint.label, step, tuple(tasks), have, tokenizer)
    named = {ADDED + role: fingerprint for role, fingerprint in made.items()}
    names = [run.name for run in checkpoint.runs] or [checkpoint.label]
    prices = Prices(store, threads=threads, graph=graph.stages, pins=graph.pins)
    priced = [replace(prices.priced(each), experiments=tuple(names)) for each in graph.stages.values()]
    stages = with_states(priced, store, dict.fromkeys(names, named))
    return Plan(
        stages=tuple(stages),
        totals=totals(stages, (), prices, jobs=jobs, way=Way()),
        pins=graph.pins,
        experiments=(),
        roles=dict.fromkeys(names, named),
        assumptions=prices.assumptions(stages),
    )


def _tokenizer_of(store: Store, checkpoint: StoredCheckpoint) -> TokenizerFile | None:
    """Return where its tokenizer was read: a chat template may lie beside it. None: it was trained here."""
    record = store.record(checkpoint.tokenizer)
    spec: dict[str, Any] = {} if record is None else json.loads(record.spec_json)
    if "eos_token" not in spec:
        return None
    return TokenizerFile(path=spec["path"], eos_token=spec["eos_token"])


def with_added(store: Store, run: str, stages: Mapping[str, str]) -> dict[str, str]:
    """Return the stages of a run with the evaluations that were added to its checkpoints.

    Args:
        store: of the workspace.
        run: its name.
        stages: role -> fingerprint, as its file plans them now.
    """
    before = next((each for each in store.experiments() if each.name == run), None)
    added = {} if before is None else {r: fp for r, fp in before.stages.items() if r.startswith(ADDED)}
    planned = set(stages.values())
    records = store.states(added.values())
    fits = {
        role: fp
        for role, fp in added.items()
        if fp in records and fp not in planned and records[fp].inputs["checkpoint"] in planned
    }
    return {**stages, **fits}
