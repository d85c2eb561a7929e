"""Which dimensions of a head turn together.

The first Llama, llama2.c, and files of llama.cpp for Llama turn neighbours (0 with 1, 2 with 3, ...); we and
transformers turn halves (0 with head_dim / 2, ...). One is the other with the rows of the query and key
matrices in another order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def to_halves(rows: torch.Tensor, n_heads: int) -> torch.Tensor:
    """Reorder rows (or a bias) of `n_heads` heads, of which neighbours turn together, so that halves do."""
    pairs = rows.reshape(n_heads, rows.shape[0] // n_heads // 2, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape)


def to_neighbours(rows: torch.Tensor, n_heads: int) -> torch.Tensor:
    """Undo `to_halves`."""
    halves = rows.reshape(n_heads, 2, rows.shape[0] // n_heads // 2, *rows.shape[1:])
    return halves.transpose(1, 2).reshape(rows.shape)
