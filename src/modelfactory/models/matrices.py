"""The shape of a matrix between hidden vectors, as its layer tells it."""

from __future__ import annotations

from typing import NamedTuple


class Matrix(NamedTuple):
    """The weight of a linear layer."""

    n_in: int
    """Columns."""
    rows: tuple[int, ...]
    """Of each, where several lie on top of each other, such as queries, keys and values; else of the one."""
