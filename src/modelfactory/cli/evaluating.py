"""`factory eval`: ask a stored checkpoint tasks, of whatever experiment or import it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import shtab
from rich.table import Table
from rich.text import Text

from modelfactory.cli.answer import Answer
from modelfactory.cli.inspecting import stored_checkpoint
from modelfactory.cli.permission import permitted_tasks
from modelfactory.cli.running import INTERRUPTED, listener, live, print_failures
from modelfactory.cli.setting import existing_store
from modelfactory.cli.words import at_least_one, at_least_zero
from modelfactory.engine import LocalEngine
from modelfactory.errors import CommandError, WorkspaceError
from modelfactory.loading.tasks import folders_of, read_tasks
from modelfactory.plan import checkpoint_of, plan_evaluations
from modelfactory.plan.evaluations import ADDED
from modelfactory.report.numbers import NONE, printable
from modelfactory.run import RunOptions, carry_out
from modelfactory.verdict import Measure
from modelfactory.verdict.words import value_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from rich.console import Console

    from modelfactory.evaluate import Task
    from modelfactory.plan import Plan
    from modelfactory.plan.evaluations import StoredCheckpoint
    from modelfactory.run import Outcome
    from modelfactory.store import Store


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the words of `eval`, but those of every run."""
    parser.add_argument(
        "checkpoint",
        metavar="CHECKPOINT",
        help="a training or import stage, an experiment or import (its last checkpoint), or a promoted name",
    )
    tasks = parser.add_argument(
        "--task",
        dest="tasks",
        metavar="TASK",
        action="append",
        required=True,
        help="FILE.py:NAME of a task there, the name of a task of lm-evaluation-harness, or its YAML; "
        "may be given several times",
    )
    tasks.complete = shtab.FILE  # type: ignore[attr-defined]
    parser.add_argument(
        "--n-shot",
        type=at_least_zero,
        metavar="N",
        help="examples before each item, of lm-evaluation-harness",
    )
    parser.add_argument(
        "--limit", type=at_least_one, metavar="N", help="the first N items alone, of lm-evaluation-harness"
    )


def eval_(arguments: argparse.Namespace) -> Answer:
    """Evaluate a checkpoint; what is stored is not asked again."""
    tasks = read_tasks(arguments.tasks, n_shot=arguments.n_shot, limit=arguments.limit)
    tasks = permitted_tasks(tasks) if arguments.allow_unsandboxed else tasks
    with existing_store(arguments.workspace) as store:
        checkpoint = _checkpoint(store, arguments.checkpoint)
        jobs = arguments.jobs
        threads = max(arguments.threads // jobs, 1)
        plan = plan_evaluations(store, checkpoint, tasks, jobs=jobs, threads=threads)
        outcome = _carried_out(arguments, store, checkpoint, plan, threads)
        found = [row for task in tasks if (row := _row(store, plan, task, checkpoint, outcome)) is not None]
    data = {
        "checkpoint": checkpoint.fingerprint,
        "label": checkpoint.label,
        "evaluations": found,
        **outcome.counts(),
        "stopped": outcome.stopped,
    }
    code = INTERRUPTED if outcome.stopped else outcome.code
    return Answer(data=data, text=lambda console: _print(console, checkpoint, found, outcome), code=code)


def _checkpoint(store: Store, name: str) -> StoredCheckpoint:
    """Return the checkpoint of a name, its bytes whole.

    Raises:
        CommandError: there is none.
        WorkspaceError: it is damaged.
    """
    try:
        folder, _ = stored_checkpoint(store, name)
    except CommandError as error:
        raise _of_files(name) or error from error
    record = store.record(folder.name)
    assert record is not None
    for fingerprint in (record.fingerprint, record.inputs["tokenizer"]):
        if damage := store.check_served(fingerprint):
            raise WorkspaceError(
                place=name,
                found=f"damaged: {damage[0]}",
                wanted="whole files",
                remedy="`factory doctor --rebuild` takes it out; then run its experiment, or import it.",
            )
    return checkpoint_of(store, record)


def _of_files(name: str) -> CommandError | None:
    """Tell whoever names files of a model, and no stage, what makes a checkpoint of them."""
    path = Path(name)
    if not (path.is_dir() or (path.is_file() and path.suffix == ".gguf")):
        return None
    return CommandError(
        place=name,
        found="files of a model",
        wanted="a checkpoint of the workspace",
        remedy=f"Keep it there first: factory import {name} --name NAME; then factory eval NAME.",
    )


def _carried_out(
    arguments: argparse.Namespace, store: Store, checkpoint: StoredCheckpoint, plan: Plan, threads: int
) -> Outcome:
    for run in checkpoint.runs:
        known = set(run.stages.values())
        new = {role: stage for role, stage in plan.roles[run.name].items() if stage not in known}
        store.add_to_experiment(run.name, new)
    folders = [str(Path(run.file).parent) for run in checkpoint.runs if run.file]
    options = RunOptions(
        on_stale=arguments.on_stale,
        sys_path=tuple(dict.fromkeys((*folders_of(arguments.tasks), *folders))),
    )
    with (
        LocalEngine(jobs=arguments.jobs, threads_total=threads * arguments.jobs) as engine,
        live(arguments) as shown,
    ):
        return carry_out(plan, store, engine, options, listener(shown, store, threads))


def _row(
    store: Store, plan: Plan, task: Task, checkpoint: StoredCheckpoint, outcome: Outcome
) -> dict[str, Any] | None:
    """Return the score on one task as `--json` prints it; None where the evaluation did not come about."""
    roles = next(iter(plan.roles.values()))
    fingerprint = roles[f"{ADDED}{task.name}@{checkpoint.step}"]
    if fingerprint not in store.states([fingerprint]):
        return None
    folder = store.stage_dir(fingerprint)
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    metric = result["metrics"][result["primary_metric"]]
    return {
        "task": task.name,
        "metric": result["primary_metric"],
        **{name: metric[name] for name in ("value", "stderr", "unit", "higher_is_better", "n_items")},
        "stage": fingerprint,
        "was_stored": fingerprint not in outcome.ran,
        "items": str(folder / "items.parquet"),
    }


def _print(
    console: Console, checkpoint: StoredCheckpoint, rows: Sequence[dict[str, Any]], outcome: Outcome
) -> None:
    print_failures(console, outcome)
    if rows:
        console.print(printable(checkpoint.label), style="bold", markup=False)
        console.print(_table(rows))
        console.print("items: factory show STAGE tells where they are", style="dim", markup=False)
    if outcome.stopped:
        console.print("interrupted; run the same command to go on")


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("task")
    table.add_column("metric")
    for name in ("score", "standard error", "items", "stage"):
        table.add_column(name, justify="right")
    table.add_column("")
    for row in rows:
        table.add_row(*_cells(row))
    return table


def _cells(row: dict[str, Any]) -> tuple[str | Text, ...]:
    measure = Measure(
        task=row["task"], metric=row["metric"], higher_is_better=row["higher_is_better"], unit=row["unit"]
    )
    error = row["stderr"]
    return (
        Text(printable(row["task"])),
        Text(printable(row["metric"])),
        value_text(row["value"], measure, error),
        NONE if error is None else value_text(error, measure, error),
        f"{row['n_items']:,}",
        row["stage"][:10],
        "stored before" if row["was_stored"] else "",
    )


__all__ = ["add_options", "eval_"]
