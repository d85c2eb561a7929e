"""Muon: steps of equal strength in every direction a matrix has."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from modelfactory.spec import check_types, require
from modelfactory.train.optimizers import check_adam, require_above_0, require_shares
from modelfactory.train.parameter_groups import (
    hidden_matrices,
    lr_scales_of,
    parameter_groups,
    stacked_rows,
)

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Muon:
    """Momentum made orthogonal, for hidden matrices (Jordan et al. 2024); AdamW for all others. Torch's own.

    The averaged gradient of a matrix, with Nesterov's look ahead, is brought close to the nearest orthogonal
    matrix by five Newton-Schulz iterations in bfloat16, in fp32 runs too: torch has no others. So what
    differs in the last bit of a gradient, as it does when a batch is split otherwise, differs more in the
    step. Losses then differ by 1e-5 to 4e-4 after ten steps, where AdamW's differ by 1e-6.

    Embeddings, head, learned positions, norms, biases, tied tensors and stacks of matrices go to AdamW (see
    `parameter_groups.hidden_matrices`). Queries, keys and values lie in one parameter and are three matrices
    all the same, gate and up projections two (see `parameter_groups.stacked_rows`). Taken as one, the loss of
    a 4 x 128 decoder on characters of Shakespeare was 0.05 nats higher after 400 steps: 1.884 and 1.902
    against 1.832 and 1.846 with two seeds.

    Both parts follow the schedule, and in both only matrices decay, by their own rate times weight_decay.
    """

    lr: float
    """Peak of the hidden matrices; the schedule multiplies it. 0.02 is usual with "original"."""
    adamw_lr: float
    """Peak of all others; the schedule multiplies it too."""
    weight_decay: float
    momentum: float = 0.95
    ns_steps: int = 5
    """Newton-Schulz iterations."""
    lr_adjustment: Literal["original", "match_rms_adamw"] = "original"
    """What a matrix of `rows` outputs and `columns` inputs multiplies its step by: "original" is
    sqrt(max(1, rows / columns)); "match_rms_adamw" is 0.2 sqrt(max(rows, columns)), which makes the step as
    large as AdamW's usually is, so that its learning rate and decay can be used (Liu et al. 2025, arXiv
    2502.16982, equation 4)."""
    beta1: float = 0.9
    """Of AdamW, as the two below."""
    beta2: float = 0.95
    eps: float = 1e-8

    def __post_init__(self) -> None:
        """Refuse rates and decays that would walk uphill or never forget."""
        check_types(self)
        check_adam(self)
        require_above_0("Muon", adamw_lr=self.adamw_lr)
        require_shares("Muon", momentum=self.momentum)
        n_steps = self.ns_steps
        require(1 <= n_steps < 100, place="Muon.ns_steps", found=n_steps, wanted="between 1 and 99")

    def build(self, module: torch.nn.Module) -> torch.optim.Optimizer:
        """Return both of torch's optimizers as one."""
        import torch

        from modelfactory.train.split_muon import SplitMuon
        from modelfactory.train.together import Together

        hidden, scales = hidden_matrices(module), lr_scales_of(module)
        named = dict(module.named_parameters())
        matrices = parameter_groups(
            ((name, p) for name, p in named.items() if name in hidden),
            lr=self.lr,
            weight_decay=self.weight_decay,
            scales={name: self._scale(scale) for name, scale in scales.items()},
        )
        muon = SplitMuon(
            matrices,
            {named[name]: rows for name, rows in stacked_rows(module).items()},
            lr=self.lr,
            momentum=self.momentum,
            ns_steps=self.ns_steps,
            adjust_lr_fn=self.lr_adjustment,
        )
        others = parameter_groups(
            ((name, p) for name, p in named.items() if name not in hidden),
            lr=self.lr,
            weight_decay=self.weight_decay,
            scales=scales,
            share_of_lr=self.adamw_lr / self.lr,
        )
        if not others:
            return muon
        betas = (self.beta1, self.beta2)
        return Together(muon, torch.optim.AdamW(others, betas=betas, eps=self.eps, fused=True))

    def _scale(self, lr_scale: float) -> float:
        """Return what muP's scale for Adam, one over the width, comes to for an orthogonal step.

        A step should change a layer's output by as much at any width: its spectral norm should go with
        sqrt(rows / columns) (Yang et al. 2023, arXiv 2310.17813, condition 1). "original" steps do so
        by themselves. Those of "match_rms_adamw" grow with the root of the width.
        """
        return 1.0 if self.lr_adjustment == "original" else math.sqrt(lr_scale)
