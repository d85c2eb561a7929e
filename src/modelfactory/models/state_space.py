"""The selective state space of Mamba-2, chunk by chunk.

Shapes: B batch, T time (position), G groups, R heads of each group, H = G * R heads, P head_dim,
S state_dim, N chunks, L positions of a chunk.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from modelfactory.models.recurrent import (
    ChunkDecays,
    chunk_decays,
    chunked_documents,
    in_chunks,
)


class SpaceInputs(NamedTuple):
    """What the state space is given for each position."""

    x_BTHP: torch.Tensor
    """What is written."""
    dt_BTH: torch.Tensor
    """How much of it, and how much is forgotten before; above 0, float32 or float64."""
    b_BTGS: torch.Tensor
    """Where it is written."""
    c_BTGS: torch.Tensor
    """Where it is read."""


def state_space(
    inputs: SpaceInputs,
    rate_H: torch.Tensor,
    *,
    chunk: int,
    state_BHPS: torch.Tensor | None = None,
    first_BT: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return y_BTHP and the state after the last position, in the dtype of `dt_BTH`.

    h_t = exp(rate dt_t) h_{t-1} + dt_t x_t b_t^T and y_t = h_t c_t (Dao and Gu 2024, arXiv 2405.21060,
    listing 1). Unlike there, states are handed from chunk to chunk one by one: the cost is linear in T.

    Args:
        inputs: see `SpaceInputs`.
        rate_H: below 0, in the dtype of dt_BTH.
        chunk: positions of a chunk.
        state_BHPS: before the first position; None for empty.
        first_BT: see `first_positions`; None if each row is one document.
    """
    x_BTHP, dt_BTH, b_BTGS, c_BTGS = inputs
    T, n_groups = c_BTGS.shape[1:3]
    length = min(chunk, T)
    with torch.autocast(x_BTHP.device.type, enabled=False):
        x_BNHLP, b_BNGLS, c_BNGLS = (
            in_chunks(part.to(dt_BTH.dtype), length).transpose(2, 3).contiguous()
            for part in (x_BTHP * dt_BTH[..., None], b_BTGS, c_BTGS)
        )
        log_decay_BNHL = in_chunks(rate_H * dt_BTH, length).transpose(2, 3)
        decays = chunk_decays(log_decay_BNHL, chunked_documents(first_BT, length))
        added_BNHPS = _added(x_BNHLP, b_BNGLS, decays)
        if state_BHPS is None:
            state_BHPS = torch.zeros_like(added_BNHPS[:, 0])
        states_BNHPS, state_BHPS = _scanned(added_BNHPS, decays, state_BHPS.to(added_BNHPS.dtype))
        scores = (c_BNGLS @ b_BNGLS.mT)[:, :, :, None] * torch.unflatten(
            decays.within_BNHLL, 2, (n_groups, -1)
        )
        y_BNHLP = scores.flatten(2, 3) @ x_BNHLP + _read(states_BNHPS, c_BNGLS, decays)
        return y_BNHLP.transpose(2, 3).flatten(1, 2)[:, :T], state_BHPS


def _added(x_BNHLP: torch.Tensor, b_BNGLS: torch.Tensor, decays: ChunkDecays) -> torch.Tensor:
    """Return what each chunk leaves in the state; the heads of a group are one product."""
    left_BNHPL = (x_BNHLP * decays.to_end_BNHL[..., None]).mT
    by_group = torch.unflatten(left_BNHPL, 2, (b_BNGLS.shape[2], -1)).flatten(3, 4)  # BNG(RP)L
    return torch.unflatten(by_group @ b_BNGLS, 3, (-1, x_BNHLP.shape[-1])).flatten(2, 3)


def _scanned(
    added_BNHPS: torch.Tensor, decays: ChunkDecays, state_BHPS: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the state before each chunk, and the one after the last."""
    states = []
    for n in range(added_BNHPS.shape[1]):
        states.append(state_BHPS)
        state_BHPS = decays.whole_BNH[:, n, :, None, None] * state_BHPS + added_BNHPS[:, n]
    return torch.stack(states, dim=1), state_BHPS


def _read(states_BNHPS: torch.Tensor, c_BNGLS: torch.Tensor, decays: ChunkDecays) -> torch.Tensor:
    """Return what the states before the chunks give to their positions."""
    by_group = torch.unflatten(states_BNHPS, 2, (c_BNGLS.shape[2], -1)).flatten(3, 4)  # BNG(RP)S
    read = torch.unflatten(by_group @ c_BNGLS.mT, 3, (-1, states_BNHPS.shape[3])).flatten(2, 3)  # BNHPL
    return read.mT * decays.from_start_BNHL[..., None]
