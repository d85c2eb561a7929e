"""Adapters as modules, and what a matrix is once they are added to it.

Shapes: I inputs, O outputs, P matrices that lie on top of each other in one, R rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import nn
from torch.nn import functional

from modelfactory.errors import SpecError
from modelfactory.models.modules import named_generator

if TYPE_CHECKING:
    from collections.abc import Mapping

    from modelfactory.models.lora import LoRA
    from modelfactory.models.matrices import Matrix

A, B = "lora_A", "lora_B"
"""Names of the two parameters beside the weight."""


class AdaptedLinear(nn.Linear):
    """A linear layer that took over weight and bias of another, frozen, and has an adapter.

    Args:
        inner: the layer.
        lora: its rank and scale.
        rows: of each matrix that the weight holds.
    """

    def __init__(self, inner: nn.Linear, lora: LoRA, rows: tuple[int, ...]) -> None:
        nn.Module.__init__(self)  # nn.Linear's own would make a weight
        self.in_features, self.out_features = inner.in_features, inner.out_features
        self.weight, self.bias = inner.weight, inner.bias
        self.scale, self.parts = lora.scale, rows
        self.lora_A = nn.Parameter(torch.empty(len(rows) * lora.rank, self.in_features))
        self.lora_B = nn.Parameter(torch.empty(self.out_features, lora.rank))

    def start(self, generator: torch.Generator) -> None:
        """Draw A; B is 0."""
        bound = self.in_features**-0.5
        nn.init.uniform_(self.lora_A, -bound, bound, generator=generator)
        nn.init.zeros_(self.lora_B)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return y (..., O) of x (..., I)."""
        low = functional.linear(x, self.lora_A).chunk(len(self.parts), dim=-1)
        b_parts = torch.split(self.lora_B, list(self.parts))
        added = [functional.linear(*each) for each in zip(low, b_parts, strict=True)]
        whole = added[0] if len(added) == 1 else torch.cat(added, dim=-1)
        return functional.linear(x, self.weight, self.bias) + self.scale * whole


def adapt(module: nn.Module, matrices: Mapping[str, Matrix], lora: LoRA, seed: int) -> None:
    """Freeze the module and put adapters beside these matrices.

    Raises:
        SpecError: a name is not that of an `nn.Linear` of the shape that the architecture told.
    """
    module.requires_grad_(requires_grad=False)
    for name, matrix in matrices.items():
        inner = _linear(module, name, matrix)
        adapted = AdaptedLinear(inner, lora, matrix.rows)
        adapted.start(named_generator(seed, f"{name}.{A}"))
        module.set_submodule(name, adapted)


def _linear(module: nn.Module, name: str, matrix: Matrix) -> nn.Linear:
    wanted = (sum(matrix.rows), matrix.n_in)
    found = dict(module.named_modules()).get(name)
    is_plain = isinstance(found, nn.Linear) and type(found).forward is nn.Linear.forward
    if not is_plain or tuple(cast("nn.Linear", found).weight.shape) != wanted:
        raise SpecError(
            place=f"Adapted.base, {name}",
            found="nothing" if found is None else f"{found}",
            wanted=f"an nn.Linear of {matrix.n_in} inputs and {wanted[0]} outputs, as `matrices` says",
            remedy="Correct `matrices` of the architecture.",
        )
    return cast("nn.Linear", found)


def merged(
    state: Mapping[str, torch.Tensor], matrices: Mapping[str, Matrix], lora: LoRA
) -> dict[str, torch.Tensor]:
    """Return the state of the model without adapters, which is W + alpha / rank * B A for each matrix.

    Worked out in float64 and rounded once to the weight's type; equal to what the adapted module computes up
    to the rounding of its products.
    """
    found = dict(state)
    for name, matrix in matrices.items():
        a_RI, b_OR = found.pop(f"{name}.{A}"), found.pop(f"{name}.{B}")
        weight_OI = found[f"{name}.weight"]
        change_OI = lora.scale * product(a_RI.double(), b_OR.double(), matrix.rows)
        found[f"{name}.weight"] = (weight_OI.double() + change_OI).to(weight_OI.dtype)
    return found


def product(a_RI: torch.Tensor, b_OR: torch.Tensor, rows: tuple[int, ...]) -> torch.Tensor:
    """Return B A (O, I), part by part; A holds those of all parts, R rows each."""
    pairs = zip(torch.split(b_OR, list(rows)), a_RI.chunk(len(rows)), strict=True)
    return torch.cat([b_part_OR @ a_part_RI for b_part_OR, a_part_RI in pairs])
