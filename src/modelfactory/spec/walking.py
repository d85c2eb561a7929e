"""What a spec names and where its fields lie."""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from modelfactory.spec.writing import class_name, object_name

if TYPE_CHECKING:
    from collections.abc import Iterator


def names_in(value: Any, *, without: type | None = None) -> frozenset[str]:
    """Return `module:Name` of every class, and every function named by value, in a spec.

    Args:
        value: a spec.
        without: specs of this class, and all in them, are left out.
    """
    if isinstance(value, tuple):
        return frozenset().union(*(names_in(item, without=without) for item in value))
    if value is None or isinstance(value, (bool, int, float, str)):
        return frozenset()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _names_in_spec(value, without)  # type: ignore[arg-type]
    return frozenset({object_name(value, "value")})


@lru_cache(maxsize=16_384)
def _names_in_spec(value: Any, without: type | None) -> frozenset[str]:
    if without is not None and isinstance(value, without):
        return frozenset()
    own = frozenset({class_name(type(value))})  # type: ignore[arg-type]
    fields = dataclasses.fields(value)
    return own.union(*(names_in(getattr(value, field.name), without=without) for field in fields))


def where_paths(value: Any, place: str = "") -> Iterator[str]:
    """Yield the dotted paths of fields that say where, not what."""
    if isinstance(value, tuple):
        for n, item in enumerate(value):
            yield from where_paths(item, f"{place}[{n}]")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            here = f"{place}.{field.name}" if place else field.name
            if not field.metadata.get("identity", True):
                yield here
            else:
                yield from where_paths(getattr(value, field.name), here)
