"""What the mixers with a recurrent state have in common.

Shapes: B batch, T time (position), H heads, N chunks, L positions of a chunk (twice in a row: to, from),
C channels, S positions that the convolution looks back.

In the chunked forms a state is handed from chunk to chunk, and within a chunk all positions are worked out
at once. The state of head h decays by exp(log_decay_BTH) at each position before the position is written.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

LARGEST_RATE = 16.0
LEAST_STEP, LARGEST_STEP = 1e-3, 1e-1


class RecurrentCache:
    """The state after the positions so far, and the last inputs of the convolution."""

    def __init__(self, state: torch.Tensor, tail_BSC: torch.Tensor) -> None:
        self.state = state
        self.tail_BSC = tail_BSC

    def keep(self, state: torch.Tensor) -> None:
        """Replace the state; no gradient goes through a cache."""
        self.state = state.detach()


class GatedRMSNorm(nn.Module):
    """RMSNorm over each of `n_groups` equal parts of the last dimension, and a gate silu(z).

    The gate is applied to what goes into the norm (`gate_first`, Mamba-2) or to what comes out (Gated
    DeltaNet). Worked out in float32.
    """

    def __init__(self, width: int, *, eps: float, gate_first: bool, n_groups: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.eps, self.gate_first, self.n_groups = eps, gate_first, n_groups

    def initialise(self, generator: torch.Generator) -> None:
        """Start with gain 1."""
        del generator
        nn.init.ones_(self.weight)

    def forward(self, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        """Return the gated norm of `y`, in the dtype of `z`; both have the same shape."""
        y, gate = y.to(exact_dtype(y)), functional.silu(z.to(exact_dtype(z)))
        grouped = torch.unflatten(y * gate if self.gate_first else y, -1, (self.n_groups, -1))
        scaled = grouped * torch.rsqrt(grouped.square().mean(dim=-1, keepdim=True) + self.eps)
        normed = scaled.flatten(-2) * self.weight
        return (normed if self.gate_first else normed * gate).to(z.dtype)


class ChunkDecays(NamedTuple):
    """Factors from 0 to 1 by which what was written is still there; 0 across documents."""

    within_BNHLL: torch.Tensor
    """From one position of a chunk to a later one; 0 to an earlier one, 1 to itself."""
    from_start_BNHL: torch.Tensor
    """From the state before the chunk to each position."""
    to_end_BNHL: torch.Tensor
    """From each position to the state after the chunk."""
    whole_BNH: torch.Tensor
    """From the state before the chunk to the state after it."""


def chunk_decays(log_decay_BNHL: torch.Tensor, documents_BNL: torch.Tensor | None) -> ChunkDecays:
    """Return the decays between positions and states.

    Args:
        log_decay_BNHL: 0 or less, float32 or float64.
        documents_BNL: a number that differs between documents of a row. The state before the first chunk is
            taken to be of the first document.
    """
    # In float32, differences of sums of a few hundred would leave factors three or four digits. Gradients are
    # differences too, so the conversion is a step of its own: cumsum(dtype=) goes back in float32.
    sums_BNHL = log_decay_BNHL.to(torch.float64).cumsum(dim=-1)
    L, dtype = sums_BNHL.shape[-1], log_decay_BNHL.dtype
    apart_BNHLL = (sums_BNHL[..., :, None] - sums_BNHL[..., None, :]).to(dtype)
    from_start_BNHL = sums_BNHL.to(dtype).exp()
    to_end_BNHL = (sums_BNHL[..., -1:] - sums_BNHL).to(dtype).exp()
    sees = torch.ones(L, L, dtype=torch.bool, device=sums_BNHL.device).tril()
    if documents_BNL is not None:
        sees = sees & (documents_BNL[..., :, None] == documents_BNL[..., None, :])[:, :, None]
        before_BN = torch.cat([documents_BNL[:, :1, 0], documents_BNL[:, :-1, -1]], dim=1)
        goes_on_BNL = documents_BNL == before_BN[..., None]
        from_start_BNHL = torch.where(goes_on_BNL[:, :, None], from_start_BNHL, 0)
        is_last_BNL = documents_BNL == documents_BNL[..., -1:]
        to_end_BNHL = torch.where(is_last_BNL[:, :, None], to_end_BNHL, 0)
    # the mask comes before exp, which would overflow for positions that lie ahead
    within_BNHLL = apart_BNHLL.masked_fill(~sees, -math.inf).exp()
    return ChunkDecays(within_BNHLL, from_start_BNHL, to_end_BNHL, from_start_BNHL[..., -1])


def in_chunks(x_BT: torch.Tensor, length: int) -> torch.Tensor:
    """Return x_BT... as x_BNL..., the last chunk filled up with zeros, which neither write nor decay."""
    missing = -x_BT.shape[1] % length
    if missing:
        x_BT = functional.pad(x_BT, (0, 0) * (x_BT.ndim - 2) + (0, missing))
    return torch.unflatten(x_BT, 1, (-1, length))


def chunked_documents(first_BT: torch.Tensor | None, length: int) -> torch.Tensor | None:
    """Return documents_BNL; what fills up the last chunk belongs to the last document."""
    if first_BT is None:
        return None
    missing = -first_BT.shape[1] % length
    last_BT = first_BT[:, -1:].expand(-1, missing)
    return torch.unflatten(torch.cat([first_BT, last_BT], dim=1), 1, (-1, length))


def first_positions(positions_BT: torch.Tensor) -> torch.Tensor:
    """Return, for each position, where its document begins in the row: a number of its own for each."""
    return torch.arange(positions_BT.shape[1], device=positions_BT.device) - positions_BT


def exact_dtype(x: torch.Tensor) -> torch.dtype:
    """Return float32, or float64 for float64: states and decays add up over many positions."""
    return torch.promote_types(x.dtype, torch.float32)


def initialise_decays(A_log_H: torch.Tensor, dt_bias_H: torch.Tensor, generator: torch.Generator) -> None:
    """Draw exp(A_log) uniformly from 1 to 16, and softplus(dt_bias) log-uniformly from 0.001 to 0.1.

    As in Mamba (Gu and Dao 2023, arXiv 2312.00752, section 3.6) and Mamba-2: heads forget over 1 to 1,000
    positions.
    """
    A_log_H.uniform_(1.0, LARGEST_RATE, generator=generator).log_()
    dt_bias_H.uniform_(math.log(LEAST_STEP), math.log(LARGEST_STEP), generator=generator).exp_()
    dt_bias_H.add_(torch.log(-torch.expm1(-dt_bias_H)))  # the inverse of softplus
