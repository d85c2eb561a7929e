"""`factory promote`: move a name to a variant that meets a rule."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from modelfactory.cli.answer import Answer
from modelfactory.cli.setting import planned
from modelfactory.errors import CommandError, ExperimentError, WorkspaceError, closest
from modelfactory.findings.problems import stale_of
from modelfactory.findings.promotion import evidence, judge_candidate
from modelfactory.loading.importing import import_file
from modelfactory.promote import Decision, Rule
from modelfactory.report import print_verdict
from modelfactory.spec import canonical_json
from modelfactory.store import NamedExperiment, Promotion, check_name

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from rich.console import Console

    from modelfactory.cli.setting import Setting
    from modelfactory.store import Store

FIRST = "There was no {name} yet, so nothing was compared: evaluations and contamination alone decide."


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the words of `promote`, but FILE."""
    parser.add_argument("--as", dest="name", metavar="NAME", required=True, help="the name to move: best")
    parser.add_argument("--variant", help="the variant to promote (default: the only one of the file)")


def promote(arguments: argparse.Namespace) -> Answer:
    """Judge a variant by the rule of its file; move the name, or refuse with every reason."""
    check_name(arguments.name)
    with planned(arguments, create=False, to_run=False) as setting:
        store = _store(setting, arguments)
        rule = read_rule(setting)
        runs = _candidate(setting, arguments.variant)
        history = store.names.history(arguments.name)
        current = history[-1] if history else None
        decision = judge_candidate(store, rule, runs, current)
        unfit = [line for line in (stale_of(setting.plan).sentence(),) if line]
        unfit += _unfit(store, arguments.name, runs, current)
        decision = replace(decision, reasons=(*unfit, *decision.reasons))
        known = evidence(rule, decision, runs, len(history))
        made = _moved(store, arguments.name, known, runs) if decision.is_met else None
    data = decision.to_json() | {
        "name": arguments.name,
        "promoted": made is not None,
        "first": current is None,
        "checkpoint": None if made is None else made.checkpoint,
        "was": None if current is None else current.checkpoint,
        "runs": [run.name for run in runs],
    }
    return Answer(
        data=data,
        text=lambda console: _print(console, arguments.name, decision, made, is_first=current is None),
        code=1 if made is None else 0,
    )


def _store(setting: Setting, arguments: argparse.Namespace) -> Store:
    if setting.store is None:
        raise WorkspaceError(
            place=str(arguments.workspace),
            found="no workspace",
            wanted="stored results",
            remedy="Run the file first.",
        )
    return setting.store


def read_rule(setting: Setting) -> Rule:
    """Return what `promotion()` of an experiment file gives.

    Raises:
        ExperimentError: there is none, it gives something else, or asks about a task of no experiment.
    """
    file: Path = setting.study.file
    found: Any = getattr(import_file(file), "promotion", None)
    rule = found() if callable(found) else None
    place = f"{file}: promotion()"
    if not isinstance(rule, Rule):
        raise ExperimentError(
            place=place,
            found="none" if found is None else f"{rule!r:.80}",
            wanted="a function that returns a modelfactory.promote.Rule",
            remedy="docs/how-to/promote.md shows one.",
        )
    tasks = list(dict.fromkeys(task.name for e in setting.study.experiments for task in e.evaluations))
    for task in rule.tasks:
        if task not in tasks:
            raise ExperimentError(
                place=place, found=repr(task), wanted="a task of the experiments", remedy=closest(task, tasks)
            )
    return rule


def _candidate(setting: Setting, variant: str | None) -> list[NamedExperiment]:
    """Return the replicates of the variant, with the stages that the file plans now."""
    variants = list(dict.fromkeys(each.variant for each in setting.study.experiments))
    if variant is None and len(variants) > 1:
        raise CommandError(
            place="--variant",
            found=f"none, and {len(variants)} variants in the file",
            wanted=f"one of {', '.join(variants)}",
            remedy="Say which one is to be promoted.",
        )
    wanted = variants[0] if variant is None else variant
    if wanted not in variants:
        raise CommandError(
            place="--variant", found=wanted, wanted="a variant of the file", remedy=closest(wanted, variants)
        )
    file, roles = str(setting.study.file), setting.plan.roles
    return [
        NamedExperiment(name=e.name, file=file, spec_json=canonical_json(e), stages=roles[e.name], named=0.0)
        for e in setting.study.experiments
        if e.variant == wanted
    ]


def _unfit(store: Store, name: str, runs: Sequence[NamedExperiment], current: Promotion | None) -> list[str]:
    """Return what speaks against whatever the rule says."""
    found = []
    if any(each.name == name for each in store.experiments()):
        found.append(f"{name}: an experiment has this name; give another")
    checkpoint = _checkpoint(runs[0])
    if current is not None and current.checkpoint == checkpoint:
        found.append(f"{name} stands for this checkpoint already")
    if checkpoint not in store.states([checkpoint]):
        found.append(f"{runs[0].name}: its last checkpoint is not stored")
    return found


def _checkpoint(run: NamedExperiment) -> str:
    """Return the last checkpoint of a run."""
    steps = [role.rpartition("@")[2] for role in run.stages if role.startswith("train@")]
    return run.stages[f"train@{max(map(int, steps))}"]


def _moved(store: Store, name: str, known: Mapping[str, Any], runs: Sequence[NamedExperiment]) -> Promotion:
    """Move the name to the first replicate: choosing the best one of them would be choosing by luck."""
    stages = tuple(sorted({stage for run in runs for stage in run.stages.values()}))
    return store.names.move(
        name, checkpoint=_checkpoint(runs[0]), stages=stages, evidence=known, after=known["against"]
    )


def _print(
    console: Console, name: str, decision: Decision, made: Promotion | None, *, is_first: bool
) -> None:
    if decision.findings:
        print_verdict(decision.findings, console)
        console.print()
    if is_first:
        console.print(FIRST.format(name=name), markup=False)
    for task, found in decision.contamination.items():
        told = f"{task}: {found.n_contaminated:,} of {found.n_documents:,} documents stand in training"
        console.print(told, markup=False)
    for reason in decision.reasons:
        console.print(f"refused: {reason}", style="bold", markup=False)
    if made is None:
        console.print(f"{name} was not moved", markup=False)
    else:
        run = made.evidence["runs"][0]["name"]
        console.print(f"{name} is now {run} ({made.checkpoint[:10]}), promotion {made.number}", markup=False)
