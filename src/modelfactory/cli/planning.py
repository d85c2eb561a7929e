"""`factory check` and `factory plan`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from rich.table import Table

from modelfactory.cli.answer import Answer
from modelfactory.cli.setting import Setting, planned
from modelfactory.errors import CommandError
from modelfactory.report.numbers import duration, flops, size

if TYPE_CHECKING:
    import argparse

    from rich.console import Console

    from modelfactory.plan import Plan, PlannedStage

MANY = 40
"""Stages up to which a plan lists each."""


def check(arguments: argparse.Namespace) -> Answer:
    """Load, pin and plan; a file without faults has nothing to say but its size."""
    with planned(arguments, create=False) as setting:
        study = setting.study
        data = {
            "file": str(study.file),
            "experiments": len(study.experiments),
            "variants": len({experiment.variant for experiment in study.experiments}),
            "comparisons": len(study.comparisons),
            "stages": len(setting.plan.stages),
        }
    return Answer(
        data=data,
        text=lambda console: console.print(
            f"{data['experiments']} experiments of {data['variants']} variants, "
            f"{data['stages']} stages, {data['comparisons']} comparisons: no fault found"
        ),
    )


def plan(arguments: argparse.Namespace) -> Answer:
    """Show the plan of a file."""
    with planned(arguments, create=False) as setting:
        if arguments.explain:
            return _explained(setting, arguments.explain)
        made = setting.plan
    return Answer(data=plan_json(made), text=lambda console: print_plan(console, made, every=arguments.all))


def plan_json(made: Plan) -> dict[str, Any]:
    """Return a plan as `--json` prints it."""
    stages = [
        {"id": s.id, "kind": s.kind, "label": s.label, "state": s.state, "reason": s.reason,
         "experiments": list(s.experiments), "tokens": s.tokens, "flops": s.flops, "seconds": s.seconds,
         "disk_bytes": s.disk_bytes}
        for s in made.stages
    ]  # fmt: skip
    totals = made.totals
    return {
        "stages": stages,
        "totals": {
            "tokens_requested": totals.tokens_requested,
            "tokens_to_train": totals.tokens_to_train,
            "flops_requested": totals.flops_requested,
            "flops_to_train": totals.flops_to_train,
            "seconds": totals.seconds,
            "seconds_measured": totals.seconds_measured,
            "disk_bytes": totals.disk_bytes,
        },
        "assumptions": list(made.assumptions),
    }


def print_plan(console: Console, made: Plan, *, every: bool) -> None:
    """Print stages and totals for a person."""
    missing = [stage for stage in made.stages if stage.state != "stored"]
    shown = made.stages if every or len(made.stages) <= MANY else missing if len(missing) <= MANY else []
    if shown:
        console.print(_stage_table(list(shown)))
    if len(shown) < len(made.stages):
        console.print(_kind_table(made))
        console.print("Every stage: factory plan FILE --all")
    for line in totals_lines(made):
        console.print(line)


def _stage_table(stages: list[PlannedStage]) -> Table:
    table = Table("stage", "kind", "what", "state", "why", box=None, pad_edge=False)
    for stage in stages:
        table.add_row(stage.id[:10], stage.kind, stage.label, stage.state, stage.reason)
    return table


def _kind_table(made: Plan) -> Table:
    table = Table("kind", "stored", "stale", "to run", "most frequent reason", box=None, pad_edge=False)
    for kind in dict.fromkeys(stage.kind for stage in made.stages):
        of_kind = [stage for stage in made.stages if stage.kind == kind]
        states = Counter(stage.state for stage in of_kind)
        reasons = Counter(stage.reason for stage in of_kind if stage.reason).most_common(1)
        table.add_row(
            kind,
            *(str(states[state]) for state in ("stored", "stale", "to run")),
            reasons[0][0] if reasons else "",
        )
    return table


def totals_lines(made: Plan) -> list[str]:
    """Return what a plan costs, in words."""
    totals = made.totals
    guess = "measured here" if totals.seconds_measured else "an assumption, see below"
    lines = [
        f"{len(made.stages)} stages: {made.count('stored')} stored, {made.count('stale')} stale, "
        f"{made.count('to run')} to run",
        f"tokens: {totals.tokens_requested:,} asked for, {totals.tokens_to_train:,} to train "
        f"({flops(totals.flops_to_train)} of {flops(totals.flops_requested)})",
    ]
    if made.count("stored") < len(made.stages):
        lines.append(f"about {duration(totals.seconds)} ({guess}), {size(totals.disk_bytes)} of disk")
    lines.extend(f"  {line}" for line in made.assumptions)
    return lines


def _explained(setting: Setting, wanted: str) -> Answer:
    stage = _find(setting.plan, wanted)
    data = {
        "id": stage.id, "kind": stage.kind, "label": stage.label, "state": stage.state, "reason": stage.reason,
        "spec": stage.spec_json, "inputs": dict(stage.inputs), "pins": dict(stage.pins), "resumes": stage.resumes,
        "experiments": list(stage.experiments), "code": dict(stage.code), "libraries": dict(stage.libraries),
        "tokens": stage.tokens, "flops": stage.flops, "seconds": stage.seconds, "disk_bytes": stage.disk_bytes,
    }  # fmt: skip
    return Answer(data=data, text=lambda console: console.print_json(data=data))


def _find(made: Plan, wanted: str) -> PlannedStage:
    roles = {role: fp for known in made.roles.values() for role, fp in known.items()}
    found = [
        s for s in made.stages if s.id.startswith(wanted) or roles.get(wanted) == s.id or s.label == wanted
    ]
    if len(found) == 1:
        return found[0]
    raise CommandError(
        place=f"--explain {wanted}",
        found=f"{len(found)} stages of the plan",
        wanted="one",
        remedy="Give the beginning of a fingerprint that `factory plan FILE --all` shows.",
    )
