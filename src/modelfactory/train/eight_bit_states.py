"""torchao's AdamW8bit with learning rates as numbers, and states that a checkpoint can hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torchao.optim import AdamW8bit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class EightBitAdamW(AdamW8bit):  # type: ignore[misc]
    """Takes a number for the rate, as the trainer sets it; the library, which compiles, wants a tensor."""

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Take one step."""
        for group in self.param_groups:
            group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32)
        return super().step(closure)

    def tensor_of(
        self, parameter: torch.nn.Parameter, slot: str, parts: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        """Return the quantized average that `parts` were taken from; only the second one is unsigned."""
        made = self._new_buffer(parameter, slot == "exp_avg")
        for name, value in parts.items():
            getattr(made, name).copy_(value)
        return cast("torch.Tensor", made)
