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


def group_mean(parts: Sequence[Estimate], *, weighted_by_size: bool) -> Estimate:
    """Return the mean over the tasks of a group, and the standard error of that very mean.

    With shares w_i of the parts, 1 / k each or their items over all items, the error of independent parts is
    sqrt(sum (w_i * stderr_i)^2).

    Args:
        parts: at least one; of items of which none is in two.
        weighted_by_size: whether each item counts the same, else each part.
    """
    n_items = sum(part.n_items for part in parts)
    shares = [part.n_items / n_items if weighted_by_size else 1 / len(parts) for part in parts]
    errors = [part.stderr for part in parts if part.stderr is not None]
    stderr = None
    if len(errors) == len(parts):
        stderr = math.hypot(*(share * error for share, error in zip(shares, errors, strict=True)))
    return Estimate(
        value=sum(share * part.value for share, part in zip(shares, parts, strict=True)),
        stderr=stderr,
        n_items=n_items,
        n_clusters=sum(part.n_clusters for part in parts),
    )
