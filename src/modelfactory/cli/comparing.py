"""`factory compare`: the verdict of a file, or a leaderboard of any runs of the workspace."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import shtab
from rich.table import Table
from rich.text import Text

from modelfactory.cli import running
from modelfactory.cli.answer import Answer
from modelfactory.cli.setting import existing_store
from modelfactory.errors import CommandError, closest
from modelfactory.experiment import variant_name
from modelfactory.findings.items import differing_items
from modelfactory.findings.leaderboard import leaderboard
from modelfactory.report.numbers import NONE, count, flops, printable
from modelfactory.verdict.words import interval_text, value_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from rich.console import Console

    from modelfactory.findings.items import ItemDifferences
    from modelfactory.findings.leaderboard import Row
    from modelfactory.store import NamedExperiment, Store

MOST_ITEMS = 20
"""Items printed of each task; `--json` has all."""
LONGEST = 200
"""Characters printed of the detail of an item."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the words of `compare`."""
    targets = parser.add_argument(
        "targets",
        metavar="FILE|RUN",
        nargs="+",
        help="one experiment file: its verdict; else runs to rank: names of experiments, of variants, "
        "patterns such as 'd_model=*', or files",
    )
    targets.complete = shtab.FILE  # type: ignore[attr-defined]
    parser.add_argument("--step", type=int, help="compare the checkpoints of this step (default: the last)")
    parser.add_argument("--items", action="store_true", help="show the items on which two runs differ")


def compare(arguments: argparse.Namespace) -> Answer:
    """Give the verdict of a file, rank runs, or show the items where two differ."""
    targets = arguments.targets
    if len(targets) == 1 and _is_file(targets[0]) and not arguments.items:
        arguments.file = Path(targets[0])
        return running.compare(arguments)
    with existing_store(arguments.workspace) as store:
        if arguments.items:
            return _items(store, targets, arguments.step)
        rows = leaderboard(store, find_runs(store, targets), step=arguments.step)
    if not rows:
        raise CommandError(
            place="compare",
            found="no stored evaluation of these runs"
            + (f" at step {arguments.step:,}" if arguments.step is not None else ""),
            wanted="at least one",
            remedy="`factory show EXPERIMENT` lists what is stored.",
        )
    data = {"leaderboard": [row.to_json() for row in rows]}
    return Answer(data=data, text=lambda console: print_leaderboard(console, rows))


def _is_file(target: str) -> bool:
    return target.endswith(".py") or Path(target).is_file()


def find_runs(store: Store, targets: Sequence[str]) -> list[NamedExperiment]:
    """Return the runs that words name, each once, in the order of the words.

    Raises:
        CommandError: a word names none.
    """
    known = store.experiments()
    found: dict[str, NamedExperiment] = {}
    for target in targets:
        own = [run for run in known if _names(target, run)]
        if not own:
            names = [run.name for run in known]
            raise CommandError(
                place=target,
                found="no run of this name in the workspace",
                wanted="the name of an experiment or variant, a pattern, or a file that was run",
                remedy=closest(target, names),
            )
        found |= {run.name: run for run in own}
    return list(found.values())


def _names(target: str, run: NamedExperiment) -> bool:
    if _is_file(target):
        return bool(run.file) and Path(run.file) == Path(target).resolve()
    return target in {run.name, variant_name(run.name)} or fnmatchcase(run.name, target)


def print_leaderboard(console: Console, rows: Sequence[Row]) -> None:
    """Print one table for each task and set of items."""
    for number, (label, asked) in enumerate(dict.fromkeys((r.estimate.measure.label, r.asked) for r in rows)):
        own = [row for row in rows if (row.estimate.measure.label, row.asked) == (label, asked)]
        if number:
            console.print()
        better = "higher" if own[0].estimate.measure.higher_is_better else "lower"
        n_items = own[0].estimate.n_items
        head = f"{label}, {better} is better, {n_items:,} items ({asked})"
        console.print(printable(head), style="bold", markup=False)
        console.print(_table(own))
    console.print()
    console.print(
        "* on the Pareto front: none scores as well for fewer training FLOPs. Places and front follow the "
        "scores alone; 95 % intervals (i: of items only, seed noise unknown) show how sure they are. "
        "Whether one is better: factory compare FILE.",
        style="dim",
    )


def _table(rows: Sequence[Row]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("", "variant"):
        table.add_column(name)
    for name in ("score", "95 % interval", "seeds", "parameters", "training", "step"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*_cells(row))
    return table


def _cells(row: Row) -> tuple[str | Text, ...]:
    found = row.estimate
    interval = NONE if found.interval is None else interval_text(found.interval, found.measure)
    half = None if found.interval is None else (found.interval[1] - found.interval[0]) / 2
    return (
        "*" if row.on_front else "",
        Text(printable(found.variant)),
        value_text(found.value, found.measure, half),
        interval + (" i" if found.covers == "items only" else ""),
        str(found.n_seeds),
        count(row.n_parameters),
        NONE if row.flops is None else flops(row.flops),
        f"{found.step:,}",
    )


def _items(store: Store, targets: Sequence[str], step: int | None) -> Answer:
    runs = find_runs(store, targets)
    if len(runs) != 2:
        raise CommandError(
            place="--items",
            found=f"{len(runs)} runs",
            wanted="two: " + ", ".join(run.name for run in runs[:4]) if runs else "two",
            remedy="Give the names of two experiments, with their seeds.",
        )
    names = (runs[0].name, runs[1].name)
    found = differing_items(store, runs[0], runs[1], step=step)
    data = {
        "runs": list(names),
        "n_items": found.n_items,
        "left_out": found.left_out,
        "items": [pair.to_json() for pair in found.pairs],
    }
    return Answer(data=data, text=lambda console: _print_items(console, names, found))


def _print_items(console: Console, names: tuple[str, str], found: ItemDifferences) -> None:
    for task, n_items in found.n_items.items():
        own = [pair for pair in found.pairs if pair.task == task]
        console.print(f"{task}: {len(own):,} of {n_items:,} items differ", style="bold", markup=False)
        table = Table("item", box=None, pad_edge=False)
        for name in names:
            table.add_column(Text(printable(name)))
        for pair in own[:MOST_ITEMS]:
            table.add_row(Text(printable(pair.item_id)), *map(_answered, pair.values, pair.details))
        if own:
            console.print(table)
        if len(own) > MOST_ITEMS:
            console.print(f"... and {len(own) - MOST_ITEMS:,} more; --json has all")
    for task, reason in found.left_out.items():
        console.print(f"{task}: not compared: {reason}", markup=False)


def _answered(value: float, detail: Any) -> Text:
    told = ", ".join(f"{k}={v}" for k, v in detail.items()) if isinstance(detail, dict) else str(detail)
    shown = printable(told.replace("\n", "\\n"))
    cut = shown if len(shown) <= LONGEST else f"{shown[:LONGEST]}..."
    return Text(f"{value:.6g}  {cut}".rstrip())
