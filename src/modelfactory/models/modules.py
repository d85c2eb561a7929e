"""Layers with parameters, and how they start.

Shapes: B batch, T time (position), D d_model, F d_ff, V vocabulary.

Every class here leaves its parameters uninitialised when it is made and fills them in `initialise`, so that
building draws nothing from torch's global generator.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

import torch
from torch import nn
from torch.nn import functional

from modelfactory.errors import SpecError

if TYPE_CHECKING:
    from modelfactory.models import feed_forward
    from modelfactory.models.architecture import BuildContext


@runtime_checkable
class Initialised(Protocol):
    """A module that fills the parameters it holds itself, not those of its children."""

    def initialise(self, generator: torch.Generator) -> None:
        """Fill them from `generator` alone."""


class Linear(nn.Linear):
    """A matrix and perhaps a bias.

    Args:
        n_in: columns.
        n_out: rows.
        bias: whether there is one.
        std: of the matrix at first.
        rows: of each, where it is several matrices on top of each other, so that Muon takes each by itself.
    """

    def __init__(self, n_in: int, n_out: int, *, bias: bool, std: float, rows: tuple[int, ...] = ()) -> None:
        super().__init__(n_in, n_out, bias=bias)
        self.std, self.rows = std, rows

    def reset_parameters(self) -> None:
        """Leave them to `initialise`."""

    def initialise(self, generator: torch.Generator) -> None:
        """Draw the matrix; the bias starts at 0."""
        nn.init.normal_(self.weight, std=self.std, generator=generator)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class Embedding(nn.Embedding):
    """A table of vectors."""

    def __init__(self, n_rows: int, d_model: int, *, std: float) -> None:
        super().__init__(n_rows, d_model)
        self.std = std

    def reset_parameters(self) -> None:
        """Leave them to `initialise`."""

    def initialise(self, generator: torch.Generator) -> None:
        """Draw the table."""
        nn.init.normal_(self.weight, std=self.std, generator=generator)


class LayerNorm(nn.LayerNorm):
    """Gain 1 and bias 0 at first."""

    def __init__(self, d_model: int, *, eps: float, bias: bool) -> None:
        super().__init__(d_model, eps=eps, bias=bias)

    def initialise(self, generator: torch.Generator) -> None:
        """Start as the bare normalisation."""
        del generator
        self.reset_parameters()  # constants: torch's generator is not used


class RMSNorm(nn.RMSNorm):
    """Gain 1 at first."""

    def __init__(self, d_model: int, *, eps: float) -> None:
        super().__init__(d_model, eps=eps)

    def initialise(self, generator: torch.Generator) -> None:
        """Start as the bare normalisation."""
        del generator
        self.reset_parameters()  # constants: torch's generator is not used


class OffsetRMSNorm(nn.Module):
    """RMSNorm whose gain is 1 + weight; weight 0 at first."""

    def __init__(self, d_model: int, *, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(d_model))

    def initialise(self, generator: torch.Generator) -> None:
        """Start as the bare normalisation."""
        del generator
        nn.init.zeros_(self.weight)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """Return y_BTD in the type of x, computed in float32 at least."""
        wide_BTD = x_BTD.to(at_least_float32(x_BTD))
        y_BTD = functional.rms_norm(wide_BTD, self.weight.shape, 1.0 + self.weight.to(wide_BTD), self.eps)
        return y_BTD.to(x_BTD.dtype)


def at_least_float32(x: torch.Tensor) -> torch.dtype:
    """Return the type of what must not be computed in fewer bits than float32."""
    return torch.promote_types(x.dtype, torch.float32)


def activate(name: feed_forward.Activation, x: torch.Tensor) -> torch.Tensor:
    """Apply an activation by name."""
    if name == "silu":
        return functional.silu(x)
    if name == "relu_squared":
        return functional.relu(x).square()
    return functional.gelu(x, approximate="tanh" if name == "gelu_tanh" else "none")


class FeedForward(nn.Module):
    """Up, activation, down."""

    def __init__(self, spec: feed_forward.FeedForward, context: BuildContext) -> None:
        super().__init__()
        initial, d_model = context.initial, context.d_model
        self.activation = spec.activation
        self.up = Linear(d_model, spec.d_ff, bias=spec.bias, std=initial.matrix_std)
        self.down = Linear(spec.d_ff, d_model, bias=spec.bias, std=initial.residual_std)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """Return y_BTD."""
        return cast("torch.Tensor", self.down(activate(self.activation, self.up(x_BTD))))


class GatedFeedForward(nn.Module):
    """Gate and up in one matrix (gate first), then down: one large product is faster than two."""

    def __init__(self, spec: feed_forward.GatedFeedForward, context: BuildContext) -> None:
        super().__init__()
        initial, d_model = context.initial, context.d_model
        self.activation = spec.activation
        rows = (spec.d_ff, spec.d_ff)
        self.gate_up = Linear(d_model, sum(rows), bias=spec.bias, std=initial.matrix_std, rows=rows)
        self.down = Linear(spec.d_ff, d_model, bias=spec.bias, std=initial.residual_std)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """Return y_BTD."""
        gate_BTF, up_BTF = self.gate_up(x_BTD).chunk(2, dim=-1)
        return cast("torch.Tensor", self.down(activate(self.activation, gate_BTF) * up_BTF))


def initialise(module: nn.Module, seed: int) -> None:
    """Fill every parameter as a function of (seed, its module's name): adding a layer moves no other.

    Raises:
        SpecError: a parameter belongs to a module without `initialise`.
    """
    with torch.no_grad():
        for name, part in module.named_modules():
            if isinstance(part, Initialised):
                part.initialise(named_generator(seed, name))
            elif any(True for _ in part.parameters(recurse=False)):
                raise SpecError(
                    place=f"model.{name}" if name else "model",
                    found=f"{type(part).__name__}, which holds parameters but no initialise()",
                    wanted="parameters that are filled from the run's seed",
                    remedy="Use modelfactory.models.modules.Linear, or give it initialise(generator).",
                )


def named_generator(seed: int, name: str) -> torch.Generator:
    """Return a generator whose state follows from both."""
    return torch.Generator().manual_seed(named_seed(seed, name))


def named_seed(*parts: Any) -> int:
    """Return a 63-bit seed that follows from all `parts`."""
    text = "\0".join(map(str, parts)).encode("utf-8")
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little") >> 1
