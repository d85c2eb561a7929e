"""A mixture of experts as a module.

Shapes: B batch, T time (position), D d_model, E experts, K active experts, N = B * T, A = N * K assignments
of a token to an expert, C positions of a row that an expert takes at most, S slots, I numbers in,
O numbers out, F d_ff.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

import torch
from torch import nn

from modelfactory.models.architecture import Routed
from modelfactory.models.feed_forward import GatedFeedForward
from modelfactory.models.grouped import grouped_product, taken
from modelfactory.models.modules import Linear, activate
from modelfactory.models.routing import Router

if TYPE_CHECKING:
    from modelfactory.models import experts
    from modelfactory.models.architecture import BuildContext
    from modelfactory.models.feed_forward import FeedForward
    from modelfactory.models.routing import Choice


class StackedLinear(nn.Module):
    """A matrix, and perhaps a bias, for each expert: weight_EOI, bias_EO."""

    def __init__(self, n_experts: int, n_in: int, n_out: int, *, bias: bool, std: float) -> None:
        super().__init__()
        self.std = std
        self.weight = nn.Parameter(torch.empty(n_experts, n_out, n_in))
        self.bias = nn.Parameter(torch.empty(n_experts, n_out)) if bias else None

    def initialise(self, generator: torch.Generator) -> None:
        """Draw the matrices; biases start at 0."""
        nn.init.normal_(self.weight, std=self.std, generator=generator)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x_AI: torch.Tensor, expert_A: torch.Tensor, count_E: torch.Tensor) -> torch.Tensor:
        """Return y_AO; rows are sorted by expert, of which expert e has count_E[e]."""
        dtype = _computed_in(x_AI)
        y_AO = grouped_product(x_AI.to(dtype), self.weight.to(dtype), count_E)
        return y_AO if self.bias is None else y_AO + self.bias.to(dtype)[expert_A]

    def slots(self, x_ESI: torch.Tensor) -> torch.Tensor:
        """Return y_ESO of S slots for each expert."""
        y_ESO = torch.bmm(x_ESI, self.weight.transpose(1, 2))
        return y_ESO if self.bias is None else y_ESO + self.bias[:, None].to(y_ESO.dtype)


class StackedFeedForward(nn.Module):
    """The experts; like `modules.FeedForward` and `GatedFeedForward`, gate first, with E of each matrix."""

    def __init__(self, spec: FeedForward | GatedFeedForward, n_experts: int, context: BuildContext) -> None:
        super().__init__()
        initial, d_model = context.initial, context.d_model
        self.activation, self.is_gated = spec.activation, isinstance(spec, GatedFeedForward)
        width = 2 * spec.d_ff if self.is_gated else spec.d_ff
        up = StackedLinear(n_experts, d_model, width, bias=spec.bias, std=initial.matrix_std)
        self.add_module("gate_up" if self.is_gated else "up", up)
        self.down = StackedLinear(n_experts, spec.d_ff, d_model, bias=spec.bias, std=initial.residual_std)

    def forward(self, x_AD: torch.Tensor, expert_A: torch.Tensor, count_E: torch.Tensor) -> torch.Tensor:
        """Return y_AD; rows are sorted by expert."""
        h_AF = self._activated(self._up(x_AD, expert_A, count_E))
        return cast("torch.Tensor", self.down(h_AF, expert_A, count_E))

    def slots(self, x_ESD: torch.Tensor) -> torch.Tensor:
        """Return y_ESD of S slots for each expert."""
        return self.down.slots(self._activated(self._up.slots(x_ESD)))

    @property
    def _up(self) -> StackedLinear:
        return cast("StackedLinear", self.gate_up if self.is_gated else self.up)

    def _activated(self, h: torch.Tensor) -> torch.Tensor:
        if not self.is_gated:
            return activate(self.activation, h)
        gate, up = h.chunk(2, dim=-1)
        return activate(self.activation, gate) * up


class Experts(nn.Module):
    """Router, experts, and perhaps a shared expert with its gate."""

    def __init__(self, spec: experts.Experts, context: BuildContext) -> None:
        super().__init__()
        self.n_experts, self.n_active = spec.n_experts, spec.n_active
        self.capacity = None if spec.capacity is None else spec.capacity.factor
        self.router = Router(spec, context)
        self.experts = StackedFeedForward(spec.expert, spec.n_experts, context)
        self.shared = None if spec.shared is None else spec.shared.build(context)
        gate = Linear(context.d_model, 1, bias=False, std=context.initial.matrix_std)
        self.shared_gate = gate if spec.shared_gate else None

    def forward(self, x_BTD: torch.Tensor) -> Routed:
        """Return y_BTD and what became of the tokens."""
        choice = self.router(x_BTD)
        dropped_B = None if self.capacity is None else x_BTD.new_zeros(x_BTD.shape[0], dtype=torch.float32)
        if self.capacity is not None and self.training:
            y_BTD, dropped_B = self._bounded(x_BTD, choice, self.capacity)
        else:
            y_BTD = self._dropless(x_BTD, choice)
        load_BE = choice.met_BTE.sum(1).float()
        return Routed(self._with_shared(y_BTD, x_BTD), choice.balance_B, load_BE, dropped_B)

    def after_step(self, load_E: torch.Tensor) -> None:
        """Take in the tokens that each expert got in a whole step."""
        self.router.after_step(load_E)

    def _dropless(self, x_BTD: torch.Tensor, choice: Choice) -> torch.Tensor:
        """Sort the assignments by expert, run each expert on its rows, and sort back."""
        x_ND, chosen_A = x_BTD.flatten(0, 1), choice.chosen_BTK.flatten()
        expert_A, order_A = chosen_A.sort(stable=True)
        index_A = torch.arange(len(order_A), device=x_ND.device)
        place_A = torch.empty_like(order_A).scatter(0, order_A, index_A)
        count_E = choice.met_BTE.sum((0, 1))
        x_AD = taken(x_ND, order_A // self.n_active, place_A.view(-1, self.n_active))
        y_AD = taken(self.experts(x_AD, expert_A, count_E), place_A, order_A[:, None])
        return _weighted(y_AD, choice.weight_BTK).to(x_BTD.dtype)

    def _bounded(
        self, x_BTD: torch.Tensor, choice: Choice, factor: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Give each expert C slots of each row; return y_BTD and the assignments without a slot, by row."""
        B, T, D = x_BTD.shape
        C = min(math.ceil(factor * T * self.n_active / self.n_experts), T)
        before_BTE = choice.met_BTE.cumsum(1) - 1
        rank_BTK = before_BTE.gather(-1, choice.chosen_BTK)
        is_in_BTK = rank_BTK < C
        row_B11 = torch.arange(B, device=x_BTD.device)[:, None, None]
        slot_BTK = (choice.chosen_BTK * B + row_B11) * C + rank_BTK
        n_slots = self.n_experts * B * C
        slot_A = torch.where(is_in_BTK, slot_BTK, n_slots).flatten()  # one more takes what is dropped
        x_AD = x_BTD.flatten(0, 1).repeat_interleave(self.n_active, dim=0)
        x_SD = x_AD.new_zeros(n_slots + 1, D).index_copy(0, slot_A, x_AD)[:-1]
        y_SD = self.experts.slots(x_SD.view(self.n_experts, B * C, D)).flatten(0, 1)
        y_AD = torch.cat((y_SD, y_SD.new_zeros(1, D))).index_select(0, slot_A)
        return _weighted(y_AD, choice.weight_BTK).to(x_BTD.dtype), (~is_in_BTK).sum((1, 2)).float()

    def _with_shared(self, y_BTD: torch.Tensor, x_BTD: torch.Tensor) -> torch.Tensor:
        if self.shared is None:
            return y_BTD
        shared_BTD = self.shared(x_BTD)
        if self.shared_gate is not None:
            shared_BTD = shared_BTD * self.shared_gate(x_BTD).sigmoid()
        return y_BTD + cast("torch.Tensor", shared_BTD).to(y_BTD.dtype)


def _weighted(y_AD: torch.Tensor, weight_BTK: torch.Tensor) -> torch.Tensor:
    """Return y_BTD: the outputs for each token times their weights, added in the weights' type."""
    B, T, K = weight_BTK.shape
    return (y_AD.view(B, T, K, -1) * weight_BTK[..., None]).sum(2)


def _computed_in(x: torch.Tensor) -> torch.dtype:
    """Return the type that a matrix product of `x` has under the autocast that is in force."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
