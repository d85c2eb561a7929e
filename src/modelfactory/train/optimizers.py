"""Optimizers as values: what the trainer asks of one, and AdamW.

Others are beside it: `Muon` (muon.py), `SOAP` (soap.py), `AdamW8bit` (eight_bit.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from modelfactory.spec import check_types, require
from modelfactory.train.parameter_groups import lr_scales_of, parameter_groups

if TYPE_CHECKING:
    import torch


class Optimizer(Protocol):
    """What the trainer asks of an optimizer spec."""

    @property
    def lr(self) -> float:
        """The peak learning rate, which the schedule multiplies."""

    def build(self, module: torch.nn.Module) -> torch.optim.Optimizer:
        """Return the optimizer of all parameters of `module`.

        Before each step the trainer sets `lr` of each group to the schedule's times the group's `lr_scale`,
        1 where a group has none. All that a step follows from is in `state`, by parameter: checkpoints hold
        nothing else of it (see `train.optimizer_state` for what may be there).
        """


@dataclass(frozen=True, kw_only=True)
class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2017, arXiv 1711.05101), torch's fused form.

    Only matrices decay, the embeddings among them: never gains, biases, or other vectors. The decay of a step
    is lr * weight_decay, so it follows the schedule, but not the `lr_scales` of a model.
    """

    lr: float
    """Peak; the schedule multiplies it."""
    weight_decay: float
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8

    def __post_init__(self) -> None:
        """Refuse rates and decays that would walk uphill or never forget."""
        check_types(self)
        check_adam(self)

    def build(self, module: torch.nn.Module) -> torch.optim.Optimizer:
        """Return torch's optimizer, in groups by what decays and by the model's own scale of the rate."""
        import torch

        groups = parameter_groups(
            module.named_parameters(),
            lr=self.lr,
            weight_decay=self.weight_decay,
            scales=lr_scales_of(module),
        )
        betas = (self.beta1, self.beta2)
        return torch.optim.AdamW(groups, lr=self.lr, betas=betas, eps=self.eps, fused=True)


class AdamFields(Protocol):
    """The numbers that every kind of Adam has."""

    @property
    def lr(self) -> float: ...  # noqa: D102 - see AdamW
    @property
    def weight_decay(self) -> float: ...  # noqa: D102
    @property
    def beta1(self) -> float: ...  # noqa: D102
    @property
    def beta2(self) -> float: ...  # noqa: D102
    @property
    def eps(self) -> float: ...  # noqa: D102


def check_adam(spec: AdamFields) -> None:
    """Raise SpecError for rates and decays that would walk uphill or never forget."""
    place = type(spec).__name__
    require_above_0(place, lr=spec.lr, eps=spec.eps)
    decay = spec.weight_decay
    require(decay >= 0, place=f"{place}.weight_decay", found=decay, wanted="0 or more")
    require_shares(place, beta1=spec.beta1, beta2=spec.beta2)


def require_above_0(place: str, **numbers: float) -> None:
    """Raise SpecError for each number that is 0 or less."""
    for name, value in numbers.items():
        require(value > 0, place=f"{place}.{name}", found=value, wanted="a number above 0")


def require_shares(place: str, **shares: float) -> None:
    """Raise SpecError for each number below 0, or at which an average never forgets."""
    for name, value in shares.items():
        require(0 <= value < 1, place=f"{place}.{name}", found=value, wanted="0 or more, below 1")
