"""Exceptions of an experiment file as faults, with what was probably meant."""

from __future__ import annotations

import builtins
import pkgutil
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from modelfactory.errors import ExperimentError, nearest
from modelfactory.loading.places import PACKAGE, steps_to
from modelfactory.train.own_parts import first_argument, in_words, is_own_spec, line_of_ones_own

if TYPE_CHECKING:
    from collections.abc import Iterable

    from modelfactory.loading.places import Places, Step


def raised(places: Places, error: BaseException) -> ExperimentError:
    """Return an exception that the file raised as a fault, with the line it came from."""
    spec = _own_spec(error)
    if spec is not None:
        return _of_spec(places, error, *spec)
    return ExperimentError(
        place=_place(places, error),
        found=f"{type(error).__name__}: {error}",
        wanted=_wanted(error),
        remedy=_remedy(places, error),
    )


def _own_spec(error: BaseException) -> tuple[str, str, list[Step]] | None:
    """Return class and method of the author's own spec that raised, and the steps up to its call.

    Only of methods that this package or a dataclass calls: the author's own calls are told by their line.
    """
    steps = [step for step in steps_to(error) if not step.frame.f_code.co_filename.startswith("<")]
    met = [(n, part) for n, step in enumerate(steps) if is_own_spec(part := first_argument(step.frame))]
    if not met:
        return None
    outermost = max(n for n, part in met if part is met[0][1])
    method, before = steps[outermost].frame.f_code.co_name, steps[outermost + 1 :]
    is_called_here = bool(before) and Path(before[0].frame.f_code.co_filename).is_relative_to(PACKAGE)
    if method != "__post_init__" and not is_called_here:
        return None
    return type(met[0][1]).__name__, method, before


def _of_spec(
    places: Places, error: BaseException, name: str, method: str, before: list[Step]
) -> ExperimentError:
    line = places.line(before)
    where = line_of_ones_own(error)
    return ExperimentError(
        place=f"{line}: {name}.{method}" if line else f"{name}.{method}",
        found=f"{in_words(error)}{where and f' ({where})'}",
        wanted="a call that returns, or refuses a value by `require` of modelfactory.spec",
        remedy=f"Mend {name}. {_remedy(places, error)}".rstrip(),
    )


def _place(places: Places, error: BaseException) -> str:
    if isinstance(error, SyntaxError) and error.filename:
        return f"{places.shown(error.filename) or error.filename}:{error.lineno or 0}"
    return places.line(steps_to(error)) or str(places.path)


def _wanted(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return "Python"
    if isinstance(error, ModuleNotFoundError):
        return "a module that is installed or lies beside the file"
    if isinstance(error, ImportError):
        return "a name that the module holds"
    return "a file that can be imported and whose experiments() returns a list"


def _remedy(places: Places, error: BaseException) -> str:
    near = ""
    if isinstance(error, ModuleNotFoundError):
        near = _near_module(places, error.name or "")
    elif isinstance(error, ImportError):
        wanted = re.match(r"cannot import name '(\w+)'", str(error))
        near = nearest(wanted[1], _public(sys.modules.get(error.name or ""))) if wanted else ""
    elif isinstance(error, NameError):
        near = nearest(error.name or "", _visible(error))
    elif isinstance(error, AttributeError):
        near = nearest(error.name or "", _public(error.obj))
    return f"Did you mean {near!r}?" if near else ""


def _near_module(places: Places, name: str) -> str:
    """Return the closest module to the first part of a dotted name that is missing."""
    parent, _, last = name.rpartition(".")
    if parent:
        folders = list(getattr(import_module(parent), "__path__", [])) if parent in sys.modules else []
    else:
        folders = [str(places.path.resolve().parent), *sys.path]
    known = {module.name for module in pkgutil.iter_modules(folders)} - {places.path.stem}
    near = nearest(last, known if parent else known | sys.stdlib_module_names)
    return f"{parent}.{near}" if parent and near else near


def _public(value: object) -> Iterable[str]:
    names = getattr(value, "__all__", None) or dir(value)
    return [name for name in names if not name.startswith("_")]


def _visible(error: BaseException) -> set[str]:
    frame = steps_to(error)[0].frame
    return {name for names in (frame.f_locals, frame.f_globals, vars(builtins)) for name in names}
