"""Everything a report says, read from the store."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from modelfactory.evaluate.task import dataset_of
from modelfactory.findings.changes import changes
from modelfactory.findings.curves import checkpoints, trained_steps
from modelfactory.findings.models import model_sizes
from modelfactory.findings.outcomes import Verdict, gather_outcomes, measures_of
from modelfactory.findings.problems import Stale, short_vocabularies
from modelfactory.report import (
    Cost,
    DatasetDrops,
    Drop,
    EvaluationCurve,
    Fact,
    LossCurve,
    PlanNode,
    ReportData,
    Sample,
    SpecText,
    Variant,
)
from modelfactory.report.numbers import size
from modelfactory.spec import canonical_json
from modelfactory.verdict import Measure, estimate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from modelfactory.experiment import Experiment
    from modelfactory.loading import Study
    from modelfactory.plan import Plan, PlannedStage
    from modelfactory.store import Record, Store

MOST_POINTS = 400
"""Of a loss curve; a longer one is thinned, the last step always kept."""
SAMPLES = 5
"""Dropped documents shown for each reason."""


def report_data(
    study: Study, plan: Plan, store: Store, verdict: Verdict, stale: Stale | None = None
) -> ReportData:
    """Gather what is stored of a study; `stale` tells which of it other code or inputs made."""
    experiments = study.experiments
    measures = measures_of(experiments)
    outcomes, _ = gather_outcomes(experiments, plan.roles, store, verdict.step)
    records = store.states([stage.id for stage in plan.stages])
    return ReportData(
        title=study.file.stem.replace("_", " "),
        question=study.question,
        generated=time.strftime("%d %B %Y, %H:%M", time.localtime(_newest(records))),
        findings=tuple(verdict.findings),
        estimates=tuple(estimate(outcomes, measures=measures, step=verdict.step)),
        variants=tuple(_variants(experiments, plan, store)),
        losses=tuple(_losses(experiments, plan, store)),
        evaluations=tuple(_evaluations(experiments, measures, plan, store)),
        datasets=tuple(_datasets(plan, store)),
        nodes=tuple(_node(stage, records) for stage in plan.stages),
        edges=tuple((parent, stage.id) for stage in plan.stages for parent in stage.parents()),
        specs=tuple(SpecText(name=e.name, json=canonical_json(e)) for e in experiments),
        changes=tuple(changes(study)),
        versions=tuple(_versions(records)),
        commands=_commands(study),
        cost=_cost(records),
        facts=tuple(_facts(plan, store, records)),
        problems=tuple(_problems(plan, store, verdict, stale)),
    )


def _problems(plan: Plan, store: Store, verdict: Verdict, stale: Stale | None) -> Iterator[str]:
    if stale is not None and stale.n:
        yield stale.sentence()
    yield from (f"not evaluated: {line}" for line in verdict.missing)
    yield from short_vocabularies(plan, store)


def _newest(records: Mapping[str, Record]) -> float:
    """Return when the last stage was made: the same results give the same report, whenever it is written."""
    return max((record.started + record.seconds for record in records.values()), default=0.0)


def _variants(experiments: tuple[Experiment, ...], plan: Plan, store: Store) -> Iterator[Variant]:
    groups: dict[str, list[Experiment]] = {}
    for experiment in experiments:
        groups.setdefault(experiment.variant, []).append(experiment)
    sizes = model_sizes(plan, store)
    for name, group in groups.items():
        size_of = sizes[name]
        yield Variant(
            name=name,
            n_parameters=size_of.n_parameters,
            n_trainable=size_of.n_trainable,
            n_tokens=group[0].training.n_tokens,
            flops=float(group[0].training.n_tokens * size_of.flops_per_token),
            seeds=tuple(experiment.training.seed for experiment in group),
        )


def _losses(experiments: tuple[Experiment, ...], plan: Plan, store: Store) -> Iterator[LossCurve]:
    for experiment in experiments:
        rows = trained_steps(experiment, plan.roles[experiment.name], store)
        stride = max(-(-len(rows) // MOST_POINTS), 1)
        shown = [row for n, row in enumerate(rows) if n % stride == 0 or n == len(rows) - 1]
        if shown:
            yield LossCurve(
                variant=experiment.variant,
                seed=experiment.training.seed,
                steps=tuple(row.step for row in shown),
                n_tokens=tuple(row.n_tokens for row in shown),
                flops=tuple(row.flops for row in shown),
                loss=tuple(row.loss for row in shown),
            )


def _evaluations(
    experiments: tuple[Experiment, ...], measures: list[Measure], plan: Plan, store: Store
) -> Iterator[EvaluationCurve]:
    for experiment in experiments:
        found = checkpoints(experiment, plan.roles[experiment.name], store)
        for measure in measures:
            known = [checkpoint for checkpoint in found if measure.task in checkpoint.results]
            if known:
                yield EvaluationCurve(
                    variant=experiment.variant,
                    seed=experiment.training.seed,
                    measure=measure,
                    steps=tuple(checkpoint.step for checkpoint in known),
                    n_tokens=tuple(checkpoint.n_tokens for checkpoint in known),
                    flops=tuple(checkpoint.flops for checkpoint in known),
                    values=tuple(float(checkpoint.results[measure.task]["value"]) for checkpoint in known),
                    chance=known[-1].results[measure.task]["chance"],
                )


def _datasets(plan: Plan, store: Store) -> Iterator[DatasetDrops]:
    n_variants = len({experiment.variant for experiment in plan.experiments})
    for stage in plan.stages:
        directory = store.stage_dir(stage.id)
        if stage.kind != "documents" or not (directory / "documents.json").exists():
            continue
        account = json.loads((directory / "documents.json").read_text(encoding="utf-8"))
        users = [e for e in plan.experiments if e.name in stage.experiments]
        yield DatasetDrops(
            name=f"{stage.label}: {used_for(stage, users, n_variants)}",
            n_documents=account["n_documents"],
            n_bytes=account["n_bytes"],
            drops=tuple(_drops(account, directory)),
            notes=tuple(_removed(account)),
        )


def used_for(stage: PlannedStage, users: list[Experiment], n_variants: int) -> str:
    """Say for what a dataset is used, so that two of one name can be told apart."""
    trained = dict.fromkeys(
        e.variant for e in users if any(part.dataset == stage.spec for part in e.mixture.parts)
    )
    if 1 < len(trained) == n_variants:
        return "trained on by all variants"
    if trained:
        return f"trained on by {'; '.join(trained)}"
    judged = any(dataset_of(task) == stage.spec for e in users for task in e.evaluations)
    return "evaluations" if judged else "the tokenizer"


def _drops(account: dict[str, Any], directory: Path) -> Iterator[Drop]:
    samples: dict[str, list[Sample]] = {}
    for row in pq.read_table(directory / "drops.parquet").to_pylist():
        samples.setdefault(row["reason"], []).append(Sample(path=row["path"], text=row["sample"] or ""))
    for reason, counted in account["dropped"].items():
        yield Drop(
            reason=reason,
            n_documents=counted["n_documents"],
            n_bytes=counted["n_bytes"],
            samples=tuple(samples.get(reason, [])[:SAMPLES]),
        )


def _removed(account: dict[str, Any]) -> Iterator[str]:
    for unit, counted in account["removed"].items():
        amount = f"{counted['n']:,} repeated {unit} ({size(counted['n_bytes'])})"
        yield f"{amount} were taken out of kept documents; no samples are kept of these."


def _node(stage: PlannedStage, records: Mapping[str, Record]) -> PlanNode:
    """Show what is there now: the plan was drawn up before the run."""
    state = "stored" if stage.id in records else stage.state
    return PlanNode(id=stage.id, kind=stage.kind, label=stage.label, state=state)


def _versions(records: Mapping[str, Record]) -> Iterator[Fact]:
    """Return the versions that made the stored stages, not those that happen to be installed now."""
    yield Fact(name="python", value=platform.python_version())
    yield Fact(name="modelfactory", value=importlib.metadata.version("modelfactory"))
    found: dict[str, Counter[str]] = {}
    for record in records.values():
        for name, version in record.libraries.items():
            found.setdefault(name, Counter())[version] += 1
    for name in sorted(found):
        yield Fact(name=name, value=", ".join(sorted(found[name])))


def _commands(study: Study) -> tuple[str, ...]:
    here = Path.cwd().resolve()
    file = study.file.relative_to(here) if study.file.is_relative_to(here) else study.file.name
    return ("make setup", f"factory run {file} --report report.html")


def _cost(records: Mapping[str, Record]) -> Cost | None:
    if not records:
        return None
    return Cost(
        seconds=sum(record.seconds for record in records.values()),
        flops=float(sum(record.flops for record in records.values())),
        n_bytes=sum(record.n_bytes for record in records.values()),
    )


def _rounded(value: float) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _facts(plan: Plan, store: Store, records: Mapping[str, Record]) -> Iterator[Fact]:
    for stage in plan.stages:
        path = store.stage_dir(stage.id) / "tokenizer_facts.json"
        if stage.kind == "tokenizer" and path.exists():
            facts = json.loads(path.read_text(encoding="utf-8"))
            text = ", ".join(
                f"{key} {_rounded(value)}" for key, value in facts.items() if isinstance(value, (int, float))
            )
            yield Fact(name=f"tokenizer: {stage.label}", value=text)
    machines = sorted({record.host for record in records.values() if record.host})
    if machines:
        yield Fact(name="machines", value=str(len(machines)))
    totals = plan.totals
    yield Fact(name="tokens asked for", value=f"{totals.tokens_requested:,}")
    trained = sum(record.tokens for record in records.values())
    yield Fact(name="tokens trained", value=f"{trained:,}")
