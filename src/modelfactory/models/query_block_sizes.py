"""When compiled attention goes by blocks of queries, and how large; without torch, since plans count by it.

Shapes: B rows, H heads, T positions of a row.
"""

from __future__ import annotations

_SHORTEST = 64
_MOST_WEIGHTS = 2**27
"""Weights kept for the backward pass of one layer, 256 MB in bfloat16: torch's kernel keeps none."""
_SHORT = 512
"""Up to here blocks of 128 are fastest, above it blocks of 256."""


def is_worth_query_blocks(n_rows: int, n_heads: int, seq_len: int) -> bool:
    """Say whether rows are long enough to gain by blocks, and their weights few enough to be kept."""
    return seq_len >= _SHORTEST and n_rows * n_heads * seq_len**2 // 2 <= _MOST_WEIGHTS


def query_blocks_of(seq_len: int, window: int | None) -> list[tuple[int, int, int]]:
    """Return of each block its first query, the one after its last, and the first key that it meets.

    Args:
        seq_len: T, at least 1.
        window: keys that a query sees, itself included; None: all before it.
    """
    step = 128 if seq_len <= _SHORT else 256
    starts = range(0, seq_len, step)
    firsts = (0 if window is None else max(0, start - window + 1) for start in starts)
    return [(start, min(start + step, seq_len), first) for start, first in zip(starts, firsts, strict=True)]


def mean_keys(seq_len: int, window: int | None) -> float:
    """Return the keys that a query meets in the mean: all queries of a block meet the same ones."""
    return (
        sum((stop - start) * (stop - first) for start, stop, first in query_blocks_of(seq_len, window))
        / seq_len
    )
