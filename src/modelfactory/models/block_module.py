"""One block of a decoder as a module.

Shapes: B batch, T time (position), D d_model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from torch import nn

from modelfactory.models.architecture import Routed
from modelfactory.models.part_results import built, like
from modelfactory.models.roles import fitting

if TYPE_CHECKING:
    import torch

    from modelfactory.models.architecture import BuildContext, Packing
    from modelfactory.models.decoder import Block


class BlockModule(nn.Module):
    """Two residual steps, with norms placed as `decoder.Placement` has it."""

    def __init__(self, spec: Block, context: BuildContext) -> None:
        super().__init__()
        self.placement = spec.placement
        self.mixer_norm = built(spec.norm, context.d_model)
        self.mixer = fitting(spec.mixer, "mixer", context)
        self.feed_forward_norm = built(spec.norm, context.d_model)
        self.feed_forward = fitting(spec.feed_forward, "feed-forward", context)
        if spec.placement == "sandwich":
            self.mixer_out_norm = built(spec.norm, context.d_model)
            self.feed_forward_out_norm = built(spec.norm, context.d_model)

    def forward(
        self, x_BTD: torch.Tensor, cache: Any = None, packing: Packing | None = None
    ) -> tuple[torch.Tensor, Routed | None]:
        """Return the residual stream after the block, and what its experts tell, if it has any."""
        is_first = self.placement in ("pre", "sandwich")
        y_BTD = self.mixer(self.mixer_norm(x_BTD) if is_first else x_BTD, cache, packing)
        x_BTD = self._added(x_BTD, like(x_BTD, y_BTD, self.mixer), "mixer")
        fed = self.feed_forward(self.feed_forward_norm(x_BTD) if is_first else x_BTD)
        routed = fed if isinstance(fed, Routed) else None
        y_BTD = like(x_BTD, fed if routed is None else routed.y_BTD, self.feed_forward)
        return self._added(x_BTD, y_BTD, "feed_forward"), routed

    def _added(self, x_BTD: torch.Tensor, y_BTD: torch.Tensor, name: str) -> torch.Tensor:
        """Add what a layer gave to the stream."""
        if self.placement == "pre":
            return x_BTD + y_BTD
        norm = getattr(self, f"{name}_out_norm" if self.placement == "sandwich" else f"{name}_norm")
        if self.placement == "post":
            return cast("torch.Tensor", norm(x_BTD + y_BTD))
        return cast("torch.Tensor", x_BTD + norm(y_BTD.to(x_BTD.dtype)))  # autocast made y bfloat16
