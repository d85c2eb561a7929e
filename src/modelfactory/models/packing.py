"""Rows that hold several documents, which must not see each other.

Shapes: B batch, T time (position).
"""

from __future__ import annotations

import torch

from modelfactory.models.architecture import Packing


def packing_of(documents_BT: torch.Tensor | Packing) -> Packing:
    """Return positions within documents and who may see whom.

    Args:
        documents_BT: int64, numbers the documents of each row; equal neighbours are one document. Or what
            this returns, as a trainer gives it whose rows lie on several processes.
    """
    if isinstance(documents_BT, Packing):
        return documents_BT
    place_T = torch.arange(documents_BT.shape[1], device=documents_BT.device)
    is_first_BT = torch.ones_like(documents_BT, dtype=torch.bool)
    is_first_BT[:, 1:] = documents_BT[:, 1:] != documents_BT[:, :-1]
    first_BT = torch.where(is_first_BT, place_T, 0).cummax(dim=1).values
    same_BTT = first_BT[:, :, None] == first_BT[:, None, :]
    mask_BTT = same_BTT & (place_T[:, None] >= place_T)
    return Packing(documents_BT, place_T - first_BT, mask_BTT[:, None])
