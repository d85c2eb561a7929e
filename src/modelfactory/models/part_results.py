"""What parts of a model return, looked at before it is used: parts may be of the user's own make."""

from __future__ import annotations

import math
import numbers
from typing import TYPE_CHECKING, Any, cast

from modelfactory.errors import SpecError

if TYPE_CHECKING:
    import torch


class PartFault(SpecError):
    """A part gave what it must not give; whoever knows the whole model says where the part lies in it."""

    def __init__(self, *, place: str, found: str, wanted: str, remedy: str, part: Any = None) -> None:
        super().__init__(place=place, found=found, wanted=wanted, remedy=remedy)
        self.part = part


def counted(part: Any, method: str, *arguments: int) -> int:
    """Return a number that a part's formula gives.

    Raises:
        PartFault: the part has no such method, or it gives anything but a whole number, 0 or more.
    """
    found = _called(part, method, "a whole number, 0 or more", *arguments)
    if type(found) is int and found >= 0:  # nearly all: a plan of many models counts often
        return found
    if _is_count(found):
        return int(found)
    raise part_fault(part, method, f"{found!r:.160}", "a whole number, 0 or more")


def n_active_parameters(layer: Any, d_model: int) -> int:
    """Return how many numbers of a layer one token meets: all of them, unless it says otherwise."""
    name = "n_active_parameters" if hasattr(layer, "n_active_parameters") else "n_parameters"
    return counted(layer, name, d_model)


def _is_count(found: Any) -> bool:
    is_number = isinstance(found, numbers.Real) and not isinstance(found, bool)
    return is_number and math.isfinite(found) and found >= 0 and found == int(found)


def built(spec: Any, *arguments: Any) -> torch.nn.Module:
    """Return the module that a spec builds.

    Raises:
        PartFault: it builds none.
    """
    from torch import nn

    found = _called(spec, "build", "a torch.nn.Module", *arguments)
    if not isinstance(found, nn.Module):
        raise part_fault(spec, "build", f"{found!r:.160}", "a torch.nn.Module")
    return found


def like(x_BTD: torch.Tensor, y_BTD: Any, part: torch.nn.Module) -> torch.Tensor:
    """Return what a part made of `x_BTD`, if it has its shape: another one might be added all the same.

    Raises:
        PartFault: names both shapes.
    """
    if hasattr(y_BTD, "shape") and y_BTD.shape == x_BTD.shape:
        return cast("torch.Tensor", y_BTD)
    raise part_fault(part, "forward", _shown(y_BTD), f"a tensor of shape {_shape(x_BTD)}, as it was given")


def _called(part: Any, method: str, wanted: str, *arguments: Any) -> Any:
    """Call a method that may be missing, or take other arguments than it is given."""
    if not callable(known := getattr(part, method, None)):
        raise part_fault(part, method, "no such method", f"one that returns {wanted}")
    try:
        return known(*arguments)
    except TypeError as error:
        if error.__traceback__ is None or error.__traceback__.tb_next is not None:
            raise
        given = f"one that takes {len(arguments)} argument{'s' if arguments[1:] else ''} beside self"
        raise part_fault(part, method, f"TypeError: {error}", given) from error


def part_fault(part: Any, method: str, found: str, wanted: str) -> PartFault:
    """Return the error of a part whose method gave what it must not give."""
    name = type(part).__name__
    return PartFault(place=f"{name}.{method}", found=found, wanted=wanted, remedy=f"Mend {name}.", part=part)


def _shown(value: Any) -> str:
    if hasattr(value, "shape"):
        return f"a tensor of shape {_shape(value)}"
    many = f" of {len(value)}" if isinstance(value, tuple | list) else ""
    return "None" if value is None else f"a {type(value).__name__}{many}"


def _shape(value: Any) -> str:
    return str(tuple(value.shape))
