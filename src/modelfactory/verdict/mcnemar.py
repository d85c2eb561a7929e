"""The exact McNemar test: two single-seed runs on the same right-or-wrong items.

It says whether these two checkpoints would differ on other items of the same kind. It says nothing about
another seed of the same training: a finding gives it beside the verdict, and no verdict is made from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class McNemar:
    """Items that exactly one of two checkpoints got right."""

    only_baseline: int
    """Items that the baseline alone got right."""
    only_variant: int
    """Items that the variant alone got right."""

    @property
    def n_differ(self) -> int:
        """Return the number of items that came out differently."""
        return self.only_baseline + self.only_variant

    @property
    def p_value(self) -> float:
        """Return the exact two-sided p-value (McNemar 1947): either side is as likely, Binomial(n, 1/2).

        0..1; 1 where no item differs. Noise of items only.
        """
        fewer = min(self.only_baseline, self.only_variant)
        return min(2.0 * float(scipy.special.bdtr(fewer, self.n_differ, 0.5)), 1.0)


def mcnemar(
    values: NDArray[np.float64], weights: NDArray[np.float64], clusters: NDArray[np.int64]
) -> McNemar | None:
    """Return the test of two checkpoints; None where it does not apply.

    It applies to one row each, outcomes of 0 and 1, equal weights, and items that are independent: each a
    cluster by itself.

    Args:
        values: (rows, items), the baseline first.
        weights: (rows, items).
        clusters: per item.
    """
    independent = len(np.unique(clusters)) == len(clusters)
    right_or_wrong = bool(np.isin(values, (0.0, 1.0)).all())
    if len(values) != 2 or not independent or not right_or_wrong or np.ptp(weights) > 0:
        return None
    base, other = values == 1.0
    return McNemar(only_baseline=int((base & ~other).sum()), only_variant=int((other & ~base).sum()))
