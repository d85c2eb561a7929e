"""`factory coord-check`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from modelfactory.cli.answer import Answer
from modelfactory.cli.setting import say
from modelfactory.errors import ExperimentError
from modelfactory.loading import load_study
from modelfactory.models import Decoder
from modelfactory.report.coordinates import Checked, write_coordinates
from modelfactory.train.coordinates import KINDS, RULES, coordinate_check, slopes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from modelfactory import Experiment


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what `coord-check` takes besides the file."""
    parser.add_argument(
        "--widths", type=_widths, default=(64, 128, 256), help="d_model of each (default: 64,128,256)"
    )
    parser.add_argument("--steps", type=int, default=4, help="updates of each model (default: 4)")
    parser.add_argument("-o", "--output", type=Path, default=Path("coords.html"), help="default: coords.html")


def coord_check(arguments: argparse.Namespace) -> Answer:
    """Check each model of a file with its optimizer, once for all experiments that have both in common."""
    study = load_study(arguments.file)
    checked = []
    for names, experiment in _subjects(study.experiments):
        say(f"{names[0]}: widths {', '.join(map(str, arguments.widths))}, {arguments.steps} steps")
        found = coordinate_check(
            _decoder(experiment),
            experiment.training.optimizer,
            widths=arguments.widths,
            n_steps=arguments.steps,
            seed=experiment.training.seed,
        )
        checked.append(Checked(names=names, coordinates=tuple(found), n_steps=arguments.steps))
    write_coordinates(checked, arguments.output)
    data = {"output": str(arguments.output), "models": [_json(each) for each in checked]}
    return Answer(data=data, text=lambda console: _print(console, checked, arguments.output))


def _subjects(experiments: Sequence[Experiment]) -> list[tuple[tuple[str, ...], Experiment]]:
    """Return the variants and the first experiment of each model with its optimizer."""
    found: dict[Any, list[Experiment]] = {}
    for each in experiments:
        found.setdefault((each.model, each.training.optimizer), []).append(each)
    return [(tuple(dict.fromkeys(e.variant for e in group)), group[0]) for group in found.values()]


def _decoder(experiment: Experiment) -> Decoder:
    model = experiment.model
    if not isinstance(model, Decoder):
        raise ExperimentError(
            place=f"{experiment.name}: model",
            found=type(model).__name__,
            wanted="a Decoder, which can be made at another width",
            remedy="Check your own architecture with modelfactory.train.coordinates as a pattern.",
        )
    return model


def _json(checked: Checked) -> dict[str, Any]:
    by_size, by_change = (slopes(checked.coordinates, checked.n_steps, of) for of in ("size", "change"))
    return {
        "variants": list(checked.names),
        "coordinates": [
            {
                "rule": each.rule,
                "width": each.width,
                "step": each.step,
                "kind": each.kind,
                "size": each.size,
                "change": each.change,
            }
            for each in checked.coordinates
        ],
        "slopes": [
            {"rule": rule, "kind": kind, "size": by_size[rule, kind], "change": by_change[rule, kind]}
            for rule in RULES
            for kind in KINDS
        ],
    }


def _print(console: Console, checked: Sequence[Checked], output: Path) -> None:
    for each in checked:
        console.print(Text("; ".join(each.names)))
        table = Table("slope after the last step", *KINDS, box=None, pad_edge=False)
        for rule in RULES:
            for of in ("size", "change"):
                found = slopes(each.coordinates, each.n_steps, of)
                table.add_row(f"{rule}, {of}", *(f"{found[rule, kind]:+.2f}" for kind in KINDS))
        console.print(table)
    console.print("0: no matter how wide. Near 1: as large as the width.")
    console.print(f"plot: {output}", markup=False)


def _widths(text: str) -> tuple[int, ...]:
    try:
        widths = tuple(int(word) for word in text.split(","))
    except ValueError:
        widths = ()
    if len(set(widths)) < 2 or min(widths) < 1:
        raise argparse.ArgumentTypeError(f"found {text!r}, wanted two or more widths, such as 64,128,256")
    return widths
