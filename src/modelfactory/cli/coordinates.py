"""`factory coord-check`."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from rich.table import Table
from rich.text import Text

from modelfactory.cli.answer import Answer
from modelfactory.cli.pages import check_place, place_named
from modelfactory.cli.setting import say
from modelfactory.engine.failure import classify
from modelfactory.engine.memory import limit
from modelfactory.errors import CommandError, ExperimentError, InvalidInput, InvalidInputs, SpecError
from modelfactory.experiment import Experiment
from modelfactory.loading import load_study
from modelfactory.models import Decoder
from modelfactory.models.mup_base import base_of
from modelfactory.report.coordinates import Checked, slope_text, verdict, write_coordinates
from modelfactory.report.numbers import size
from modelfactory.train.coordinate_sizes import KINDS
from modelfactory.train.coordinate_slopes import STABLE, slopes, trend, unstable
from modelfactory.train.coordinates import (
    RULES,
    check_steps,
    check_widths,
    coordinate_check,
    copies,
    copy_bytes,
)
from modelfactory.train.optimizers import Optimizer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console


@dataclass
class _Subject:
    """A base, an optimizer, and the experiments that have both in common."""

    base: Decoder
    optimizer: Optimizer
    experiments: list[Experiment] = field(default_factory=list)

    @property
    def names(self) -> tuple[str, ...]:
        """Variants, each once."""
        return tuple(dict.fromkeys(each.variant for each in self.experiments))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what `coord-check` takes besides the file."""
    parser.add_argument(
        "--widths", type=_widths, default=(64, 128, 256), help="d_model of each (default: 64,128,256)"
    )
    parser.add_argument("--steps", type=_steps, default=4, help="updates of each model (default: 4)")
    parser.add_argument("-o", "--output", type=Path, default=Path("coords.html"), help="default: coords.html")


def coord_check(arguments: argparse.Namespace) -> Answer:
    """Check each model of a file with its optimizer, once for all experiments that have both in common.

    What can be refused is refused before the first model is trained; one that fails then leaves the others.
    """
    check_place(arguments.output, "plot")
    study = load_study(arguments.file)
    subjects, faults = _subjects(study.experiments)
    faults += [fault for each in subjects for fault in _faults(each, arguments.widths)]
    if faults:
        raise InvalidInputs(faults)
    checked = [_checked(each, arguments.widths, arguments.steps) for each in subjects]
    with place_named(arguments.output, "plot"):
        write_coordinates(checked, arguments.output)
    data = {"output": str(arguments.output), "models": [_json(each) for each in checked]}
    code = SpecError.exit_code if any(each.error for each in checked) else 0
    return Answer(data=data, text=lambda console: _print(console, checked, arguments.output), code=code)


def _subjects(experiments: Sequence[Experiment]) -> tuple[list[_Subject], list[InvalidInput]]:
    """Return each base with its optimizer, and why some variants have none.

    A model that has muP stands for the base it was made from.
    """
    plain = list(dict.fromkeys(each.model for each in experiments if isinstance(each.model, Decoder)))
    found: dict[Any, _Subject] = {}
    faults: dict[str, InvalidInput] = {}
    for each in experiments:
        try:
            base = base_of(_decoder(each), known=plain)
        except InvalidInput as error:
            faults.setdefault(each.variant, _of(each, error))
            continue
        optimizer = each.training.optimizer
        subject = found.setdefault((base, optimizer), _Subject(base, optimizer))
        subject.experiments.append(each)
    return list(found.values()), list(faults.values())


def _decoder(experiment: Experiment) -> Decoder:
    if isinstance(experiment.model, Decoder):
        return experiment.model
    raise ExperimentError(
        place="",
        found=type(experiment.model).__name__,
        wanted="a Decoder, which can be made at another width",
        remedy="Check your own architecture with modelfactory.train.coordinates as a pattern.",
    )


def _of(experiment: Experiment, error: InvalidInput) -> InvalidInput:
    """Return the error with the experiment that it is about."""
    place = f"{experiment.name}: model" + (f": {error.place}" if error.place else "")
    return type(error)(place=place, found=error.found, wanted=error.wanted, remedy=error.remedy)


def _faults(subject: _Subject, widths: Sequence[int]) -> list[InvalidInput]:
    """Return why a model cannot be made at these widths, or does not fit the memory there is."""
    first = subject.experiments[0]
    try:
        made = copies(subject.base, widths)
    except InvalidInput as error:
        return [_of(first, error)]
    room = min(limit(), int(psutil.virtual_memory().available))
    for copy in made:
        needed = copy_bytes(copy.model, subject.optimizer)
        if needed > room:
            return [_too_wide(f"--widths {copy.width}: {first.name}", needed, room)]
    return []


def _too_wide(place: str, needed: int, room: int) -> CommandError:
    return CommandError(
        place=place,
        found=f"a model that takes about {size(needed)} of memory",
        wanted=f"at most the {size(room)} that are free here",
        remedy="Give narrower widths, or check fewer layers: the rules are the same for each.",
    )


def _checked(subject: _Subject, widths: Sequence[int], n_steps: int) -> Checked:
    names = subject.names
    say(f"{names[0]}: widths {', '.join(map(str, widths))}, {n_steps} step{'s' if n_steps > 1 else ''}")
    try:
        found = coordinate_check(
            subject.base,
            subject.optimizer,
            widths=widths,
            n_steps=n_steps,
            seed=subject.experiments[0].training.seed,
        )
    except (InvalidInput, MemoryError, RuntimeError) as error:
        told = _failure(error, f"{subject.experiments[0].name}: ")
        say(told)
        return Checked(names=names, coordinates=(), n_steps=n_steps, error=told)
    return Checked(names=names, coordinates=tuple(found), n_steps=n_steps)


def _failure(error: Exception, of: str) -> str:
    """Return in words what ended the check of one model; what is a fault of ours is raised."""
    if isinstance(error, InvalidInput):
        return f"{of}{error}"
    if classify(error) == "memory":
        return f"{of}found no memory left, wanted enough for the widest model. Give narrower widths."
    raise error


def _json(checked: Checked) -> dict[str, Any]:
    by_size, by_change = (slopes(checked.coordinates, checked.n_steps, of) for of in ("size", "change"))
    return {
        "variants": list(checked.names),
        "error": checked.error,
        "threshold": STABLE,
        "stable": {rule: not checked.error and not unstable(by_change, rule) for rule in RULES},
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
            {
                "rule": rule,
                "kind": kind,
                "size": by_size[rule, kind],
                "change": slope,
                "verdict": trend(slope),
            }
            for (rule, kind), slope in by_change.items()
        ],
    }


def _print(console: Console, checked: Sequence[Checked], output: Path) -> None:
    for each in checked:
        console.print(Text("; ".join(each.names), style="bold"))
        if each.error:
            console.print(Text(f"not checked: {each.error}"))
            continue
        for rule in RULES:
            console.print(Text(f"{_SPOKEN[rule]}: {verdict(each, rule)}"))
        console.print(_table(each))
    console.print(
        f"Verdicts are on the slope of the change after the last step: up to {STABLE} either way is stable.\n"
        "0: no matter how wide. 1: in proportion to the width."
    )
    console.print(f"plot: {output}", markup=False)


_SPOKEN = {"standard": "as it is", "muP": "by muP"}


def _table(checked: Checked) -> Table:
    table = Table("slope after the last step", *KINDS, box=None, pad_edge=False)
    for rule in RULES:
        for of in ("change", "size"):
            found = slopes(checked.coordinates, checked.n_steps, "size" if of == "size" else "change")
            table.add_row(f"{rule}, {of}", *(slope_text(found[rule, kind]) for kind in KINDS))
    return table


def _widths(text: str) -> tuple[int, ...]:
    try:
        widths = tuple(int(word) for word in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"found {text!r}, wanted whole numbers with commas between them, such as 64,128,256"
        ) from error
    _check(check_widths, widths)
    return widths


def _steps(text: str) -> int:
    try:
        n_steps = int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"found {text!r}, wanted a whole number") from error
    _check(check_steps, n_steps)
    return n_steps


def _check(check: Callable[[Any], None], value: Any) -> None:
    """Refuse what `check` refuses; the parser adds the name of the option."""
    try:
        check(value)
    except SpecError as error:
        raise argparse.ArgumentTypeError(f"found {error.found}, wanted {error.wanted}") from error
