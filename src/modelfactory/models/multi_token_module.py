"""Multi-token prediction as a module.

Shapes: B batch, T time (position), S positions that have a token so far ahead, D d_model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import nn

from modelfactory.models.cross_entropy import UNCOUNTED
from modelfactory.models.modules import Linear
from modelfactory.models.packing import packing_of
from modelfactory.models.part_results import built

if TYPE_CHECKING:
    from collections.abc import Callable

    from modelfactory.models.architecture import BuildContext, Norm, Packing, Routed
    from modelfactory.models.decoder import Block
    from modelfactory.models.multi_token import MultiToken


class Depth(NamedTuple):
    """What one depth gives."""

    y_BSD: torch.Tensor
    """For the head."""
    labels_BS: torch.Tensor
    routed: Routed | None
    """What the experts of its block tell, if it has any."""


class FurtherToken(nn.Module):
    """One depth: both inputs normalised and projected to d_model (equation 21), a block, a last norm."""

    def __init__(self, spec: MultiToken, final_norm: Norm, context: BuildContext) -> None:
        super().__init__()
        block, d_model = cast("Block", spec.block), context.d_model
        self.hidden_norm, self.embedding_norm = built(block.norm, d_model), built(block.norm, d_model)
        self.projection = Linear(2 * d_model, d_model, bias=False, std=context.initial.matrix_std)
        self.block = block.build(context)
        self.final_norm = built(final_norm, d_model)

    def forward(
        self, x_BSD: torch.Tensor, ahead_BSD: torch.Tensor, packing: Packing | None
    ) -> tuple[torch.Tensor, Routed | None]:
        """Return the residual stream after the block, from the one before and the embedding ahead."""
        both = torch.cat((self.hidden_norm(x_BSD), self.embedding_norm(ahead_BSD)), dim=-1)
        stream_BSD = self.projection(both).to(x_BSD.dtype)  # autocast made it bfloat16
        return cast("tuple[torch.Tensor, Routed | None]", self.block(stream_BSD, None, packing))


class FurtherTokens(nn.Module):
    """The chain of depths; `weight` is that of each."""

    def __init__(self, spec: MultiToken, final_norm: Norm, context: BuildContext) -> None:
        super().__init__()
        self.weight = spec.weight / spec.n_extra
        self.depths = nn.ModuleList(FurtherToken(spec, final_norm, context) for _ in range(spec.n_extra))

    def forward(
        self,
        x_BTD: torch.Tensor,
        tokens_BT: torch.Tensor,
        labels_BT: torch.Tensor,
        documents_BT: torch.Tensor | None,
        embed: Callable[[torch.Tensor], torch.Tensor],
    ) -> list[Depth]:
        """Return each depth that a row of this length has room for.

        Args:
            x_BTD: the residual stream of the decoder, before its last norm.
            tokens_BT: int64.
            labels_BT: the token after each; UNCOUNTED where that is no valid label.
            documents_BT: number of the document of each token, or None where rows are not divided.
            embed: from tokens to vectors.
        """
        found: list[Depth] = []
        for k, depth in enumerate(self.depths, 1):
            if (S := tokens_BT.shape[1] - k) < 1:
                break
            packing = None if documents_BT is None else packing_of(documents_BT[:, :S])
            x_BTD, routed = depth(x_BTD[:, :S], embed(tokens_BT[:, k:]), packing)
            labels_BS = labels_BT[:, k:]
            if documents_BT is not None:
                labels_BS = labels_BS.where(documents_BT[:, k:] == documents_BT[:, :S], UNCOUNTED)
            found.append(Depth(cast("FurtherToken", depth).final_norm(x_BTD), labels_BS, routed))
        return found
