"""Which experts a token meets, and with which weights.

Shapes: B batch, T time (position), D d_model, E experts, K active experts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn import functional

from modelfactory.models.experts import AuxiliaryBalance, BiasBalance
from modelfactory.models.modules import Linear, at_least_float32

if TYPE_CHECKING:
    from modelfactory.models.architecture import BuildContext
    from modelfactory.models.experts import Experts

_TINY = 1e-20
"""Keeps a sum of sigmoid scores that have all underflown from dividing 0 by 0."""


class Choice(NamedTuple):
    """What the router decided."""

    chosen_BTK: torch.Tensor
    """Experts, the one with the highest score first; int64."""
    weight_BTK: torch.Tensor
    """What their outputs are multiplied by; float32."""
    met_BTE: torch.Tensor
    """Whether the expert is among the chosen; bool."""
    balance_B: torch.Tensor
    """Auxiliary loss of each row; 0 without one."""


class Router(Linear):
    """One row of scores for each expert; `bias_E` is a buffer that only the choice sees."""

    bias_E: torch.Tensor

    def __init__(self, spec: Experts, context: BuildContext) -> None:
        super().__init__(context.d_model, spec.n_experts, bias=False, std=context.initial.matrix_std)
        self.n_active, self.score, self.renormalised = spec.n_active, spec.score, spec.renormalised
        self.routed_scale = spec.routed_scale
        is_bias = isinstance(spec.balance, BiasBalance)
        self.rate = spec.balance.rate if isinstance(spec.balance, BiasBalance) else 0.0
        auxiliary = spec.balance.auxiliary if isinstance(spec.balance, BiasBalance) else spec.balance
        self.balance_weight = auxiliary.weight if isinstance(auxiliary, AuxiliaryBalance) else 0.0
        if is_bias:
            self.register_buffer("bias_E", torch.zeros(spec.n_experts))
        self.is_biased = is_bias

    def forward(self, x_BTD: torch.Tensor) -> Choice:  # type: ignore[override]
        """Return the choice for each position, computed in float32 at least, under autocast too."""
        score_BTE = self._scores(x_BTD)
        wanted_BTE = score_BTE.detach() + self.bias_E if self.is_biased else score_BTE.detach()
        chosen_BTK = wanted_BTE.topk(self.n_active, dim=-1).indices
        weight_BTK = score_BTE.gather(-1, chosen_BTK)
        if self.renormalised:
            weight_BTK = weight_BTK / (weight_BTK.sum(-1, keepdim=True) + _TINY)
        if self.routed_scale != 1.0:
            weight_BTK = weight_BTK * self.routed_scale
        met_BTE = _members(chosen_BTK, score_BTE)
        return Choice(chosen_BTK, weight_BTK, met_BTE, self._balance(score_BTE, met_BTE))

    def after_step(self, load_E: torch.Tensor) -> None:
        """Move the bias towards equal loads; without one, do nothing."""
        if self.is_biased:
            load_E = load_E.to(self.bias_E)
            self.bias_E += self.rate * torch.sign(load_E.mean() - load_E)

    def _scores(self, x_BTD: torch.Tensor) -> torch.Tensor:
        wide = at_least_float32(x_BTD)
        with torch.autocast(x_BTD.device.type, enabled=False):
            logits_BTE = functional.linear(x_BTD.to(wide), self.weight.to(wide))
        return logits_BTE.softmax(-1) if self.score == "softmax" else logits_BTE.sigmoid()

    def _balance(self, score_BTE: torch.Tensor, met_BTE: torch.Tensor) -> torch.Tensor:
        """Return the loss of `AuxiliaryBalance`, whose loads are those that the scores alone would give."""
        if self.balance_weight == 0.0:
            return score_BTE.new_zeros(score_BTE.shape[0])
        if self.is_biased:
            met_BTE = _members(score_BTE.detach().topk(self.n_active, dim=-1).indices, score_BTE)
        share_BTE = score_BTE / (score_BTE.sum(-1, keepdim=True) + _TINY)
        load_BE = met_BTE.to(share_BTE).mean(1) * (met_BTE.shape[-1] / self.n_active)
        return self.balance_weight * (load_BE * share_BTE.mean(1)).sum(-1)


def _members(chosen_BTK: torch.Tensor, like_BTE: torch.Tensor) -> torch.Tensor:
    """Return met_BTE, true for each expert among the chosen."""
    return torch.zeros_like(like_BTE, dtype=torch.bool).scatter(-1, chosen_BTK, value=True)
