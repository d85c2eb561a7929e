"""A faulty experiment file, executed so that it tells all of its faults."""

from __future__ import annotations

import ast
import inspect
import sys
import types
import typing
from typing import TYPE_CHECKING, NamedTuple

from modelfactory.errors import ExperimentError, InvalidInput
from modelfactory.experiment import check_comparisons, check_together
from modelfactory.loading.calls import Calls
from modelfactory.loading.declared import comparisons_of, declared
from modelfactory.loading.findings import Findings
from modelfactory.loading.importing import refuse_hidden
from modelfactory.loading.names import imported_names
from modelfactory.loading.places import Places, at_line, steps_to
from modelfactory.loading.raised import raised
from modelfactory.spec import collecting
from modelfactory.spec.checking import checked_value

if TYPE_CHECKING:
    from pathlib import Path

    from modelfactory.experiment import Comparison, Experiment


class Tried(NamedTuple):
    """What is known of a file that cannot be used."""

    faults: list[InvalidInput]
    """Empty when none can be named."""
    sound: tuple[Experiment, ...] = ()
    """The experiments that none of them concerns."""
    n_experiments: int = 0


def tried(path: Path, tree: ast.Module) -> Tried:
    """Return every fault of a file that cannot be used, and what it declares in spite of them."""
    refuse_hidden(path, path.stem)
    if not any(isinstance(node, ast.FunctionDef) and node.name == "experiments" for node in tree.body):
        fault = ExperimentError(
            place=str(path),
            found="no function `experiments`",
            wanted="def experiments() -> list[Experiment]",
            remedy="See docs/first-experiment.md.",
        )
        return Tried([fault])
    trial = _Trial(path, tree)
    return Tried(trial.faults(), trial.sound, len(trial.experiments))


class _Trial:
    """One execution of the file that goes on after a fault."""

    def __init__(self, path: Path, tree: ast.Module) -> None:
        self.path = path
        self.tree = tree
        self.module = types.ModuleType(path.stem)
        self.module.__file__ = str(path)
        self.places = Places(path)
        self.experiments: list[Experiment] = []
        self.comparisons: tuple[Comparison, ...] = ()
        self.sound: tuple[Experiment, ...] = ()
        """Those that no fault concerns; none where what a fault changed cannot be known."""

    def faults(self) -> list[InvalidInput]:
        """Return the faults of calls, of specs, and between experiments."""
        folder = str(self.path.resolve().parent)
        before = dict(sys.modules)
        sys.path.insert(0, folder)
        sys.modules[self.path.stem] = self.module
        try:
            return self._execute()
        finally:
            sys.path.remove(folder)
            self._forget_modules(before)

    def _forget_modules(self, before: dict[str, types.ModuleType]) -> None:
        """Forget what was imported meanwhile from beside the file: its specs may hold what was refused."""
        for name in set(sys.modules) - set(before):
            if self.places.shown(getattr(sys.modules[name], "__file__", None) or "") is not None:
                del sys.modules[name]
        if self.path.stem in before:
            sys.modules[self.path.stem] = before[self.path.stem]

    def _execute(self) -> list[InvalidInput]:
        findings = Findings(self.places)
        with collecting(findings.keep):
            names, faults = imported_names(self.places, self.tree)
            calls = Calls(self.path, names)
            tree = ast.fix_missing_locations(calls.visit(self.tree))
            errors = self._try(tree)
        if not (faults or calls.faults or errors):
            self.sound = findings.sound(self.experiments)
        faults = [*faults, *calls.faults, *findings.told(self.experiments)]
        return [*(faults or errors), *(self._between() if self.sound else [])]

    def _try(self, tree: ast.Module) -> list[InvalidInput]:
        try:
            exec(compile(tree, str(self.path), "exec"), self.module.__dict__)  # noqa: S102
            self.experiments = declared(self.path, self.module)
            self.comparisons = comparisons_of(self.path, self.module, self.experiments)
        except InvalidInput as error:
            return self.places.told(error)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it raises is one of its faults
            return _wrong_arguments(self.places, error) or [raised(self.places, error)]
        return []

    def _between(self) -> list[InvalidInput]:
        """Return what is wrong between experiments each of which is sound."""
        between = {
            "experiments": check_together(self.sound),
            "comparisons": check_comparisons(self.comparisons, self.experiments),
        }
        return [at_line(fault, self._defined(name)) for name, found in between.items() for fault in found]

    def _defined(self, name: str) -> str:
        """Return `file:line` of a function of the file."""
        lines = [n.lineno for n in self.tree.body if isinstance(n, ast.FunctionDef) and n.name == name]
        return f"{self.path}:{lines[-1]}" if lines else str(self.path)


def _wrong_arguments(places: Places, error: BaseException) -> list[InvalidInput]:
    """Say which arguments of a function of this package were of another type than it declares.

    Specs check their fields; a function that computes with its arguments first, as families of models do,
    fails somewhere inside.
    """
    frames = [step.frame for step in reversed(steps_to(error))]
    names = [str(frame.f_globals.get("__name__", "")) for frame in frames]
    own = {__name__, "modelfactory.loading.study", "modelfactory.loading.declared"}
    ours = [n for n, name in enumerate(names) if name.startswith("modelfactory.") and name not in own]
    frame = frames[ours[0]] if ours else None
    called = frame.f_globals.get(frame.f_code.co_name) if frame is not None else None
    if frame is None or not inspect.isfunction(called):
        return []
    try:
        hints = typing.get_type_hints(called)
    except NameError:  # of a function that is not for authors: its types are there for type checkers alone
        return []
    with collecting() as faults:
        for name, annotation in hints.items():
            if name in frame.f_locals:
                checked_value(frame.f_locals[name], annotation, f"{called.__name__}.{name}")
    steps = steps_to(error)
    return [at_line(fault, places.line(steps, fault.place)) for fault in faults]
