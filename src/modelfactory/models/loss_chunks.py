"""How many positions the loss works on at once; without torch, since plans count by it too."""

from __future__ import annotations

_LOGITS = 2**23
"""32 MiB in float32. On a CPU, chunks of 1,024 at a vocabulary of 8,192 took 0.77 of the time of one."""
_ROWS = 1_024
"""Fewer make products too flat, and the head's gradient is added up once for each chunk: at a vocabulary of
32,768, chunks of 256 took 1.05 of the time of a whole step with chunks of 1,024."""
_MOST_LOGITS = 2**26
"""256 MiB in float32, whatever the vocabulary."""


def n_chunks(n_positions: int, vocab_size: int) -> int:
    """Return how many equal chunks `n_positions` are cut into, at least 1."""
    return max(-(-n_positions // rows_per_chunk(vocab_size)), 1)


def rows_per_chunk(vocab_size: int) -> int:
    """Return the most positions of a chunk, at least 1."""
    rows = max(_LOGITS // vocab_size, _ROWS)
    return max(min(rows, _MOST_LOGITS // vocab_size), 1)
