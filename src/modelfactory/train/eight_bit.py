"""AdamW with states of eight bits, from torchao."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from modelfactory.errors import SpecError
from modelfactory.spec import check_types, require
from modelfactory.train.optimizers import check_adam
from modelfactory.train.parameter_groups import lr_scales_of, parameter_groups

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class AdamW8bit:
    """AdamW that keeps both averages in 8 bits, on a GPU (Dettmers et al. 2021, arXiv 2110.02861).

    Each block of `block_size` numbers shares a scale; tensors below 4,096 numbers, or that blocks do not
    divide, stay in float32. Saves 6 bytes for each parameter. Decay is as in `AdamW`.

    Needs `pip install 'modelfactory[gpu]'`.
    """

    lr: float
    """Peak; the schedule multiplies it."""
    weight_decay: float
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    block_size: int = 256

    def __post_init__(self) -> None:
        """Refuse rates and decays that would walk uphill or never forget, and empty blocks."""
        check_types(self)
        check_adam(self)
        size = self.block_size
        require(size >= 1, place="AdamW8bit.block_size", found=size, wanted="at least 1")

    def build(self, module: torch.nn.Module) -> torch.optim.Optimizer:
        """Return torchao's optimizer.

        Raises:
            SpecError: a parameter is not on a GPU, or torchao is not installed.
        """
        elsewhere = sorted({p.device.type for p in module.parameters()} - {"cuda", "xpu"})
        require(
            not elsewhere,
            place="AdamW8bit",
            found=f"parameters on {', '.join(elsewhere)}",
            wanted="all parameters on a GPU: its kernels are written for one",
            remedy="Use AdamW, whose states on a CPU cost memory only, or train on a GPU.",
        )
        try:
            from modelfactory.train.eight_bit_states import EightBitAdamW
        except ModuleNotFoundError as error:
            raise SpecError(
                place="AdamW8bit",
                found=f"no module {error.name}",
                wanted="the library torchao",
                remedy="Install it: pip install 'modelfactory[gpu]'.",
            ) from error
        groups = parameter_groups(
            module.named_parameters(),
            lr=self.lr,
            weight_decay=self.weight_decay,
            scales=lr_scales_of(module),
        )
        betas = (self.beta1, self.beta2)
        return EightBitAdamW(groups, lr=self.lr, betas=betas, eps=self.eps, block_size=self.block_size)
