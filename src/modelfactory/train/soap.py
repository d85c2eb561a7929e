"""SOAP, a Shampoo-like optimizer, from the library pytorch-optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from modelfactory.errors import SpecError
from modelfactory.spec import check_types, require
from modelfactory.train.optimizers import check_adam
from modelfactory.train.parameter_groups import hidden_matrices, lr_scales_of, parameter_groups

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class SOAP:
    """Adam in the eigenbasis of Shampoo's preconditioner (Vyas et al. 2024, arXiv 2409.11321, algorithm 3).

    For hidden matrices; embeddings, head, norms, biases and stacks of matrices go to AdamW with the same
    numbers (see `parameter_groups.hidden_matrices`), where the paper gives large dimensions no basis of their
    own. The first step only sets up the bases: hidden matrices do not move in it. Two matrices of the size of
    its sides, and two of its own size, are kept for each parameter.

    Needs `pip install 'modelfactory[optimizers]'`.
    """

    lr: float
    """Peak; the schedule multiplies it."""
    weight_decay: float
    beta1: float = 0.95
    beta2: float = 0.95
    """Also of the preconditioner's averages."""
    precondition_steps: int = 10
    """Steps from one change of the bases to the next."""
    max_precondition_dim: int = 10_000
    """A side of a matrix longer than this keeps its own basis."""
    eps: float = 1e-8

    def __post_init__(self) -> None:
        """Refuse rates and decays that would walk uphill or never forget, and counts below 1."""
        check_types(self)
        check_adam(self)
        for name in ("precondition_steps", "max_precondition_dim"):
            count = getattr(self, name)
            require(count >= 1, place=f"SOAP.{name}", found=count, wanted="at least 1")

    def build(self, module: torch.nn.Module) -> torch.optim.Optimizer:
        """Return SOAP and AdamW as one optimizer.

        Raises:
            SpecError: pytorch-optimizer is not installed.
        """
        import torch

        from modelfactory.train.together import Together

        hidden, scales = hidden_matrices(module), lr_scales_of(module)
        matrices, others = (
            parameter_groups(
                ((name, p) for name, p in module.named_parameters() if (name in hidden) is is_hidden),
                lr=self.lr,
                weight_decay=self.weight_decay,
                scales=scales,
            )
            for is_hidden in (True, False)
        )
        soap = self._soap(matrices)
        if not others:
            return soap
        betas = (self.beta1, self.beta2)
        return Together(soap, torch.optim.AdamW(others, betas=betas, eps=self.eps, fused=True))

    def _soap(self, groups: list[dict[str, object]]) -> torch.optim.Optimizer:
        try:
            from modelfactory.train.exact_soap import ExactSOAP
        except ModuleNotFoundError as error:
            raise SpecError(
                place="SOAP",
                found=f"no module {error.name}",
                wanted="the library pytorch-optimizer",
                remedy="Install it: pip install 'modelfactory[optimizers]'.",
            ) from error
        return ExactSOAP(
            groups,
            lr=self.lr,
            betas=(self.beta1, self.beta2),
            precondition_frequency=self.precondition_steps,
            max_precondition_dim=self.max_precondition_dim,
            eps=self.eps,
        )
