"""A candidate against what a name stands for: outcomes and contamination, read from the store."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from modelfactory.data.overlap import find_overlap, stage_texts
from modelfactory.findings.leaderboard import evaluated, outcomes_of
from modelfactory.promote import Contamination, Decision, Rule, decide
from modelfactory.store import NamedExperiment
from modelfactory.verdict import Finding, Outcomes, compare

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from modelfactory.findings.leaderboard import Evaluated
    from modelfactory.store import Promotion, Store

CANDIDATE = "candidate"
CURRENT = "current best"


@dataclass(frozen=True, kw_only=True)
class Against:
    """The pair that is compared."""

    baseline: str = CURRENT
    variant: str = CANDIDATE


def judge_candidate(
    store: Store, rule: Rule, runs: Sequence[NamedExperiment], current: Promotion | None
) -> Decision:
    """Judge the replicates of a variant by a rule, on what is stored.

    Args:
        store: of the workspace.
        rule: what they must show.
        runs: the replicates.
        current: what the name stands for; None for a first promotion, at which nothing is compared.
    """
    own = _by_task(store, runs, rule)
    missing = [f"{task}: not evaluated for {name}" for task, name in _unevaluated(rule, own, runs)]
    contamination = {task: c for task in own if (c := _contamination(store, own[task])) is not None}
    if current is None:
        return decide(rule, (), contamination, is_first=True, missing=missing)
    best = _by_task(store, runs_of(current), rule)
    known = {task: (own[task], best.get(task, [])) for task in own}
    missing += [f"{task}: the current best was asked other items, or none" for task in _unlike(known)]
    findings = _compared(store, rule, known)
    return decide(rule, findings, contamination, is_first=False, missing=missing)


def evidence(rule: Rule, decision: Decision, runs: Sequence[NamedExperiment], best: int) -> dict[str, Any]:
    """Return what is recorded with a promotion; `runs_of` reads the runs back."""
    return {
        "rule": asdict(rule),
        "against": best,
        "judged": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "runs": [asdict(replace(run, stages=dict(run.stages))) for run in runs],
        **decision.to_json(),
    }


def runs_of(promotion: Promotion) -> list[NamedExperiment]:
    """Return the replicates that were promoted."""
    return [NamedExperiment(**run) for run in promotion.evidence["runs"]]


def _by_task(store: Store, runs: Sequence[NamedExperiment], rule: Rule) -> dict[str, list[Evaluated]]:
    found: dict[str, list[Evaluated]] = {}
    for each in evaluated(store, runs):
        if each.measure.task in rule.tasks:
            found.setdefault(each.measure.task, []).append(each)
    return found


def _unevaluated(
    rule: Rule, own: dict[str, list[Evaluated]], runs: Sequence[NamedExperiment]
) -> Iterator[tuple[str, str]]:
    for task in rule.tasks:
        there = {each.run for each in own.get(task, ())}
        yield from ((task, run.name) for run in runs if run.name not in there)


def _unlike(known: dict[str, tuple[list[Evaluated], list[Evaluated]]]) -> list[str]:
    return [task for task, (own, best) in known.items() if {e.asked for e in own} != {e.asked for e in best}]


def _compared(
    store: Store, rule: Rule, known: dict[str, tuple[list[Evaluated], list[Evaluated]]]
) -> list[Finding]:
    """Compare on the tasks of which both were asked the same, corrected together."""
    unlike = _unlike(known)
    both = {task: sides for task, sides in known.items() if task not in unlike}
    if not both:
        return []
    sides = [(name, each) for own, best in both.values() for name, group in
             ((CANDIDATE, own), (CURRENT, best)) for each in group]  # fmt: skip
    # The last checkpoint of each is compared, so runs of different length have one step here.
    tables = [outcomes_of(store, replace(each, variant=name, step=0)) for name, each in sides]
    measures = [replace(own[0].measure, margin=rule.margin(task)) for task, (own, _) in both.items()]
    return compare(Outcomes.concatenate(tables), [Against()], measures=measures)


def _contamination(store: Store, group: Sequence[Evaluated]) -> Contamination | None:
    """Return how many documents of a task stand in what any of the runs was trained on; None if unknown."""
    record = store.record(group[0].fingerprint)
    training = _training_documents(store, [each.checkpoint for each in group])
    if record is None or training is None or "documents" not in record.inputs:
        return None  # questions of a file have no documents stage to compare with
    items = pq.read_table(store.stage_dir(record.fingerprint) / "items.parquet", columns=["cluster"])
    asked = set(items["cluster"].to_pylist())
    texts = dict(stage_texts(store.stage_dir(record.inputs["documents"]), store.lake))
    chosen = {name: text for name, text in texts.items() if name in asked} or texts
    documents = (text for stage in training for _, text in stage_texts(store.stage_dir(stage), store.lake))
    found = find_overlap(chosen, documents)
    return Contamination(n_documents=found.n_texts, n_contaminated=len(found.contaminated))


def _training_documents(store: Store, checkpoints: Sequence[str]) -> list[str] | None:
    """Return the documents stages that checkpoints were trained on; None where one was trained elsewhere."""
    records = [store.record(each) for each in sorted(store.ancestors(checkpoints) | set(checkpoints))]
    known = [record for record in records if record is not None]
    if any(record.kind == "import" for record in known):
        return None
    return list(dict.fromkeys(record.inputs["documents"] for record in known if record.kind == "tokens"))
