"""What specs refuse while a file is executed: each fault once, with the experiments that have it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

from modelfactory.errors import InvalidInput, listed
from modelfactory.experiment import Experiment
from modelfactory.loading.places import at_line, steps_to_here

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from modelfactory.loading.places import Places, Step

NAMES_SHOWN = 3


class Finding(NamedTuple):
    """One fault of one spec."""

    fault: InvalidInput
    spec: object
    """The spec that was being made, which is kept alive so that no other gets its id; None outside of any."""


class Findings:
    """Faults with their lines, in the order they were met."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._found: dict[tuple[str, ...], list[Finding]] = {}

    def keep(self, fault: InvalidInput) -> None:
        """Take a fault while the frames that led to it are on the stack."""
        steps = list(steps_to_here())
        spec = _being_made(steps)
        if isinstance(spec, Experiment):  # equal faults of experiments differ in this name alone
            fault = _without(f"{spec.name}: ", fault)
        fault = at_line(fault, self._places.line(steps, fault.place))
        key = (fault.place, fault.found, fault.wanted, fault.remedy)
        self._found.setdefault(key, []).append(Finding(fault, spec))

    def told(self, experiments: Sequence[Experiment]) -> list[InvalidInput]:
        """Return each fault once; it says in which experiments it is where that can be known.

        Args:
            experiments: all of the file; empty when it could not be executed to its end.
        """
        holders = _holders(experiments)
        return [_among(group, holders, len(experiments)) for group in self._found.values()]

    def sound(self, experiments: Sequence[Experiment]) -> tuple[Experiment, ...]:
        """Return the experiments that no fault can concern; none where one belongs to no spec."""
        faulty = [finding.spec for group in self._found.values() for finding in group]
        if any(spec is None for spec in faulty):
            return ()
        known = {id(spec) for spec in faulty}
        return tuple(each for each in experiments if not known & _ids(each))


def _being_made(steps: Iterable[Step]) -> object:
    frames = (step.frame for step in steps if step.frame.f_code.co_name == "__post_init__")
    return next((frame.f_locals.get("self") for frame in frames), None)


def _without(prefix: str, fault: InvalidInput) -> InvalidInput:
    place = fault.place.removeprefix(prefix)
    return type(fault)(place=place, found=fault.found, wanted=fault.wanted, remedy=fault.remedy)


def _holders(experiments: Iterable[Experiment]) -> dict[int, list[str]]:
    """Return for the id of each spec the names of the experiments that it is part of."""
    found: dict[int, list[str]] = {}
    for experiment in experiments:
        for known in _ids(experiment):
            found.setdefault(known, []).append(experiment.name)
    return found


def _ids(value: Any) -> set[int]:
    if isinstance(value, (tuple, list)):  # a list is a fault itself
        return set().union(*map(_ids, value))
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return set()
    parts = (_ids(getattr(value, field.name, None)) for field in dataclasses.fields(value))
    return {id(value)}.union(*parts)


def _among(group: list[Finding], holders: dict[int, list[str]], n_experiments: int) -> InvalidInput:
    fault = group[0].fault
    names: dict[str, None] = {}
    for finding in group:
        own = [finding.spec.name] if isinstance(finding.spec, Experiment) else []
        names.update(dict.fromkeys(holders.get(id(finding.spec), own)))
    return in_experiments(fault, list(names), n_experiments)


def in_experiments(fault: InvalidInput, names: Sequence[str], n_experiments: int) -> InvalidInput:
    """Return the fault with the names of the experiments that it is in, where a file has several."""
    place = f"{fault.place}{_counted(names, n_experiments)}"
    return type(fault)(place=place, found=fault.found, wanted=fault.wanted, remedy=fault.remedy)


def _counted(names: Sequence[str], n_experiments: int) -> str:
    if not names or n_experiments == 1:
        return ""
    if len(names) == 1:
        return f" (in experiment {names[0]!r})"
    if len(names) == n_experiments:
        return f" (in all {n_experiments} experiments)"
    more = ", ..." if len(names) > NAMES_SHOWN else ""
    of_all = f" of {n_experiments}" if n_experiments else ""
    return f" (in {len(names)}{of_all} experiments: {listed(names[:NAMES_SHOWN])}{more})"
