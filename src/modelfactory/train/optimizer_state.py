"""The state of an optimizer as flat tensors, by the parameter's name, and back.

A slot that holds a tensor is `optimizer/NAME/SLOT`. Optimizers keep other things too, and each comes back as
what it was, a number as a number and a list as a list, since the next step may ask:

| slot holds             | keys                                                                 |
|------------------------|----------------------------------------------------------------------|
| tensor                 | `SLOT`                                                               |
| int, float, bool, None | `SLOT:int`, `SLOT:float`, `SLOT:bool`, `SLOT:none`, a scalar tensor  |
| list                   | `SLOT[0]`, `SLOT[1]`, ... of any of these; an empty one is `SLOT:list` |
| tensor made of tensors | `SLOT{PART}` for each, such as codes and scales of a quantized one   |

The last kind needs its optimizer to be put together again: one that keeps such tensors has
`tensor_of(parameter, slot, parts)`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_PREFIX = "optimizer/"
_DTYPES = {"int": torch.int64, "float": torch.float64, "bool": torch.bool}
_KEY = re.compile(r"(?P<slot>[^\[\]{}:]+)(?P<indices>(\[\d+\])*)(\{(?P<part>\w+)\}|:(?P<kind>\w+))?")


def flat_state(optimizer: torch.optim.Optimizer, module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the state by key: the tensors themselves where they are tensors, and not copies.

    Raises:
        TypeError: the optimizer keeps something that a checkpoint cannot hold.
    """
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    flat: dict[str, torch.Tensor] = {}
    for parameter, slots in optimizer.state.items():
        for slot, value in slots.items():
            flat |= _leaves(f"{_PREFIX}{names[id(parameter)]}/{slot}", value)
    return flat


def restore_state(
    optimizer: torch.optim.Optimizer, module: torch.nn.Module, flat: Mapping[str, torch.Tensor]
) -> None:
    """Replace the state by what `flat_state` returned; keys of other things are left alone."""
    parameters = dict(module.named_parameters())
    optimizer.state.clear()
    parts: dict[tuple[str, str], dict[str, torch.Tensor]] = {}
    for key in sorted(filter(_is_ours, flat), key=_order):
        name, match = _parsed(key)
        slots = optimizer.state[parameters[name]]
        if match["part"]:
            parts.setdefault((name, match["slot"]), {})[match["part"]] = flat[key]
        else:
            _put(slots, match, _value(match["kind"], flat[key]))
    for (name, slot), tensors in parts.items():
        parameter = parameters[name]
        optimizer.state[parameter][slot] = cast("Any", optimizer).tensor_of(parameter, slot, tensors)


def _leaves(key: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield from _tensors(key, value)
    elif value is None:
        yield f"{key}:none", torch.zeros((), dtype=torch.bool)
    elif type(value).__name__ in _DTYPES:
        kind = type(value).__name__
        yield f"{key}:{kind}", torch.tensor(value, dtype=_DTYPES[kind])
    elif isinstance(value, list):
        if not value:
            yield f"{key}:list", torch.zeros((), dtype=torch.bool)
        for index, each in enumerate(value):
            yield from _leaves(f"{key}[{index}]", each)
    else:
        message = f"{key}: found {type(value).__name__}, wanted tensors, numbers, None, or lists of them"
        raise TypeError(message)


def _tensors(key: str, value: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    if _is_made_of_tensors(value):
        names, _ = cast("Any", value).__tensor_flatten__()
        for name in names:
            yield f"{key}{{{name}}}", getattr(value, name)
    else:
        yield key, value


def _is_made_of_tensors(value: torch.Tensor) -> bool:
    """Say whether it is a wrapper around others, unlike DTensor, which checkpoints hold as it is."""
    from torch.distributed.tensor import DTensor

    return hasattr(value, "__tensor_flatten__") and not isinstance(value, DTensor)


def _is_ours(key: str) -> bool:
    return key.startswith(_PREFIX)


def _parsed(key: str) -> tuple[str, re.Match[str]]:
    name, _, rest = key.removeprefix(_PREFIX).rpartition("/")
    match = _KEY.fullmatch(rest)
    if match is None:
        raise TypeError(f"{key}: found {rest!r}, wanted SLOT, SLOT[i], SLOT:kind or SLOT{{part}}")
    return name, match


def _indices(match: re.Match[str]) -> list[int]:
    return [int(index) for index in re.findall(r"\d+", match["indices"])]


def _order(key: str) -> tuple[str, str, list[int]]:
    name, match = _parsed(key)
    return name, match["slot"], _indices(match)


def _value(kind: str | None, tensor: torch.Tensor) -> Any:
    if kind is None:
        return tensor
    if kind == "none":
        return None
    return [] if kind == "list" else tensor.item()


def _put(slots: dict[str, Any], match: re.Match[str], value: Any) -> None:
    """Put a leaf into its slot; lists grow, as keys come in order."""
    indices = _indices(match)
    if not indices:
        slots[match["slot"]] = value
        return
    at = slots.setdefault(match["slot"], [])
    for index in indices[:-1]:
        if index == len(at):
            at.append([])
        at = at[index]
    at.append(value)
