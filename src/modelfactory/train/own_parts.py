"""What parts of the user's own make raise, told with the place of the part."""

from __future__ import annotations

import errno
import sys
import sysconfig
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from modelfactory.errors import FactoryError, SpecError, is_out_of_memory
from modelfactory.models.part_results import PartFault

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType, TracebackType

_NOT_OWN = frozenset({"modelfactory", "torch", *sys.stdlib_module_names})
_OF_A_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_INSTALLED = tuple({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})


class _Step(NamedTuple):
    frame: FrameType
    line: int


@contextmanager
def own_parts_named(**roots: Any) -> Iterator[None]:
    """Raise SpecError in place of what a part of the user's own make raises inside the block.

    Args:
        roots: specs, modules and optimizers by the name that errors give them; parts are looked for in them.

    Raises:
        SpecError: names the part's place, its class and method, and the line; what it came from is its cause.
    """
    try:
        yield
    except PartFault as error:
        place = _place(error.part, roots) or _place_on_the_way(error.part, list(_steps(error.__traceback__)))
        if place is None:
            raise
        placed = f"{place}, {error.place}"
        raise SpecError(
            place=placed, found=error.found, wanted=error.wanted, remedy=error.remedy
        ) from error.__cause__
    except FactoryError:
        raise
    except (Exception, SystemExit) as error:
        told = None if _is_of_the_machine(error) else _told(error, roots)
        if told is None:
            raise
        raise told from error


def _is_of_the_machine(error: BaseException) -> bool:
    """Say whether memory or a disk is to blame: that is told by whoever started the stage."""
    return is_out_of_memory(error) or (isinstance(error, OSError) and error.errno in _OF_A_DISK)


def _told(error: BaseException, roots: dict[str, Any]) -> SpecError | None:
    """Return the error of the innermost part that it went through, None where it met none.

    Parts that lie in a root come first; one that lies in none, since it was just being made, is named by its
    class alone.
    """
    steps = list(_steps(error.__traceback__))
    met = [(step, part, own) for step in steps[::-1] for part, own in _part_of(step)]
    for step, part, own in met:
        place = _place(part, roots) or _place_on_the_way(part, steps)
        if place is not None:
            return _fault(error, own, step, f"{place}, ")
    made = [(step, own) for step, part, own in met if _is_spec(part) or _is_module(part)]
    return _fault(error, made[0][1], made[0][0], "") if made else None


def _part_of(step: _Step) -> Iterator[tuple[Any, type]]:
    """Yield the part whose method a step is in, and the class of the user's own that it has."""
    part = first_argument(step.frame)
    own = next((cls for cls in type(part).__mro__ if is_own(cls)), None)
    if own is not None:
        yield part, own


def _fault(error: BaseException, own: type, step: _Step, place: str) -> SpecError:
    method = step.frame.f_code.co_name
    if method in ("_call_impl", "_wrapped_call_impl"):  # torch could not even call it
        method = "forward"
    where = line_of_ones_own(error) or _line_of(own, method)
    return SpecError(
        place=f"{place}{own.__name__}.{method}",
        found=f"{in_words(error)}{where and f' ({where})'}",
        wanted="a call that returns",
        remedy=f"Mend {own.__name__}.",
    )


def in_words(error: BaseException) -> str:
    """Return the kind of an exception, and its text if it has one."""
    return f"{type(error).__name__}: {error}".rstrip(": ")


def line_of_ones_own(error: BaseException) -> str:
    """Return `file:line` of the innermost step in a file of the user's own, or nothing."""
    own = [step for step in _steps(error.__traceback__) if _is_file_of_ones_own(step.frame)]
    near = [step for step in own if not step.frame.f_code.co_filename.startswith(_INSTALLED)] or own
    return f"{Path(near[-1].frame.f_code.co_filename).name}:{near[-1].line}" if near else ""


def _line_of(own: type, method: str) -> str:
    """Return `file:line` of a method that was not entered, or nothing."""
    code = getattr(getattr(own, method, None), "__code__", None)
    return "" if code is None else f"{Path(code.co_filename).name}:{code.co_firstlineno}"


def _steps(trace: TracebackType | None) -> Iterator[_Step]:
    while trace is not None:
        yield _Step(trace.tb_frame, trace.tb_lineno)
        trace = trace.tb_next


def first_argument(frame: FrameType) -> Any:
    """Return what a call was given first: of a method, the object it belongs to."""
    code = frame.f_code
    return frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None


def is_own(cls: type) -> bool:
    """Say whether a class is neither of this package nor of torch or Python."""
    return cls.__module__.partition(".")[0] not in _NOT_OWN


def _is_file_of_ones_own(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] not in _NOT_OWN


def _place(part: Any, roots: dict[str, Any]) -> str | None:
    """Return where a part lies in one of the roots."""
    for name, root in roots.items():
        for place, value in _parts(root, name):
            if value is part or (type(value) is type(part) and is_dataclass(part) and value == part):
                return place
    return None


def _place_on_the_way(part: Any, steps: list[_Step]) -> str | None:
    """Return where a module lies in one that is just being made, which no root holds yet."""
    if not _is_module(part):
        return None
    ours = [step for step in steps if step.frame.f_globals.get("__name__", "").startswith("modelfactory.")]
    wholes = [each for step in ours for each in step.frame.f_locals.values() if _is_module(each)]
    return next((place for whole in wholes if (place := _place(part, {"model": whole}))), None)


def is_own_spec(value: Any) -> bool:
    """Say whether a value is a spec of the user's own make."""
    return _is_spec(value) and is_own(type(value))


def _is_spec(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)


def _is_module(value: Any) -> bool:
    return hasattr(type(value), "named_modules")


def _parts(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Yield a spec or a module, and all in it, by place."""
    yield place, value
    if isinstance(value, tuple):
        for n, item in enumerate(value):
            yield from _parts(item, f"{place}[{n}]")
    elif _is_spec(value):
        for each in fields(value):
            yield from _parts(getattr(value, each.name, None), f"{place}.{each.name}")
    elif _is_module(value):
        yield from ((f"{place}.{name}", module) for name, module in value.named_modules() if name)
