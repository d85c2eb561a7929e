"""A metric and its standard error over clusters of items."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A weighted mean over items."""

    value: float
    """`sum(weight * value) / sum(weight)`."""
    stderr: float | None
    """None with a single cluster, of which nothing can be learnt about the spread."""
    n_items: int
    n_clusters: int


def estimate(values: Sequence[float], weights: Sequence[float], clusters: Sequence[str]) -> Estimate:
    """Estimate the mean and its standard error, items of one cluster counted as dependent.

    The error is that of a ratio, linearised: with r_c the sum of `weight * (value - mean)` over cluster c of
    G, it is sqrt(G / (G - 1) * sum r_c^2) / sum(weight) (Cochran 1977, "Sampling Techniques", 6.4 and 9A).
    For items of weight 1, each its own cluster, this is sd / sqrt(n) with n - 1 in sd.
    """
    value, weight = np.asarray(values, dtype=np.float64), np.asarray(weights, dtype=np.float64)
    total = weight.sum()
    mean = float((weight * value).sum() / total)
    names, numbers = np.unique(np.asarray(clusters, dtype=object).astype(str), return_inverse=True)
    residuals = np.bincount(numbers, weights=weight * (value - mean), minlength=len(names))
    n_clusters = len(names)
    stderr = None
    if n_clusters > 1:
        stderr = math.sqrt(n_clusters / (n_clusters - 1) * float((residuals**2).sum())) / float(total)
    return Estimate(value=mean, stderr=stderr, n_items=len(value), n_clusters=n_clusters)
