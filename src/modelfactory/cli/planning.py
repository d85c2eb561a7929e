"""`factory check` and `factory plan`."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import psutil
from rich.table import Table
from rich.text import Text

from modelfactory.cli.answer import Answer
from modelfactory.cli.setting import Setting, planned
from modelfactory.code import changes
from modelfactory.errors import CommandError
from modelfactory.findings.designs import DesignPower, design_power
from modelfactory.findings.models import ModelSize, model_sizes
from modelfactory.report.numbers import duration, flops, size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from rich.console import Console

    from modelfactory.plan import Plan, PlannedStage, State

MANY = 40
"""Stages up to which a plan lists each."""
STATES: Final[tuple[State, ...]] = ("stored", "stale", "to run")


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
            f"{data['stages']} stages, {data['comparisons']} comparison(s): no fault found"
        ),
    )


def plan(arguments: argparse.Namespace) -> Answer:
    """Show the plan of a file."""
    with planned(arguments, create=False) as setting:
        if arguments.explain:
            return _explained(setting, arguments.explain)
        made = setting.plan
        sizes = model_sizes(made, setting.store)
        designs = _designs(setting)

    def text(console: Console) -> None:
        print_plan(console, made, sizes.values(), every=arguments.all)
        for design in designs:
            console.print(design.sentence, markup=False)

    seen = [asdict(design) for design in designs]
    return Answer(data=plan_json(made, sizes.values()) | {"designs": seen}, text=text)


def _designs(setting: Setting) -> list[DesignPower]:
    """Return what the study's comparisons will be able to see."""
    study, made = setting.study, setting.plan
    inputs = {s.id: (s.spec_json, {**s.inputs, **s.pins}) for s in made.stages if s.kind == "evaluate"}
    return design_power(study.experiments, study.comparisons, made.roles, inputs, setting.store)


def plan_json(made: Plan, sizes: Iterable[ModelSize]) -> dict[str, Any]:
    """Return a plan as `--json` prints it."""
    stages = [
        {
            "id": stage.id,
            "kind": stage.kind,
            "label": stage.label,
            "state": stage.state,
            "reason": stage.reason,
            "experiments": list(stage.experiments),
            "tokens": stage.tokens,
            "flops": stage.flops,
            "seconds": stage.seconds,
            "disk_bytes": stage.disk_bytes,
        }
        for stage in made.stages
    ]
    totals = made.totals
    return {
        "stages": stages,
        "models": [asdict(each) for each in sizes],
        "totals": {
            "tokens_requested": totals.tokens_requested,
            "tokens_to_train": totals.tokens_to_train,
            "flops_requested": totals.flops_requested,
            "flops_to_train": totals.flops_to_train,
            "seconds": totals.seconds,
            "seconds_measured": totals.seconds_measured,
            "disk_bytes": totals.disk_bytes,
            "memory_bytes": totals.memory_bytes,
            "n_processes": totals.n_processes,
        },
        "assumptions": list(made.assumptions),
    }


def print_plan(console: Console, made: Plan, sizes: Iterable[ModelSize], *, every: bool) -> None:
    """Print stages, models and totals for a person."""
    missing = [stage for stage in made.stages if stage.state != "stored"]
    shown = made.stages if every or len(made.stages) <= MANY else missing if len(missing) <= MANY else []
    if shown:
        console.print(_stage_table(list(shown)))
        for n, reason in enumerate(_reasons(shown), start=1):
            console.print(f"[{n}] {reason}", markup=False)
    if len(shown) < len(made.stages):
        console.print(_kind_table(made))
        console.print("Every stage: factory plan FILE --all")
    _print_models(console, list(sizes), every=every)
    for line in totals_lines(made):
        console.print(line)


def _print_models(console: Console, sizes: list[ModelSize], *, every: bool) -> None:
    """Print how large each variant's model is; what is trained and active only where that is not all."""
    adapted = any(each.n_trainable != each.n_parameters for each in sizes)
    sparse = any(each.n_active != each.n_parameters for each in sizes)
    more = (["trained"] if adapted else []) + (["active"] if sparse else [])
    table = Table("variant", "parameters", *more, "FLOPs a token", box=None, pad_edge=False)
    shown = sizes if every else sizes[:MANY]
    for each in shown:
        numbers = [each.n_parameters]
        numbers += ([each.n_trainable] if adapted else []) + ([each.n_active] if sparse else [])
        cells = [f"{number:,}" for number in numbers]
        table.add_row(Text(each.variant), *cells, flops(each.flops_per_token))
    console.print(table)
    if len(shown) < len(sizes):
        console.print(f"... and {len(sizes) - len(shown)} more variants: factory plan FILE --all")


def _stage_table(stages: list[PlannedStage]) -> Table:
    """Return one line for each stage; reasons, of which many stages share few, are numbered."""
    numbers = {reason: n for n, reason in enumerate(_reasons(stages), start=1)}
    table = Table("stage", "kind", "what", "state", "why", box=None, pad_edge=False)
    for stage in stages:
        why = f"[{numbers[stage.reason]}]" if stage.reason else ""
        table.add_row(stage.id[:10], stage.kind, Text(stage.label), stage.state, Text(why))
    return table


def _reasons(stages: Iterable[PlannedStage]) -> list[str]:
    return list(dict.fromkeys(stage.reason for stage in stages if stage.reason))


def _kind_table(made: Plan) -> Table:
    table = Table("kind", "stored", "stale", "to run", "most frequent reason", box=None, pad_edge=False)
    for kind in dict.fromkeys(stage.kind for stage in made.stages):
        of_kind = [stage for stage in made.stages if stage.kind == kind]
        states = Counter(stage.state for stage in of_kind)
        reasons = Counter(stage.reason for stage in of_kind if stage.reason).most_common(1)
        table.add_row(
            kind,
            *(str(states[state]) for state in STATES),
            Text(reasons[0][0] if reasons else ""),
        )
    return table


def totals_lines(made: Plan) -> list[str]:
    """Return what a plan costs, in words."""
    totals = made.totals
    guess = "measured here" if totals.seconds_measured else "an assumption, see below"
    work = f"{flops(totals.flops_to_train)} of {flops(totals.flops_requested)}"
    lines = [
        f"{len(made.stages)} stages: {', '.join(f'{made.count(state)} {state}' for state in STATES)}",
        f"tokens: {totals.tokens_requested:,} asked for, {totals.tokens_to_train:,} to train ({work})",
    ]
    if made.count("stored") < len(made.stages):
        lines.append(f"about {duration(totals.seconds)} ({guess}), {size(totals.disk_bytes)} of disk")
    lines.extend(_memory_lines(totals.memory_bytes, totals.n_processes, psutil.virtual_memory().total))
    lines.extend(f"  {line}" for line in made.assumptions)
    return lines


def _memory_lines(needed: int, n_processes: int, present: int) -> list[str]:
    """Say what training takes, and warn where that is more than the machine has."""
    if needed == 0:
        return []
    each = f", times {n_processes} processes" if n_processes > 1 else ""
    besides = "Python, libraries and holes that freed memory leaves come on top"
    lines = [f"tensors of training take about {size(needed)} of memory{each}; {besides}"]
    if needed * n_processes > present:
        lines.append(
            f"WARNING: that is more than the {size(present)} of this machine. Use --micro-batch-tokens, "
            "--checkpointing full, a smaller model, or another machine."
        )
    return lines


def _explained(setting: Setting, wanted: str) -> Answer:
    stage = _find(setting.plan, wanted)
    data = {
        "id": stage.id,
        "kind": stage.kind,
        "label": stage.label,
        "state": stage.state,
        "reason": stage.reason,
        "changed_code": _changed_code(setting, stage),
        "spec": stage.spec_json,
        "inputs": dict(stage.inputs),
        "pins": dict(stage.pins),
        "resumes": stage.resumes,
        "experiments": list(stage.experiments),
        "code": dict(stage.code),
        "libraries": dict(stage.libraries),
        "tokens": stage.tokens,
        "flops": stage.flops,
        "seconds": stage.seconds,
        "disk_bytes": stage.disk_bytes,
    }
    return Answer(data=data, text=lambda console: console.print_json(data=data))


def _changed_code(setting: Setting, stage: PlannedStage) -> list[str]:
    """Name every definition that differs from what the stored stage ran."""
    record = setting.store.states([stage.id]).get(stage.id) if setting.store is not None else None
    return changes(dict(record.code), dict(stage.code)) if record is not None else []


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
