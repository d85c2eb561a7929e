"""What parts of the user's own make raise, told with the place of the part."""

from __future__ import annotations

import errno
import sys
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from modelfactory.errors import FactoryError, SpecError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType, TracebackType

_NOT_OWN = frozenset({"modelfactory", "torch", *sys.stdlib_module_names})
_OF_THE_MACHINE = (errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


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
    except FactoryError:
        raise
    except Exception as error:
        told = None if _is_of_the_machine(error) else _told(error, roots)
        if told is None:
            raise
        raise told from error


def _is_of_the_machine(error: Exception) -> bool:
    """Say whether memory or a disk is to blame: that is told by whoever started the stage."""
    if isinstance(error, OSError):
        return error.errno in _OF_THE_MACHINE
    return isinstance(error, MemoryError) or "memory" in str(error).lower()


def _told(error: Exception, roots: dict[str, Any]) -> SpecError | None:
    """Return the error of the innermost part that it went through, None where it met none."""
    steps = list(_steps(error.__traceback__))[::-1]
    for step in steps:
        part = _first_argument(step.frame)
        own = next((cls for cls in type(part).__mro__ if is_own(cls)), None)
        place = None if own is None else _place(part, roots)
        if own is not None and place is not None:
            last = next(each for each in steps if _is_file_of_ones_own(each.frame))
            where = f"{Path(last.frame.f_code.co_filename).name}:{last.line}"
            return SpecError(
                place=f"{place}, {own.__name__}.{step.frame.f_code.co_name}",
                found=f"{type(error).__name__}: {error} ({where})",
                wanted="a call that returns",
                remedy=f"Mend {own.__name__}.",
            )
    return None


def _steps(trace: TracebackType | None) -> Iterator[_Step]:
    while trace is not None:
        yield _Step(trace.tb_frame, trace.tb_lineno)
        trace = trace.tb_next


def _first_argument(frame: FrameType) -> Any:
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


def _parts(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Yield a spec or a module, and all in it, by place."""
    yield place, value
    if isinstance(value, tuple):
        for n, item in enumerate(value):
            yield from _parts(item, f"{place}[{n}]")
    elif is_dataclass(value) and not isinstance(value, type):
        for each in fields(value):
            yield from _parts(getattr(value, each.name), f"{place}.{each.name}")
    elif hasattr(value, "named_modules"):
        yield from ((f"{place}.{name}", module) for name, module in value.named_modules() if name)
