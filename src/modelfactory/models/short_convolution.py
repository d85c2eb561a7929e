"""A causal depthwise convolution over a few positions, which recurrent mixers put before their state.

Shapes: B batch, T time (position), C channels, W width, S = W - 1 positions before the first one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from modelfactory.models.recurrent import exact_dtype

if TYPE_CHECKING:
    from modelfactory.models.architecture import Packing
    from modelfactory.models.recurrent import RecurrentCache


class ShortConvolution(nn.Module):
    """silu(bias + sum over w of weight[w] * x[t - (W - 1) + w]), each channel by itself.

    The weight has the shape of `nn.Conv1d` with as many groups as channels, (C, 1, W), newest position last.
    It is a sum of W shifted products, not a call of `conv1d`: a shift can leave out what belongs to another
    document, and time stays the second dimension.
    """

    def __init__(self, n_channels: int, *, width: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_channels, 1, width))
        self.bias = nn.Parameter(torch.empty(n_channels)) if bias else None
        self.width = width

    def initialise(self, generator: torch.Generator) -> None:
        """Draw the weight uniformly from -1/sqrt(W) to 1/sqrt(W), as torch does; the bias starts at 0."""
        nn.init.uniform_(self.weight, -(self.width**-0.5), self.width**-0.5, generator=generator)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(
        self, x_BTC: torch.Tensor, cache: RecurrentCache | None = None, packing: Packing | None = None
    ) -> torch.Tensor:
        """Return y_BTC; a cache gives the S positions before the first and takes the last S."""
        T, n_before = x_BTC.shape[1], self.width - 1
        if cache is None:
            all_BUC = functional.pad(x_BTC, (0, 0, n_before, 0))  # U = S + T
        else:
            all_BUC = torch.cat([cache.tail_BSC.to(x_BTC.dtype), x_BTC], dim=1)
            cache.tail_BSC = all_BUC[:, T:].detach().clone()
        weight_WC = self.weight[:, 0].T.to(exact_dtype(self.weight))
        y_BTC = all_BUC[:, n_before:] * weight_WC[n_before]
        for back in range(1, self.width):
            shifted_BTC = all_BUC[:, n_before - back : n_before - back + T]
            if packing is not None:
                shifted_BTC = torch.where(packing.positions_BT[..., None] >= back, shifted_BTC, 0)
            y_BTC = y_BTC + shifted_BTC * weight_WC[n_before - back]
        return functional.silu(y_BTC if self.bias is None else y_BTC + self.bias).to(x_BTC.dtype)
