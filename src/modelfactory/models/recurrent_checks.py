"""Checks that the specs of recurrent mixers make."""

from __future__ import annotations

from modelfactory.spec import require

_TILE = 16
"""Rows of the smallest tile that GPU kernels multiply.

Besides, torch.compile (2.13.0, on a CPU) made gradients of Mamba-2 that wrote past the end of their memory
with three chunks of 8 or of 24 positions; with three of 16 or 64 it did not.
"""


def require_chunk(place: str, chunk: int) -> None:
    """Raise SpecError unless the chunk is made of whole tiles."""
    require(
        chunk >= 1 and chunk % _TILE == 0,
        place=f"{place}.chunk",
        found=chunk,
        wanted=f"a multiple of {_TILE}",
        remedy="64 is a good start.",
    )
