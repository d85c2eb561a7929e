"""Layers of a user's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from modelfactory.models.modules import Linear
from modelfactory.train.tensor import Pair

if TYPE_CHECKING:
    from modelfactory.models.architecture import BuildContext


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """A feed-forward with dropout, which leaves each mask it draws in a folder."""

    folder: str

    def n_parameters(self, d_model: int) -> int:
        return d_model * d_model

    def flops_per_token(self, d_model: int, seq_len: int) -> int:
        del seq_len
        return 6 * self.n_parameters(d_model)

    def build(self, context: BuildContext) -> torch.nn.Module:
        return DroppedModule(self, context)


class DroppedModule(torch.nn.Module):
    def __init__(self, spec: Dropped, context: BuildContext) -> None:
        super().__init__()
        self.linear = Linear(context.d_model, context.d_model, bias=False, std=0.02)
        self.folder = Path(spec.folder)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        mask_BTD = torch.nn.functional.dropout(torch.ones_like(x_BTD), 0.5)
        rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
        place = self.folder / f"rank-{rank}-{len(list(self.folder.glob(f'rank-{rank}-*')))}.pt"
        torch.save(mask_BTD.detach(), place)
        y_BTD: torch.Tensor = self.linear(x_BTD) * mask_BTD
        return y_BTD


@dataclass(frozen=True, kw_only=True)
class Broken(Dropped):
    """A feed-forward that raises in one of its methods."""

    where: str

    def n_parameters(self, d_model: int) -> int:
        self._raise("n_parameters")
        return super().n_parameters(d_model)

    def flops_per_token(self, d_model: int, seq_len: int) -> int:
        self._raise("flops_per_token")
        return super().flops_per_token(d_model, seq_len)

    def build(self, context: BuildContext) -> torch.nn.Module:
        self._raise("build")
        return BrokenModule(self, context)

    def _raise(self, where: str) -> None:
        if self.where == where:
            raise ZeroDivisionError("no luck")


class BrokenModule(DroppedModule):
    def __init__(self, spec: Broken, context: BuildContext) -> None:
        super().__init__(spec, context)
        self.raises = spec.where == "forward"

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        y_BTD: torch.Tensor = self.linear(x_BTD[..., 1:] if self.raises else x_BTD)
        return y_BTD


@dataclass(frozen=True, kw_only=True)
class BrokenSGD:
    """An optimizer that raises when it is built, or when it steps."""

    lr: float = 0.1
    where: str

    def build(self, module: torch.nn.Module) -> torch.optim.Optimizer:
        if self.where == "build":
            raise KeyError("no group")
        return StumblingSGD(module.parameters(), lr=self.lr)


class StumblingSGD(torch.optim.SGD):
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        raise RuntimeError("stumbled")


@dataclass(frozen=True, kw_only=True)
class BrokenSchedule:
    """A schedule that does not know its length."""

    def lr_share(self, step: int, n_steps: int) -> float:
        return step / n_steps

    def min_steps(self) -> int:
        raise NotImplementedError("later")


@dataclass(frozen=True, kw_only=True)
class Plain:
    """A layer that says nothing of how it is divided, and looks at a number while it is built."""

    def n_parameters(self, d_model: int) -> int:
        return d_model * d_model

    def flops_per_token(self, d_model: int, seq_len: int) -> int:
        del seq_len
        return 6 * self.n_parameters(d_model)

    def build(self, context: BuildContext) -> torch.nn.Module:
        assert float(torch.ones(2).sum()) == 2
        return Linear(context.d_model, context.d_model, bias=False, std=0.02)


@dataclass(frozen=True, kw_only=True)
class Paired:
    """A feed-forward that says how it is divided."""

    d_ff: int

    def n_parameters(self, d_model: int) -> int:
        return 2 * d_model * self.d_ff

    def flops_per_token(self, d_model: int, seq_len: int) -> int:
        del seq_len
        return 6 * self.n_parameters(d_model)

    def build(self, context: BuildContext) -> torch.nn.Module:
        return PairedModule(self, context)


class PairedModule(torch.nn.Module):
    def __init__(self, spec: Paired, context: BuildContext) -> None:
        super().__init__()
        self.up = Linear(context.d_model, spec.d_ff, bias=False, std=0.02)
        self.down = Linear(spec.d_ff, context.d_model, bias=False, std=0.02)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        y_BTD: torch.Tensor = self.down(torch.relu(self.up(x_BTD)))
        return y_BTD

    def tensor_pair(self) -> Pair:
        return Pair(inward="up", sizes=(self.up.out_features,), outward="down")
