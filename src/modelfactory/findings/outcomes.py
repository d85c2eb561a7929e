"""Outcomes of items, as evaluations left them in the store, and the verdict on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from modelfactory.errors import CommandError
from modelfactory.verdict import Finding, Measure, Outcomes, compare

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from modelfactory.evaluate import Task
    from modelfactory.experiment import Comparison, Experiment
    from modelfactory.store import Store


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What was found, and what could not be looked at."""

    findings: Sequence[Finding]
    missing: tuple[str, ...]
    """Evaluations that are not stored, as `experiment: task at step`."""
    step: int | None
    """Step compared; None: the last of each run."""


def measures_of(experiments: Iterable[Experiment]) -> list[Measure]:
    """Return the primary measure of every task, each once."""
    tasks: dict[str, Task] = {}
    for experiment in experiments:
        tasks |= {task.name: task for task in experiment.evaluations}
    return [
        Measure(
            task=task.name,
            metric=task.primary_metric,
            higher_is_better=task.higher_is_better,
            margin=task.margin,
            unit=task.unit,
        )
        for task in tasks.values()
    ]


def gather_outcomes(
    experiments: Iterable[Experiment], roles: Mapping[str, Mapping[str, str]], store: Store, step: int | None
) -> tuple[Outcomes, tuple[str, ...]]:
    """Read the items of every experiment's checkpoint at `step`, or at its last.

    Returns:
        The table of outcomes, and the evaluations that are not stored.
    """
    wanted = [
        (experiment, task, at, roles[experiment.name].get(f"{task.name}@{at}"))
        for experiment in experiments
        for at in (step if step is not None else experiment.training.checkpoint_steps[-1],)
        for task in experiment.evaluations
    ]
    stored = store.states([fingerprint for *_, fingerprint in wanted if fingerprint])
    tables, missing = [], []
    for experiment, task, at, fingerprint in wanted:
        if fingerprint is None or fingerprint not in stored:
            missing.append(f"{experiment.name}: {task.name} at step {at:,}")
        else:
            tables.append(_table(experiment, task, at, store, fingerprint))
    return Outcomes.concatenate(tables), tuple(missing)


def _table(experiment: Experiment, task: Task, step: int, store: Store, fingerprint: str) -> Outcomes:
    (measure,) = (each for each in measures_of([experiment]) if each.task == task.name)
    folder = store.stage_dir(fingerprint)
    seed = experiment.training.seed
    return stored_table(measure, folder, variant=experiment.variant, seed=seed, step=step)


def stored_table(measure: Measure, folder: Path, *, variant: str, seed: int, step: int) -> Outcomes:
    """Read the items of one stored evaluation."""
    columns = ["item_id", "cluster", "value", "weight"]
    items = pq.read_table(folder / "items.parquet", columns=columns)
    return Outcomes.of_checkpoint(
        variant=variant,
        seed=seed,
        step=step,
        task=measure.task,
        metric=measure.metric,
        **{name: items[name].to_pylist() for name in columns},
    )


def judge(
    experiments: Sequence[Experiment],
    comparisons: Sequence[Comparison],
    roles: Mapping[str, Mapping[str, str]],
    store: Store,
    *,
    step: int | None = None,
) -> Verdict:
    """Compare on all that is stored; variants without any outcome are left out and named as missing.

    Raises:
        CommandError: nothing is stored that could be compared.
    """
    outcomes, missing = gather_outcomes(experiments, roles, store, step)
    known = set(outcomes.variants())
    possible = [pair for pair in comparisons if {pair.baseline, pair.variant} <= known]
    if not possible:
        if not comparisons:
            return Verdict(findings=(), missing=missing, step=step)
        raise CommandError(
            place="compare",
            found="no two variants with stored evaluations" + (f" at step {step}" if step else ""),
            wanted="the evaluations of at least one comparison",
            remedy="Run the file first." if step is None else "Give a step that has a checkpoint.",
        )
    findings = compare(outcomes, possible, measures=measures_of(experiments), step=step)
    return Verdict(findings=findings, missing=missing, step=step)
