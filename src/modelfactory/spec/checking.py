"""Values against their annotations, at declaration."""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
import math
import types
import typing
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, Literal, Union, get_args, get_origin

from modelfactory.errors import InvalidInput, SpecError
from modelfactory.spec.writing import class_name, object_name

if typing.TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


def not_identity(**options: Any) -> Any:
    """Declare a field that says where, not what: it stays out of the fingerprint."""
    return dataclasses.field(metadata={"identity": False}, **options)


MOST_SHOWN = 160
"""Characters of a refused value that an error shows."""

_collector: ContextVar[Callable[[SpecError], None] | None] = ContextVar("collector", default=None)


@contextmanager
def collecting(keep: Callable[[SpecError], None] | None = None) -> Iterator[list[SpecError]]:
    """Gather what `require` finds inside the block, so that all faults of a file are told at once.

    Args:
        keep: takes each fault, in place of the list, while the frames that led to it are on the stack.
    """
    found: list[SpecError] = []

    def keep_once(error: SpecError) -> None:
        if all(str(error) != str(known) for known in found):
            found.append(error)

    token = _collector.set(keep or keep_once)
    try:
        yield found
    finally:
        _collector.reset(token)


def require(condition: bool, *, place: str, found: object, wanted: str, remedy: str = "") -> None:
    """Raise SpecError unless `condition` holds; `found` is shown by its repr.

    Inside `collecting()` the error is kept and the caller goes on.
    """
    if condition:
        return
    error = SpecError(place=place, found=_shortened(_shown(found)), wanted=wanted, remedy=remedy)
    keep = _collector.get()
    if keep is None:
        raise error
    keep(error)


def _shortened(text: str) -> str:
    """Cut the middle out of a long value: a spec may be a page long."""
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 20]} ... {text[-15:]}"


def _shown(value: object) -> str:
    """Show a function by its name: its address says nothing and differs each time."""
    return f"the function {value.__qualname__}" if inspect.isfunction(value) else repr(value)


def check_types(spec: object) -> bool:
    """Convert every field of `spec` to its annotated type; say whether all are of it.

    That is always so unless faults are collected; what concerns several fields need not be looked at then.

    Raises:
        SpecError: a field holds a value of another type, a number that is not finite, a value that can be
            changed later (list, dict, set), or a function or class that no other process can import.
    """
    keep, n_faults = _collector.get(), 0
    if keep is None:
        _convert(spec)
        return True

    def count(error: SpecError) -> None:
        nonlocal n_faults
        n_faults += 1
        keep(error)

    with collecting(count):
        _convert(spec)
    return n_faults == 0


def _convert(spec: object) -> None:
    cls = type(spec)
    check_class(cls)
    for name, annotation in field_types(cls).items():  # type: ignore[arg-type]
        value = getattr(spec, name)
        kind: Any = type(value)
        if (annotation is float and _is_fine_real(value)) or _takes_every(annotation, kind):
            continue  # nearly all fields: a plan of a thousand experiments checks a hundred thousand
        if kind in _FEW and _passes(annotation, value, kind):
            continue
        checked = checked_value(value, annotation, f"{cls.__name__}.{name}")
        if checked is not value:
            object.__setattr__(spec, name, checked)  # the dataclass is frozen for everybody else


def _is_fine_real(value: Any) -> bool:
    return type(value) is float and value != 0 and math.isfinite(value)


@lru_cache(maxsize=4096)
def _takes_every(annotation: Any, kind: Any) -> bool:
    """Say whether every value of this very type is fine, as it is, for the annotation."""
    if kind in _AS_IT_IS or not dataclasses.is_dataclass(kind):
        return annotation is kind and kind in _AS_IT_IS
    is_union = get_origin(annotation) in (Union, types.UnionType)
    members = get_args(annotation) if is_union else (annotation,)
    cls: Any = kind
    named = any(member is kind or (_is_protocol(member) and not lacking(cls, member)) for member in members)
    return named and _is_frozen_and_importable(kind)  # type: ignore[arg-type]


@lru_cache(maxsize=4096)
def _passes(annotation: Any, value: Any, kind: Any) -> bool:
    """Say whether a word or nothing is fine as it is; `kind` keeps apart what is equal, as 1 and True are."""
    del kind
    with collecting() as faults:
        return checked_value(value, annotation, "") is value and not faults


def check_class(cls: type) -> None:
    """Raise SpecError unless `cls` is a frozen dataclass that another process can import."""
    require(
        _is_frozen_and_importable(cls),
        place=cls.__name__,
        found=cls,
        wanted="a frozen dataclass",
        remedy="Declare it with @dataclass(frozen=True, kw_only=True).",
    )


@lru_cache(maxsize=1024)
def _is_frozen_and_importable(cls: type) -> bool:
    class_name(cls)
    params = getattr(cls, "__dataclass_params__", None)
    return params is not None and bool(params.frozen)


@lru_cache(maxsize=1024)
def field_types(cls: type) -> dict[str, Any]:
    """Return the resolved annotation of every field of a dataclass."""
    try:
        hints = typing.get_type_hints(cls)
    except NameError as error:
        raise SpecError(
            place=cls.__name__,
            found=f"an annotation that cannot be resolved ({error})",
            wanted="annotations whose names exist when the program runs",
            remedy="Import them outside `if TYPE_CHECKING:`.",
        ) from error
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def checked_value(value: Any, annotation: Any, place: str) -> Any:
    """Return `value` as its annotated type, or raise SpecError naming `place`."""
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return _one_of(value, annotation, place)
    if origin is Literal:
        choices = get_args(annotation)
        known = any(value == choice and type(value) is type(choice) for choice in choices)
        require(known, place=place, found=value, wanted=f"one of {', '.join(map(repr, choices))}")
        return value
    if origin is tuple or annotation is tuple:
        return _checked_tuple(value, get_args(annotation), place)
    if annotation in _PLAIN:
        return _PLAIN[annotation](value, place)
    _refuse_mutable(value, place)
    return _checked_object(value, annotation, place)


def _one_of(value: Any, annotation: Any, place: str) -> Any:
    """Prefer the member whose type is exactly the value's: `1` in `float | int` stays a whole number."""
    members = get_args(annotation)
    if type(value) in members:
        members = (type(value),)
    problems: list[InvalidInput] = []
    for member in members:
        with collecting() as faults:
            checked = checked_value(value, member, place)
        if not faults:
            return checked
        problems.extend(faults)
    wanted = " or ".join(dict.fromkeys(problem.wanted for problem in problems))
    remedy = _as_a_spec(value, members) or problems[-1].remedy
    require(False, place=place, found=value, wanted=wanted, remedy=remedy)
    return value


def _as_a_spec(value: Any, annotations: Iterable[Any]) -> str:
    """Say how a class or a function would become a spec of one of the annotated classes."""
    classes = [each for each in annotations if isinstance(each, type) and dataclasses.is_dataclass(each)]
    if isinstance(value, type):
        return f"Call it: {value.__name__}(...)." if value in classes else ""
    if not inspect.isroutine(value):
        return ""
    known = value.__name__ if value.__name__.isidentifier() else "..."
    wrapped = [f"{cls.__name__}({name}={known})" for cls in classes for name in _wrapping(cls)]
    return f"Write {' or '.join(wrapped)}." if wrapped else ""


def _wrapping(cls: type) -> list[str]:
    """Return the field that takes a function, of a class that needs nothing else."""
    missing = dataclasses.MISSING
    fields = dataclasses.fields(cls)
    needed = [each.name for each in fields if each.default is missing and each.default_factory is missing]
    return [name for name in needed if len(needed) == 1 and get_origin(field_types(cls)[name]) is _FUNCTION]


def _checked_tuple(value: Any, members: tuple[Any, ...], place: str) -> Any:
    _refuse_mutable(value, place)
    remedy = "A tuple of one is written with a comma: (x,)."
    require(isinstance(value, tuple), place=place, found=value, wanted="a tuple", remedy=remedy)
    if not isinstance(value, tuple):
        return value  # the fault is collected
    if not members:
        members = (Any, ...)
    if len(members) == 2 and members[1] is ...:
        members = (members[0],) * len(value)
    require(len(members) == len(value), place=place, found=value, wanted=f"{len(members)} values")
    if len(members) != len(value):
        return value  # the fault is collected
    checked = tuple(
        checked_value(item, member, f"{place}[{n}]")
        for n, (item, member) in enumerate(zip(value, members, strict=True))
    )
    same = all(new is old for new, old in zip(checked, value, strict=True))
    return value if same else checked


def _refuse_mutable(value: Any, place: str) -> None:
    require(
        not isinstance(value, (list, dict, set, bytearray)),
        place=place,
        found=value,
        wanted="a value that cannot change after the plan",
        remedy="Use a tuple (of pairs, in place of a dict).",
    )


def _checked_object(value: Any, annotation: Any, place: str) -> Any:
    """Check specs, functions and classes; an abstract annotation (a Protocol, Any) takes any of them."""
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        good, remedy = isinstance(value, annotation), _as_a_spec(value, (annotation,))
        require(good, place=place, found=value, wanted=f"a {annotation.__name__}", remedy=remedy)
        if not good:
            return value  # the fault is collected
    if value is None or isinstance(value, (bool, int, float, str)):
        scalar = annotation is Any or annotation is object
        require(scalar, place=place, found=value, wanted=f"a {getattr(annotation, '__name__', annotation)}")
        return _plain_real(value, place) if isinstance(value, float) else value
    if isinstance(value, tuple):
        return _checked_tuple(value, (Any, ...), place)
    if _is_protocol(annotation) and not _fits(value, annotation, place):
        return value  # the fault is collected
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        check_class(type(value))
        return value
    object_name(value, place)
    return value


def _is_protocol(annotation: Any) -> bool:
    return getattr(annotation, "_is_protocol", False) is True


def _fits(value: Any, protocol: Any, place: str) -> bool:
    """Refuse what has not all that a Protocol names, and what would have it once it is called."""
    kind: Any = type(value)
    is_uncalled = not dataclasses.is_dataclass(kind) and "__call__" not in members_of(protocol)
    missing = members_of(protocol) if is_uncalled else lacking(kind, protocol)
    remedy = ""
    if is_uncalled and callable(value):
        remedy = f"Call it: {getattr(value, '__name__', '...')}(...)."
    named = protocol.__name__
    wanted = f"{'an' if named[0] in 'AEIOU' else 'a'} {named}, which has {', '.join(missing)}"
    require(not missing, place=place, found=value, wanted=wanted, remedy=remedy)
    return not missing


@lru_cache(maxsize=1024)
def members_of(protocol: Any) -> tuple[str, ...]:
    """Return what a Protocol names, sorted: methods and properties, and `__call__` if it is one of them."""
    bases = [base for base in protocol.__mro__ if _is_protocol(base) and base is not typing.Protocol]
    names = {name for base in bases for name in (*vars(base), *getattr(base, "__annotations__", {}))}
    return tuple(sorted(name for name in names if not name.startswith("_") or name == "__call__"))


@lru_cache(maxsize=4096)
def lacking(kind: Any, protocol: Any) -> tuple[str, ...]:
    """Return the members of a Protocol that values of a class have not, sorted."""
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    there = {*dir(kind), *(each.name for each in fields)}
    return tuple(name for name in members_of(protocol) if name not in there)


def _plain_real(value: Any, place: str) -> float:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    require(number, place=place, found=value, wanted="a real number")
    if not number:
        return math.nan  # the fault is collected
    require(math.isfinite(value), place=place, found=value, wanted="a finite number")
    return float(value) + 0.0 if not isinstance(value, float) or value == 0 else value


def _plain_whole(value: Any, place: str) -> int:
    whole = isinstance(value, int) and not isinstance(value, bool)
    require(whole, place=place, found=value, wanted="a whole number")
    return typing.cast("int", value)


def _plain_truth(value: Any, place: str) -> bool:
    require(isinstance(value, bool), place=place, found=value, wanted="True or False")
    return typing.cast("bool", value)


def _plain_text(value: Any, place: str) -> str:
    require(isinstance(value, str), place=place, found=value, wanted="a string")
    return typing.cast("str", value)


def _plain_nothing(value: Any, place: str) -> None:
    require(value is None, place=place, found=value, wanted="None")


_FUNCTION: typing.Final = collections.abc.Callable
_AS_IT_IS: typing.Final = frozenset({int, bool, str})
"""Types of which every value is fine."""
_FEW: typing.Final = frozenset({str, bool, type(None)})
"""Types of few values: choices, most of them."""
_PLAIN: typing.Final = types.MappingProxyType(
    {
        float: _plain_real,
        int: _plain_whole,
        bool: _plain_truth,
        str: _plain_text,
        type(None): _plain_nothing,
    }
)
