"""Specs for the tests, importable by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from modelfactory.spec import check_types, not_identity, require


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    lr: float
    beta: float = 0.9
    kind: Literal["adam", "sgd"] = "adam"

    def __post_init__(self) -> None:
        check_types(self)
        require(self.lr > 0, place="Optimizer.lr", found=self.lr, wanted="a number above 0")


@dataclass(frozen=True, kw_only=True)
class Train:
    optimizer: Optimizer
    n_steps: int
    betas: tuple[float, ...] = ()
    folder: str = not_identity(default=".")
    keep: Callable[[str], bool] | None = None

    def __post_init__(self) -> None:
        check_types(self)


@dataclass(frozen=True, kw_only=True)
class Anything:
    value: Any

    def __post_init__(self) -> None:
        check_types(self)


class Measured(Protocol):
    @property
    def size(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class Sized:
    size: int = 1


@dataclass(frozen=True, kw_only=True)
class Named:
    layer: Measured

    def __post_init__(self) -> None:
        check_types(self)


@dataclass(frozen=True, kw_only=True)
class Wrapped:
    function: Callable[[str], bool]
    times: int = 1

    def __post_init__(self) -> None:
        check_types(self)


@dataclass(frozen=True, kw_only=True)
class Chosen:
    one: Wrapped | None = None
    many: tuple[Optimizer | Wrapped, ...] = ()

    def __post_init__(self) -> None:
        check_types(self)


@dataclass
class Mutable:
    x: int = 0


def keep_all(text: str) -> bool:
    return bool(text)
