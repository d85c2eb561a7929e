"""What goes wrong on one rank only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from modelfactory.train import AdamW

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class FailsOnRank1(AdamW):
    """Raises where the others go on."""

    lacks_memory: bool = False

    def build(self, module: torch.nn.Module) -> torch.optim.Optimizer:
        import torch.distributed as dist

        if dist.get_rank() == 1:
            raise MemoryError("no luck") if self.lacks_memory else ZeroDivisionError("no luck")
        return super().build(module)
