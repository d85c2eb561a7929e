"""Specs to JSON."""

from __future__ import annotations

import dataclasses
import math
import sys
from functools import lru_cache
from typing import Any

from modelfactory.errors import SpecError

TYPE = "type"
"""Key under which JSON names the class of a spec as `module:Name`."""
IMPORT = "import"
"""Key under which JSON names a function or class as `module:Name`."""


def to_json(value: Any, place: str = "") -> Any:
    """Return `value` as JSON data in which every spec names its class and every field is present.

    Raises:
        SpecError: something in `value` cannot be written, with its dotted path.
    """
    if type(value) in _PLAIN:
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        body = {
            field.name: to_json(getattr(value, field.name), _below(place, field.name))
            for field in dataclasses.fields(value)
        }
        return {TYPE: class_name(type(value)), **body}
    if isinstance(value, tuple):
        return [to_json(item, f"{place}[{n}]") for n, item in enumerate(value)]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return _finite(value, place)
    if isinstance(value, (list, dict, set)):
        raise SpecError(
            place=place or "value",
            found=repr(value),
            wanted="a value that cannot change after the plan",
            remedy="Use a tuple (of pairs, in place of a dict).",
        )
    return {IMPORT: object_name(value, place or "value")}


_PLAIN = frozenset({str, int, bool, type(None)})


@lru_cache(maxsize=4096)
def class_name(cls: type) -> str:
    """Return `module:Name` of a class; see `object_name`."""
    return object_name(cls, cls.__name__)


def _below(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _finite(value: float, place: str) -> float:
    if not math.isfinite(value):
        raise SpecError(place=place or "value", found=repr(value), wanted="a finite number", remedy="")
    return value + 0.0  # -0.0 and 0.0 are one value


def object_name(value: Any, place: str) -> str:
    """Return `module:Name` of a function or class that another process can import.

    Raises:
        SpecError: it is a lambda, defined inside a function, lives in `__main__`, or is no such thing at all.
    """
    module = getattr(value, "__module__", None)
    name = getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        raise SpecError(
            place=place,
            found=f"{value!r} ({type(value).__name__})",
            wanted="a spec, a number, a string, a tuple, or an importable function or class",
            remedy="Describe it with a frozen dataclass.",
        )
    _refuse_unimportable(module, name, place)
    return f"{module}:{name}"


def _refuse_unimportable(module: str, name: str, place: str) -> None:
    if "<" in name:
        what = "a lambda" if "<lambda>" in name else f"{name}, defined inside a function"
        remedy = "Define it with `def` or `class` at the top level of a module."
        raise SpecError(place=place, found=what, wanted="something importable by name", remedy=remedy)
    if module == "__main__":
        raise SpecError(
            place=place,
            found=f"{name}, defined in __main__",
            wanted="something that a worker process can import",
            remedy="Move it to a module of its own, or give the file to `factory`, which imports it by name.",
        )
    loaded = sys.modules.get(module)
    if loaded is not None and not hasattr(loaded, name.partition(".")[0]):
        raise SpecError(
            place=place,
            found=f"{module}.{name}, which that module does not hold under this name",
            wanted="something importable by name",
            remedy="Bind it to its own name at the top level of its module.",
        )
