"""A mixer of a user's own, with a fault wherever a test wants one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from modelfactory.models.architecture import Routed
from modelfactory.models.modules import Linear

if TYPE_CHECKING:
    from modelfactory.models.architecture import BuildContext

COUNTS: dict[str, Any] = {
    "none": None,
    "text": "7",
    "broken": 2.5,
    "truth": True,
    "negative": -1,
    "infinite": float("inf"),
    "nan": float("nan"),
}


@dataclass(frozen=True, kw_only=True)
class Faulty:
    """Counts as `parameters` and `flops` name it, and builds a module with the fault `module`."""

    parameters: str = ""
    flops: str = ""
    module: str = ""

    def n_parameters(self, d_model: int) -> Any:
        if self.parameters == "whole":
            return float(d_model * d_model)
        return COUNTS.get(self.parameters, d_model * d_model + (self.parameters == "one more"))

    def flops_per_token(self, d_model: int, seq_len: int) -> Any:
        del seq_len
        return COUNTS.get(self.flops, 6 * d_model * d_model)

    def build(self, context: BuildContext) -> Any:
        if self.module == "none":
            return None
        return Bare(context) if self.module == "bare" else FaultyModule(self.module, context)


class Bare(torch.nn.Module):
    """Holds a matrix that nobody fills."""

    def __init__(self, context: BuildContext) -> None:
        super().__init__()
        self.out = torch.nn.Linear(context.d_model, context.d_model, bias=False)


class FaultyModule(torch.nn.Module):
    def __init__(self, fault: str, context: BuildContext) -> None:
        super().__init__()
        self.fault = fault
        self.out = Linear(context.d_model, context.d_model, bias=False, std=0.02)

    def initialise(self, generator: torch.Generator) -> None:
        del generator
        if self.fault == "initialise":
            raise ValueError("no luck")

    def forward(self, x_BTD: torch.Tensor, cache: Any = None, packing: Any = None) -> Any:
        del cache, packing
        y_BTD = self.out(x_BTD)
        if self.fault == "forward" or (self.fault == "evaluation" and not self.training):
            raise ValueError("no luck")
        if self.fault == "memory":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        shapes = {"short": y_BTD[:, :-1], "mean": y_BTD.mean(1, keepdim=True), "pair": (y_BTD, None)}
        shapes |= {"nothing": None, "routed": Routed(y_BTD, y_BTD, y_BTD)}
        return shapes.get(self.fault, y_BTD)

    def new_cache(self, batch: int, max_len: int) -> Any:
        if self.fault == "cache":
            raise ValueError("no luck")
        return (batch, max_len)


@dataclass(frozen=True, kw_only=True)
class Unlike:
    """Has methods of another form than is wanted: without arguments."""

    def n_parameters(self) -> int:
        return 0

    def flops_per_token(self) -> int:
        return 0

    def build(self) -> torch.nn.Module:
        return torch.nn.Identity()


@dataclass(frozen=True, kw_only=True)
class Unmixed(Faulty):
    """Builds a module that cannot be called as a mixer is."""

    def build(self, context: BuildContext) -> Any:
        return UnmixedModule("", context)


class UnmixedModule(FaultyModule):
    def forward(self, x_BTD: torch.Tensor) -> Any:  # type: ignore[override]
        return self.out(x_BTD)
