"""A faulty experiment file, executed so that it tells all of its faults."""

from __future__ import annotations

import ast
import inspect
import sys
import traceback
import types
import typing
from typing import TYPE_CHECKING, Any

from modelfactory.errors import ExperimentError, InvalidInput, InvalidInputs
from modelfactory.experiment import check_comparisons, check_together
from modelfactory.loading.calls import Calls
from modelfactory.loading.declared import comparisons_of, declared
from modelfactory.loading.importing import refuse_hidden
from modelfactory.spec import collecting
from modelfactory.spec.checking import checked_value

if TYPE_CHECKING:
    from pathlib import Path


def faults_of(path: Path, tree: ast.Module) -> list[InvalidInput]:
    """Return every fault of a file that cannot be used; empty when none can be named."""
    refuse_hidden(path, path.stem)
    if not any(isinstance(node, ast.FunctionDef) and node.name == "experiments" for node in tree.body):
        return [
            ExperimentError(
                place=str(path),
                found="no function `experiments`",
                wanted="def experiments() -> list[Experiment]",
                remedy="See docs/first-experiment.md.",
            )
        ]
    return _Trial(path, tree).faults()


class _Trial:
    """One execution of the file that goes on after a fault."""

    def __init__(self, path: Path, tree: ast.Module) -> None:
        self.path = path
        self.tree = tree
        self.module = types.ModuleType(path.stem)
        self.module.__file__ = str(path)

    def faults(self) -> list[InvalidInput]:
        """Return the faults of calls, of specs, and between experiments."""
        folder = str(self.path.resolve().parent)
        before = sys.modules.get(self.path.stem)
        sys.path.insert(0, folder)
        sys.modules[self.path.stem] = self.module
        try:
            return self._execute()
        finally:
            sys.path.remove(folder)
            sys.modules.pop(self.path.stem, None)
            if before is not None:
                sys.modules[self.path.stem] = before

    def _execute(self) -> list[InvalidInput]:
        names = self._imported_names()
        calls = Calls(self.path, names)
        tree = ast.fix_missing_locations(calls.visit(self.tree))
        faults: list[InvalidInput] = list(calls.faults)
        with collecting() as collected:
            error = self._try(tree)
        faults.extend(collected)
        if error is not None and not faults:
            faults.append(error)
        return faults

    def _imported_names(self) -> dict[str, Any]:
        """Execute the import statements alone, to know which callables the file means."""
        imports: list[ast.stmt] = [
            node for node in self.tree.body if isinstance(node, (ast.Import, ast.ImportFrom))
        ]
        scratch: dict[str, Any] = {"__name__": self.path.stem}
        for node in imports:
            try:
                exec(compile(ast.Module([node], []), str(self.path), "exec"), scratch)  # noqa: S102
            except ImportError:
                continue  # told by the execution of the whole file
        return scratch

    def _try(self, tree: ast.Module) -> InvalidInput | None:
        try:
            exec(compile(tree, str(self.path), "exec"), self.module.__dict__)  # noqa: S102
            experiments = declared(self.path, self.module)
            comparisons = comparisons_of(self.path, self.module, experiments)
            found = [*check_together(experiments), *check_comparisons(comparisons, experiments)]
        except InvalidInput as error:
            return error
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it raises is one of its faults
            return _wrong_arguments(error) or raised(self.path, error)
        return InvalidInputs(found) if found else None


def raised(path: Path, error: BaseException) -> ExperimentError:
    """Return an exception that the file raised as a fault, with the line it came from."""
    line = 0
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = trace.tb_lineno
        trace = trace.tb_next
    return ExperimentError(
        place=f"{path}:{line}",
        found=f"{type(error).__name__}: {error}",
        wanted="a file that can be imported and whose experiments() returns a list",
        remedy="",
    )


def _wrong_arguments(error: BaseException) -> InvalidInput | None:
    """Say which arguments of a function of this package were of another type than it declares.

    Specs check their fields; a function that computes with its arguments first, as families of models do,
    fails somewhere inside.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    names = [str(frame.f_globals.get("__name__", "")) for frame in frames]
    own = {__name__, "modelfactory.loading.study", "modelfactory.loading.declared"}
    ours = [n for n, name in enumerate(names) if name.startswith("modelfactory.") and name not in own]
    frame = frames[ours[0]] if ours else None
    called = frame.f_globals.get(frame.f_code.co_name) if frame is not None else None
    if frame is None or not inspect.isfunction(called):
        return None
    try:
        hints = typing.get_type_hints(called)
    except NameError:  # of a function that is not for authors: its types are there for type checkers alone
        return None
    with collecting() as faults:
        for name, annotation in hints.items():
            if name in frame.f_locals:
                checked_value(frame.f_locals[name], annotation, f"{called.__name__}.{name}")
    return InvalidInputs(faults) if faults else None
