"""The gated delta rule, chunk by chunk.

Shapes: B batch, T time (position), K key heads, G value heads of each key head, H = K * G value heads,
Q key_head_dim, V value_head_dim, N chunks, L positions of a chunk.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from modelfactory.models.recurrent import (
    ChunkDecays,
    chunk_decays,
    chunked_documents,
    exact_dtype,
    in_chunks,
)

UNIT_EPS = 1e-6
"""Added to the squared length of queries and keys, as in fla and transformers."""


class DeltaInputs(NamedTuple):
    """What the rule is given for each position."""

    q_BTKQ: torch.Tensor
    """Queries, of any length: they are made unit vectors by the rule."""
    k_BTKQ: torch.Tensor
    """Keys, likewise."""
    v_BTHV: torch.Tensor
    log_decay_BTH: torch.Tensor
    """0 or less."""
    beta_BTH: torch.Tensor
    """Strengths of writing, from 0 to 1."""


def gated_delta(
    inputs: DeltaInputs,
    *,
    chunk: int,
    state_BHQV: torch.Tensor | None = None,
    first_BT: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return y_BTHV and the state after the last position, both in float32 (float64 for float64).

    Within a chunk, what is written is the solution of a triangular system, since each write takes away what
    the ones before it left under its key (the WY form: Yang et al. 2024, arXiv 2406.06484, section 3.2; with
    decays: arXiv 2412.06464, section 3.3). The system is solved for all chunks at once, for the values and
    for what the state before the chunk will take away; only the latter's product with the state waits for it.

    Args:
        inputs: see `DeltaInputs`.
        chunk: positions of a chunk.
        state_BHQV: before the first position; None for empty.
        first_BT: see `first_positions`; None if each row is one document.
    """
    q_BTKQ, k_BTKQ, v_BTHV, log_decay_BTH, beta_BTH = inputs
    T, n_key_heads, n_value_heads = *k_BTKQ.shape[1:3], v_BTHV.shape[2]
    length = min(chunk, T)
    with torch.autocast(v_BTHV.device.type, enabled=False):
        q, k = (_by_head(_unit(part), n_key_heads, length) for part in (q_BTKQ, k_BTKQ))
        v = _by_head(v_BTHV.to(q.dtype), n_key_heads, length)
        log_decay_BNHL, beta_BNHL = (
            in_chunks(part.to(q.dtype), length).transpose(2, 3) for part in (log_decay_BTH, beta_BTH)
        )
        decays = chunk_decays(log_decay_BNHL, chunked_documents(first_BT, length))
        writes = _writes(k, v, decays, beta_BNHL)
        if state_BHQV is None:
            state_BHQV = v.new_zeros(v.shape[0], n_value_heads, k.shape[-1], v.shape[-1])
        states_BNHQV, written_BNHLV, state_BHQV = _scanned(writes, decays, state_BHQV.to(q.dtype))
        scores = (q @ k.mT) * _grouped(decays.within_BNHLL, n_key_heads)
        read = (q * _grouped(decays.from_start_BNHL, n_key_heads)[..., None]).flatten(2, 3) @ states_BNHQV
        y_BNHLV = (read + scores.flatten(2, 3) @ written_BNHLV) * k.shape[-1] ** -0.5
        return y_BNHLV.transpose(2, 3).flatten(1, 2)[:, :T], state_BHQV


class _Writes(NamedTuple):
    values_BNHLV: torch.Tensor
    """What is written if the state before the chunk is empty."""
    taken_BNHLQ: torch.Tensor
    """Times that state, what is written less."""
    keys_BNHLQ: torch.Tensor
    """Keys, decayed to the end of the chunk."""


def _writes(k: torch.Tensor, v: torch.Tensor, decays: ChunkDecays, beta_BNHL: torch.Tensor) -> _Writes:
    """Solve (1 + below-diagonal part of `system`) x = right side, for keys BNK1LQ and values BNKGLV."""
    n_key_heads = k.shape[2]
    beta, from_start, to_end = (
        _grouped(part, n_key_heads)[..., None]
        for part in (beta_BNHL, decays.from_start_BNHL, decays.to_end_BNHL)
    )
    system = beta * (k @ k.mT) * _grouped(decays.within_BNHLL, n_key_heads)
    right = torch.cat([beta * v, beta * from_start * k], dim=-1).flatten(2, 3)
    solved = torch.linalg.solve_triangular(system.flatten(2, 3), right, upper=False, unitriangular=True)
    values_BNHLV, taken_BNHLQ = solved.split((v.shape[-1], k.shape[-1]), dim=-1)
    return _Writes(values_BNHLV, taken_BNHLQ, (k * to_end).flatten(2, 3))


def _scanned(
    writes: _Writes, decays: ChunkDecays, state_BHQV: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the state before each chunk, what each chunk writes, and the state after the last."""
    states, written = [], []
    for n in range(writes.values_BNHLV.shape[1]):
        states.append(state_BHQV)
        written.append(writes.values_BNHLV[:, n] - writes.taken_BNHLQ[:, n] @ state_BHQV)
        added = writes.keys_BNHLQ[:, n].mT @ written[-1]
        state_BHQV = decays.whole_BNH[:, n, :, None, None] * state_BHQV + added
    return torch.stack(states, dim=1), torch.stack(written, dim=1), state_BHQV


def _unit(x: torch.Tensor) -> torch.Tensor:
    x = x.to(exact_dtype(x))
    return x * torch.rsqrt(x.square().sum(dim=-1, keepdim=True) + UNIT_EPS)


def _by_head(x_BTHV: torch.Tensor, n_key_heads: int, length: int) -> torch.Tensor:
    """Return x_BNKGLV, contiguous."""
    return _grouped(in_chunks(x_BTHV, length).transpose(2, 3).contiguous(), n_key_heads)


def _grouped(x_BNH: torch.Tensor, n_key_heads: int) -> torch.Tensor:
    """Return x_BNH... as x_BNKG..."""
    return torch.unflatten(x_BNH, 2, (n_key_heads, -1))
