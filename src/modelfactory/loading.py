"""An experiment file: from its path to a study, or to all of its faults at once.

The file is imported by its own name, with its folder on the Python path, so that functions and classes it
defines can be imported by worker processes. To find every fault in one reading, calls in it are first held
against the signatures they name; then it is executed with the wrong keywords taken out, while the checks of
the specs collect what they find.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import sys
import sysconfig
import traceback
import types
import typing
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelfactory.errors import ExperimentError, InvalidInput, InvalidInputs, closest
from modelfactory.experiment import (
    Comparison,
    Experiment,
    check_comparisons,
    check_together,
    default_comparisons,
)
from modelfactory.spec import collecting
from modelfactory.spec.checking import checked_value

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, kw_only=True)
class Study:
    """What an experiment file declares."""

    file: Path
    question: str
    """The docstring of the file."""
    experiments: tuple[Experiment, ...]
    comparisons: tuple[Comparison, ...]

    @property
    def folder(self) -> Path:
        """The folder that workers put on their Python path."""
        return self.file.parent


def load_study(path: Path) -> Study:
    """Import an experiment file and check all that can be known without reading data.

    Raises:
        InvalidInputs: every fault of the file.
    """
    tree = _parse(path, _read(path))
    try:
        study = _study(path, _import(path))
        _refuse_together(study)
    except (Exception, SystemExit) as error:
        faults = _faults(path, tree)
        raise InvalidInputs(faults or _as_faults(path, error)) from error
    return study


def _refuse_together(study: Study) -> None:
    found = [*check_together(study.experiments), *check_comparisons(study.comparisons, study.experiments)]
    if found:
        raise InvalidInputs(found)


def _as_faults(path: Path, error: BaseException) -> list[InvalidInput]:
    return list(flattened(error)) if isinstance(error, InvalidInput) else [_raised(path, error)]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        near = closest(path.name, [p.name for p in path.parent.glob("*.py")]) if path.parent.is_dir() else ""
        raise ExperimentError(
            place=str(path), found=str(error), wanted="a Python file in UTF-8", remedy=near
        ) from error


def _parse(path: Path, text: str) -> ast.Module:
    try:
        return ast.parse(text, filename=str(path))
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", 0) or 0
        raise ExperimentError(
            place=f"{path}:{line}", found=f"{type(error).__name__}: {error}", wanted="Python", remedy=""
        ) from error


def _import(path: Path) -> types.ModuleType:
    """Import the file by its stem, afresh each time."""
    folder, name = str(path.resolve().parent), path.stem
    _refuse_hidden(path, name)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    sys.modules.pop(name, None)
    importlib.invalidate_caches()
    return importlib.import_module(name)


def _refuse_hidden(path: Path, name: str) -> None:
    """A file named like another module would be imported in its place, or the other in this one's."""
    loaded = sys.modules.get(name)
    other = getattr(loaded, "__file__", None) if loaded is not None else None
    hidden = loaded is not None and (other is None or Path(other).resolve() != path.resolve())
    other = other or _installed(name)
    hidden = hidden or (loaded is None and other is not None)
    if name in sys.stdlib_module_names or hidden or not name.isidentifier():
        raise ExperimentError(
            place=str(path),
            found=f"the module name {name!r}" + (f", which {other or 'Python itself'} has" if hidden else ""),
            wanted="a Python name that no other module has",
            remedy="Rename the file.",
        )


def _installed(name: str) -> str | None:
    """Return where a library of this name lies, imported or not: a worker may import it later."""
    found = PathFinder.find_spec(name, [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    return None if found is None else found.origin or str(found.submodule_search_locations)


def _faults(path: Path, tree: ast.Module) -> list[InvalidInput]:
    _refuse_hidden(path, path.stem)
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
        calls = _Calls(self.path, names)
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
            experiments = _declared(self.path, self.module)
            comparisons = _comparisons(self.path, self.module, experiments)
        except InvalidInput as error:
            return error
        except (Exception, SystemExit) as error:  # whatever the file raises becomes one of its faults
            return _wrong_arguments(error) or _raised(self.path, error)
        found = [*check_together(experiments), *check_comparisons(comparisons, experiments)]
        return InvalidInputs(found) if found else None


def _raised(path: Path, error: BaseException) -> ExperimentError:
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
    ours = [n for n, name in enumerate(names) if name.startswith("modelfactory.") and name != __name__]
    frame = frames[ours[0]] if ours else None
    called = frame.f_globals.get(frame.f_code.co_name) if frame is not None else None
    if frame is None or not inspect.isfunction(called):
        return None
    with collecting() as faults:
        for name, annotation in typing.get_type_hints(called).items():
            if name in frame.f_locals:
                checked_value(frame.f_locals[name], annotation, f"{called.__name__}.{name}")
    return InvalidInputs(faults) if faults else None


class _Calls(ast.NodeTransformer):
    """Hold keyword arguments against signatures; take out those that nobody knows."""

    def __init__(self, path: Path, names: dict[str, Any]) -> None:
        self.path = path
        self.names = names
        self.faults: list[ExperimentError] = []

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Check one call whose target is imported from this package."""
        self.generic_visit(node)
        target = self._target(node.func)
        parameters = _parameters(target)
        if parameters is None:
            return node
        given = [keyword.arg for keyword in node.keywords if keyword.arg]
        for name in [name for name in given if name not in parameters]:
            self._fault(node, target, f"an unknown field {name!r}", closest(name, parameters))
        node.keywords = [keyword for keyword in node.keywords if not keyword.arg or keyword.arg in parameters]
        unpacked = any(keyword.arg is None for keyword in node.keywords) or node.args
        missing = [name for name, needed in parameters.items() if needed and name not in given]
        if missing and not unpacked:
            self._fault(node, target, f"no {', '.join(missing)}", f"Give {', '.join(missing)}.")
        return node

    def _target(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Name):
            return self.names.get(node.id)
        if isinstance(node, ast.Attribute):
            return getattr(self._target(node.value), node.attr, None)
        return None

    def _fault(self, node: ast.Call, target: Any, found: str, remedy: str) -> None:
        place = f"{self.path}:{node.lineno}: {target.__name__}"
        wanted = f"the fields of {target.__name__}"
        self.faults.append(ExperimentError(place=place, found=found, wanted=wanted, remedy=remedy))


def _parameters(target: Any) -> dict[str, bool] | None:
    """Return the keyword parameters of a spec or family of this package: name -> must be given."""
    module = getattr(target, "__module__", None)
    if not callable(target) or not str(module).startswith("modelfactory"):
        return None
    parameters = inspect.signature(target).parameters.values()
    if any(p.kind in (p.VAR_KEYWORD, p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters):
        return None
    return {p.name: p.default is p.empty for p in parameters}


def _study(path: Path, module: types.ModuleType) -> Study:
    experiments = _declared(path, module)
    return Study(
        file=path.resolve(),
        question=inspect.cleandoc(module.__doc__ or ""),
        experiments=tuple(experiments),
        comparisons=_comparisons(path, module, experiments),
    )


def _declared(path: Path, module: types.ModuleType) -> list[Experiment]:
    found = module.experiments()
    good = isinstance(found, (list, tuple)) and found and all(isinstance(item, Experiment) for item in found)
    if not good:
        raise ExperimentError(
            place=f"{path}: experiments()",
            found=f"{found!r:.80}",
            wanted="a list of at least one Experiment",
            remedy="",
        )
    return list(found)


def _comparisons(
    path: Path, module: types.ModuleType, experiments: list[Experiment]
) -> tuple[Comparison, ...]:
    asked = getattr(module, "comparisons", None)
    if asked is None:
        return default_comparisons(experiments)
    found = tuple(asked())
    if not all(isinstance(item, Comparison) for item in found):
        raise ExperimentError(
            place=f"{path}: comparisons()", found=f"{found!r:.80}", wanted="a list of Comparison", remedy=""
        )
    return found


def flattened(error: InvalidInput) -> Iterator[InvalidInput]:
    """Yield the single faults behind an error."""
    if isinstance(error, InvalidInputs):
        for inner in error.errors:
            yield from flattened(inner)
    else:
        yield error
