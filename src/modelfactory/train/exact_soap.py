"""The library's SOAP with a state that a checkpoint can hold to the bit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from pytorch_optimizer import SOAP

if TYPE_CHECKING:
    from collections.abc import Callable


class ExactSOAP(SOAP):
    """Keeps its step with each parameter, and its bases row by row.

    The library counts steps in the group, which is no part of the state. Its bases come from eigh and qr
    column by column; products with a copy read back row by row differed in the last bit.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Take one step."""
        for group in self.param_groups:
            known = (self.state[p]["step"] for p in group["params"] if "step" in self.state.get(p, {}))
            group["step"] = next(known, 0)
        loss = super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter in self.state:
                    self._keep(self.state[parameter], group["step"])
        return loss

    @staticmethod
    def _keep(state: dict[str, Any], step: int) -> None:
        state["step"] = step
        state["Q"] = [each.contiguous() if isinstance(each, torch.Tensor) else each for each in state["Q"]]
