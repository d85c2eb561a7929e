"""Attention in a window, of which only blocks near the diagonal are worked out.

The row is cut into n blocks as long as the window; each block of queries sees its own block of keys and the
one before it, and no other.
Shapes: B batch, H heads, K key/value heads, T time (position), Q width of queries and keys, V of values,
W window, N = B * n.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable

    from modelfactory.models.architecture import Packing

_MIN_BLOCKS = 4
"""Of n blocks' work, 2 / n is left. With 3 the copies cost as much as they save."""
_MIN_WINDOW = 8
"""Narrower blocks keep the processor busy with bookkeeping."""


def is_worth_blocks(T: int, S: int, window: int) -> bool:
    """Say whether the row is so much longer than the window that blocks are faster than a mask."""
    return T == S and window >= _MIN_WINDOW and _MIN_BLOCKS * window <= T


def by_blocks(
    qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    window: int,
    packing: Packing | None,
    *,
    attend: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Return y_BHTV.

    Args:
        qkv: queries q_BHTQ, keys k_BKTQ, values v_BKTV.
        window: positions that each one sees, itself included.
        packing: documents of the row.
        attend: what mixes within blocks, given queries, keys, values and a mask.
    """
    q_BHTQ, k_BKTQ, v_BKTV = qkv
    B, H, T, _ = q_BHTQ.shape
    q_NHWQ = _blocks(q_BHTQ, window)
    k_NKSQ, v_NKSV = _with_previous(k_BKTQ, window), _with_previous(v_BKTV, window)
    y_NHWV = attend(q_NHWQ, k_NKSQ, v_NKSV, _mask(B, T, window, packing, q_BHTQ.device))
    return y_NHWV.reshape(B, -1, H, window, v_BKTV.shape[-1]).transpose(1, 2).flatten(2, 3)[:, :, :T]


def _blocks(x_BHTQ: torch.Tensor, window: int) -> torch.Tensor:
    """Cut into blocks, the last one filled up with zeros; N, H, W, Q."""
    padded = functional.pad(x_BHTQ, (0, 0, 0, -x_BHTQ.shape[2] % window))
    B, H, _, Q = padded.shape
    return padded.reshape(B, H, -1, window, Q).transpose(1, 2).flatten(0, 1)


def _with_previous(x_BKTQ: torch.Tensor, window: int) -> torch.Tensor:
    """Cut into blocks, each with the one before it in front; N, K, 2 W, Q."""
    padded = functional.pad(x_BKTQ, (0, 0, window, -x_BKTQ.shape[2] % window))
    B, K, _, Q = padded.shape
    cut_BKnWQ = padded.reshape(B, K, -1, window, Q)
    return torch.cat((cut_BKnWQ[:, :, :-1], cut_BKnWQ[:, :, 1:]), dim=3).transpose(1, 2).flatten(0, 1)


def _mask(B: int, T: int, window: int, packing: Packing | None, device: torch.device) -> torch.Tensor:
    """Return which of 2 W keys each of W queries sees; N, 1, W, 2 W."""
    n = -(-T // window)
    query_W, key_S = torch.arange(window, device=device), torch.arange(2 * window, device=device) - window
    distance_WS = query_W[:, None] - key_S
    near_WS = (distance_WS >= 0) & (distance_WS < window)
    is_real_nS = torch.arange(n, device=device)[:, None] * window + key_S >= 0
    mask_BnWS = (near_WS & is_real_nS[:, None]).expand(B, n, window, 2 * window)
    if packing is not None:
        # two places are of one document if that has the same first place; what fills up the last block has
        # place 0, and so sees itself: a softmax over nothing is not a number
        first_B1T1 = (torch.arange(T, device=device) - packing.positions_BT)[:, None, :, None]
        own_N1W1, near_N1S1 = _blocks(first_B1T1, window), _with_previous(first_B1T1, window)
        mask_BnWS = mask_BnWS & (own_N1W1 == near_N1S1.transpose(2, 3)).view(B, n, window, 2 * window)
    return mask_BnWS.flatten(0, 1)[:, None]
