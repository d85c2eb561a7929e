"""Scores of any runs of a workspace, by task, with their size and compute."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from modelfactory.experiment import variant_name
from modelfactory.findings.outcomes import stored_table
from modelfactory.findings.pareto import Point, front
from modelfactory.verdict import Estimate, Measure, Outcomes, estimate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from modelfactory.store import NamedExperiment, Record, Store

NOT_ASKED = ("dataset", "margin")
"""Fields of a task that say neither what is asked nor how: where items come from, and what would matter."""


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """One run's outcomes on one task."""

    run: str
    """Name of the experiment or import."""
    variant: str
    """Its name without the seed; told apart from another of this name that was declared otherwise."""
    seed: int
    step: int
    """Of the checkpoint; 0 for an import."""
    fingerprint: str
    """Of the evaluation."""
    checkpoint: str
    """Fingerprint of the checkpoint."""
    measure: Measure
    """The primary metric of the task, without a margin."""
    asked: str
    """Digest of the items and of how they are asked: scores are comparable where it is equal."""
    n_parameters: int
    flops: float | None
    """Spent on training up to the checkpoint, what it started from included; None where that is unknown."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One variant on one task."""

    estimate: Estimate
    """Score, mean over seeds, with its interval."""
    runs: tuple[str, ...]
    asked: str
    n_parameters: int
    flops: float | None
    """Training FLOPs of one run."""
    on_front: bool
    """No other variant scores as well for fewer FLOPs, nor better for as many."""

    def to_json(self) -> dict[str, Any]:
        """Return the row as `factory compare --json` prints it."""
        found = self.estimate
        return {
            "variant": found.variant,
            "runs": list(self.runs),
            "task": found.measure.task,
            "metric": found.measure.metric,
            "unit": found.measure.unit,
            "higher_is_better": found.measure.higher_is_better,
            "items": self.asked,
            "step": found.step,
            "value": found.value,
            "interval": None if found.interval is None else list(found.interval),
            "interval_covers": found.covers,
            "n_seeds": found.n_seeds,
            "n_items": found.n_items,
            "n_parameters": self.n_parameters,
            "flops": self.flops,
            "pareto": self.on_front,
        }


def leaderboard(store: Store, runs: Sequence[NamedExperiment], *, step: int | None = None) -> list[Row]:
    """Rank variants on each task, the best first.

    Runs that were asked other items of a task, or asked otherwise, are ranked apart and never averaged.

    Args:
        store: of the workspace.
        runs: to rank; those without stored evaluations have no row.
        step: of the checkpoints; by default the last one of each run that was evaluated on the task.
    """
    every = evaluated(store, runs, step=step)
    found = list({(e.variant, e.seed, e.measure.task, e.asked): e for e in every}.values())
    rows: list[Row] = []
    for key in dict.fromkeys((each.measure.task, each.asked) for each in found):
        rows += _ranked(store, [each for each in found if (each.measure.task, each.asked) == key])
    return rows


def evaluated(
    store: Store, runs: Sequence[NamedExperiment], *, step: int | None = None
) -> Iterator[Evaluated]:
    """Yield what is stored of runs on each of their tasks, at one step each."""
    variants = _variants(runs)
    for run in runs:
        last: dict[str, tuple[int, Record]] = {}
        for role, fingerprint in run.stages.items():
            at = _step_of(role)
            record = store.record(fingerprint)
            is_wanted = step is None or at == step
            if is_wanted and record is not None and (record.kind, record.state) == ("evaluate", "stored"):
                task = role.rpartition("@")[0]
                last[task] = max(last.get(task, (at, record)), (at, record), key=itemgetter(0))
        for at, record in last.values():
            yield _evaluated(store, run, variants[run.name], at, record)


def _step_of(role: str) -> int:
    step = role.rpartition("@")[2]
    return int(step) if step.isdecimal() else 0


def _variants(runs: Iterable[NamedExperiment]) -> dict[str, str]:
    """Name the variant of each run; equal names of what was declared otherwise get a number."""
    meanings: dict[str, list[str]] = {}
    named = {}
    for run in runs:
        spec = json.loads(run.spec_json)
        spec.pop("name", None)
        if isinstance(spec.get("training"), dict):
            spec["training"].pop("seed", None)
        meaning, name = json.dumps(spec, sort_keys=True), variant_name(run.name)
        known = meanings.setdefault(name, [])
        if meaning not in known:
            known.append(meaning)
        number = known.index(meaning)
        named[run.name] = name if number == 0 else f"{name} #{number + 1}"
    return named


def _evaluated(store: Store, run: NamedExperiment, variant: str, at: int, record: Record) -> Evaluated:
    directory = store.stage_dir(record.fingerprint)
    result = json.loads((directory / "result.json").read_text(encoding="utf-8"))
    metric = result["metrics"][result["primary_metric"]]
    checkpoint = record.inputs["checkpoint"]
    facts = json.loads((store.stage_dir(checkpoint) / "model.json").read_text(encoding="utf-8"))
    return Evaluated(
        run=run.name,
        variant=variant,
        seed=int((json.loads(run.spec_json).get("training") or {}).get("seed", 0)),
        step=at,
        fingerprint=record.fingerprint,
        checkpoint=checkpoint,
        measure=Measure(
            task=result["task"],
            metric=result["primary_metric"],
            higher_is_better=metric["higher_is_better"],
            unit=metric["unit"],
        ),
        asked=_asked(store, record),
        n_parameters=int(facts["n_parameters"]),
        flops=_flops(store, checkpoint),
    )


def _asked(store: Store, record: Record) -> str:
    ids = pq.read_table(store.stage_dir(record.fingerprint) / "items.parquet", columns=["item_id"])
    task = json.loads(record.spec_json).get("task", {})
    how = {name: value for name, value in task.items() if name not in NOT_ASKED}
    text = json.dumps([how, sorted(ids["item_id"].to_pylist())], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _flops(store: Store, checkpoint: str) -> float | None:
    """Return the FLOPs of training, summed over the chain of starts; None where one of them is unknown."""
    record = store.record(checkpoint)
    facts = store.stage_dir(checkpoint) / "model.json"
    if record is None or record.kind != "train" or not facts.exists():
        return None
    known = json.loads(facts.read_text(encoding="utf-8"))
    own = float(known["n_tokens_seen"] * known["flops_per_token"])
    start = record.inputs.get("start")
    before = 0.0 if start is None else _flops(store, start)
    return None if before is None else own + before


def _ranked(store: Store, group: Sequence[Evaluated]) -> list[Row]:
    tables = [outcomes_of(store, each) for each in group]
    best_first = group[0].measure.higher_is_better
    scored = estimate(Outcomes.concatenate(tables), measures=[group[0].measure])
    rows = [_row(found, [each for each in group if each.variant == found.variant]) for found in scored]
    rows.sort(key=lambda row: row.estimate.value, reverse=best_first)
    points = [Point(cost=row.flops, quality=row.estimate.value) for row in rows if row.flops is not None]
    kept = set(front(points, higher_is_better=best_first))
    return [
        replace(row, on_front=row.flops is not None and Point(row.flops, row.estimate.value) in kept)
        for row in rows
    ]


def outcomes_of(store: Store, each: Evaluated) -> Outcomes:
    """Read the items of an evaluation."""
    folder = store.stage_dir(each.fingerprint)
    return stored_table(each.measure, folder, variant=each.variant, seed=each.seed, step=each.step)


def _row(found: Estimate, group: Sequence[Evaluated]) -> Row:
    compared = [each for each in group if each.step == found.step]
    return Row(
        estimate=found,
        runs=tuple(each.run for each in compared),
        asked=group[0].asked,
        n_parameters=compared[0].n_parameters,
        flops=compared[0].flops,
        on_front=False,
    )
