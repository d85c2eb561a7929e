"""Context parallelism: every row cut into pieces along the sequence, for softmax attention of any kind.

All but attention works on single positions. Keys and values of the whole row are gathered from the ranks of a
group, as in Llama 3 (Grattafiori et al. 2024, arXiv 2407.21783, section 3.3.2), and their gradients summed
back. Rank c of C holds the pieces c and 2C - 1 - c of 2C, so that all see equally many keys.

Shapes: B batch, T positions of the row, L of them here, H heads, K key/value heads, Q head_dim,
V width of values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch.distributed._functional_collectives import all_gather_single_autograd

from modelfactory.errors import SpecError
from modelfactory.models.architecture import Packing
from modelfactory.models.packing import packing_of
from modelfactory.models.softmax_attention import attend
from modelfactory.train.tensor import blocks_of

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch import nn

    from modelfactory.models import LossSums
    from modelfactory.models.scoring import Scoring
    from modelfactory.train.processes import Sums


def columns(n_positions: int, rank: int, size: int, device: torch.device) -> torch.Tensor:
    """Return the positions that a rank holds, int64 (L,); `n_positions` is a multiple of 2 * size."""
    pieces = torch.arange(n_positions, device=device).chunk(2 * size)
    return torch.cat((pieces[rank], pieces[2 * size - 1 - rank]))


def gather_keys(module: nn.Module, group: dist.ProcessGroup) -> None:
    """Let every mixer of the module's blocks look at the whole row.

    Raises:
        SpecError: there are no blocks, or one has no `attend`, the function that it mixes positions with.
    """
    for n, block in enumerate(blocks_of(module, "context")):
        if not hasattr(block.mixer, "attend"):
            raise SpecError(
                place=f"Parallel.context, blocks.{n}.mixer",
                found=type(block.mixer).__name__,
                wanted="softmax attention, which can look at other processes",
                remedy="Give the mixer's module `attend`, or leave context out.",
            )
        block.mixer.attend = WholeRow(group)


class WholeRow:
    """Stands in for `softmax_attention.attend` where queries, keys and values are those of `columns`."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group, self._rank, self._size = group, group.rank(), group.size()

    def __call__(
        self,
        q_BHLQ: torch.Tensor,
        k_BKLQ: torch.Tensor,
        v_BKLV: torch.Tensor,
        scoring: Scoring,
        packing: Packing | None = None,
    ) -> torch.Tensor:
        """Return y_BHLV: what each query here finds in the whole row before it."""
        both = torch.cat((k_BKLQ, v_BKLV), dim=-1)
        both = self._in_order(all_gather_single_autograd(both, 2, self._group))
        k_BKTQ, v_BKTV = torch.split(both, [k_BKLQ.shape[-1], v_BKLV.shape[-1]], dim=-1)
        half = q_BHLQ.shape[2] // 2
        found = []
        for n, piece in enumerate((self._rank, 2 * self._size - 1 - self._rank)):
            here, end = slice(n * half, (n + 1) * half), (piece + 1) * half
            seen = None if packing is None else _part(packing, here, end)
            found.append(attend(q_BHLQ[:, :, here], k_BKTQ[:, :, :end], v_BKTV[:, :, :end], scoring, seen))
        return torch.cat(found, dim=2)

    def _in_order(self, x_BKTQ: torch.Tensor) -> torch.Tensor:
        """Put the pieces, which lie by rank, in the order of the row."""
        pieces = x_BKTQ.chunk(2 * self._size, dim=2)
        return torch.cat((*pieces[::2], *reversed(pieces[1::2])), dim=2)


def _part(packing: Packing, here: slice, end: int) -> Packing | None:
    """Return the packing of some queries and the keys before `end`; None where a row is one document."""
    mask_B1LT: torch.Tensor | None = packing.mask_B1TT  # see `OwnColumns`
    if mask_B1LT is None:
        return None
    documents_BH, positions_BH = packing.documents_BT[:, here], packing.positions_BT[:, here]
    return Packing(documents_BH, positions_BH, mask_B1LT[:, :, here, :end])


class OwnColumns:
    """Sums of the columns of this rank; whole rows come in."""

    def __init__(self, sums: Sums, rank: int, size: int) -> None:
        self._sums, self._rank, self._size = sums, rank, size

    def __call__(
        self,
        tokens_BT: torch.Tensor,
        labels_BT: torch.Tensor,
        valid_BT: torch.Tensor,
        documents_BT: torch.Tensor | None = None,
    ) -> LossSums:
        """Return the sums."""
        own = columns(tokens_BT.shape[1], self._rank, self._size, tokens_BT.device)
        if documents_BT is None:
            places_BL = own.expand(tokens_BT.shape[0], -1)
            packing = Packing(torch.zeros_like(places_BL), places_BL, cast("Any", None))
        else:
            whole = packing_of(documents_BT)
            packing = Packing(documents_BT[:, own], whole.positions_BT[:, own], whole.mask_B1TT[:, :, own])
        return self._sums(tokens_BT[:, own], labels_BT[:, own], valid_BT[:, own], packing)
