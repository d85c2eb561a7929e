"""Correction of p-values for the number of comparisons made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

Correction = Literal["holm", "benjamini-hochberg"]
"""What is kept below alpha: the chance of any false finding, or the expected share of false ones."""


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted by Holm's step-down rule (1979), in the order given.

    Rejecting where the adjusted value is below alpha keeps the chance of any false rejection below alpha,
    whatever the dependence between the comparisons.
    """
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    raised = np.empty_like(p)
    raised[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)), 1.0)
    return [float(value) for value in raised]


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted by the step-up rule of Benjamini and Hochberg (1995), in the order given.

    Rejecting where the adjusted value is below alpha keeps the expected share of false rejections among all
    rejections below alpha, where the comparisons are independent or positively dependent (Benjamini and
    Yekutieli 2001), as those with one baseline are. Several false ones become likely where many are true.
    """
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")[::-1]
    raised = np.empty_like(p)
    raised[order] = np.minimum.accumulate(p[order] * len(p) / np.arange(len(p), 0, -1))
    return [float(value) for value in np.minimum(raised, 1.0)]


def adjusted(p_values: Sequence[float], correction: Correction) -> list[float]:
    """Return p-values adjusted by the rule named, in the order given."""
    return holm(p_values) if correction == "holm" else benjamini_hochberg(p_values)
