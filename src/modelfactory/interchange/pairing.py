"""Which of our tensors holds which of theirs.

We keep query, key and value in one matrix, gate and up in one, and experts in one stack; most others keep
them apart. Both hold the same numbers: seen as flat lists, ours is theirs one after the other, so a tensor
goes over by cutting or joining, and no bit of it changes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch


class Part(NamedTuple):
    """One of their tensors."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Numbers it holds."""
        return math.prod(self.shape)


class Pairing(NamedTuple):
    """One of our tensors and those of theirs that make it up, in order."""

    ours: str
    theirs: tuple[Part, ...]
    transposed: bool = False
    """Whether they keep the last two dimensions the other way round."""


def same(ours: str, theirs: str, *shape: int) -> Pairing:
    """Return the pairing of two tensors that hold the same in the same order."""
    return Pairing(ours, (Part(theirs, shape),))


def joined(ours: str, theirs: Sequence[tuple[str, int]], *rest: int) -> Pairing:
    """Return the pairing of one tensor of ours with several of theirs, each with its number of rows."""
    return Pairing(ours, tuple(Part(name, (rows, *rest)) for name, rows in theirs))


def turned(ours: str, theirs: str, *shape: int) -> Pairing:
    """Return the pairing of two matrices of which theirs, of `shape`, is the transpose."""
    return Pairing(ours, (Part(theirs, shape),), transposed=True)


def to_theirs(pairing: Pairing, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield their tensors by name; contiguous copies."""
    import torch

    flat = (tensor.mT if pairing.transposed else tensor).reshape(-1)
    pieces = torch.split(flat, [part.size for part in pairing.theirs])
    for part, piece in zip(pairing.theirs, pieces, strict=True):
        yield part.name, piece.reshape(part.shape).clone()


def to_ours(pairing: Pairing, parts: Sequence[torch.Tensor], shape: Sequence[int]) -> torch.Tensor:
    """Return our tensor of `shape`; the parts have the shapes of the pairing."""
    import torch

    flat = torch.cat([part.reshape(-1) for part in parts])
    if not pairing.transposed:
        return flat.reshape(tuple(shape))
    *front, rows, columns = shape
    return flat.reshape(*front, columns, rows).mT.contiguous()
