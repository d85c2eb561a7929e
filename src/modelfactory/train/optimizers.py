"""Optimizers as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from modelfactory.spec import check_types, require

if TYPE_CHECKING:
    import torch


class Optimizer(Protocol):
    """What the trainer asks of an optimizer spec."""

    @property
    def lr(self) -> float:
        """The peak learning rate, which the schedule multiplies."""

    def build(self, module: torch.nn.Module) -> torch.optim.Optimizer:
        """Return the optimizer of all parameters of `module`; the trainer sets `lr` before each step."""


@dataclass(frozen=True, kw_only=True)
class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2017, arXiv 1711.05101), torch's fused form.

    Only matrices decay, the embeddings among them: never gains, biases, or other vectors. The decay of a step
    is lr * weight_decay, so it follows the schedule.
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
        require(self.lr > 0, place="AdamW.lr", found=self.lr, wanted="a number above 0")
        require(
            self.weight_decay >= 0, place="AdamW.weight_decay", found=self.weight_decay, wanted="0 or more"
        )
        for name in ("beta1", "beta2"):
            beta = getattr(self, name)
            require(0 <= beta < 1, place=f"AdamW.{name}", found=beta, wanted="0 or more, below 1")
        require(self.eps > 0, place="AdamW.eps", found=self.eps, wanted="a number above 0")

    def build(self, module: torch.nn.Module) -> torch.optim.Optimizer:
        """Return torch's optimizer with two groups: what decays and what does not."""
        import torch

        parameters = list(module.parameters())
        groups = [
            {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": self.weight_decay},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ]
        betas = (self.beta1, self.beta2)
        return torch.optim.AdamW(
            [group for group in groups if group["params"]], lr=self.lr, betas=betas, eps=self.eps, fused=True
        )
