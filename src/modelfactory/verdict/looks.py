"""Several looks at growing runs: how much of alpha each look may spend.

The spending function is that of Lan and DeMets (1983) of the O'Brien-Fleming type: by the share t of the
run, `2 - 2 Phi(z / sqrt(t))` of alpha is spent, with z the quantile of alpha / 2; little early, nearly all at
the end. Each look is tested at what it adds. That is stricter than the boundaries that Lan and DeMets
derive from independent increments: the differences at two steps of the same runs have none, and a sum of
levels holds for any dependence between looks.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import scipy

from modelfactory.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence


def spent(share: float, alpha: float = 0.05) -> float:
    """Return how much of `alpha` is spent once `share` of the run is done (0..1)."""
    if share <= 0:
        return 0.0
    quantile = float(scipy.special.ndtri(1 - alpha / 2))
    return min(float(2 * scipy.special.ndtr(-quantile / math.sqrt(min(share, 1.0)))), alpha)


def level_of_look(step: int, looks: Sequence[int], *, alpha: float = 0.05) -> float:
    """Return the level to compare at, so that all `looks` together have a false finding with chance `alpha`.

    Give it to `compare` as `alpha`, with the same `step`. It depends on the planned looks alone, never on
    what was seen at them; a look that is left out spends nothing.

    Args:
        step: of this look, one of `looks`.
        looks: steps of all looks planned, in any order; the last is the end of the run.
        alpha: for all looks together.

    Raises:
        InvalidInput: `step` is not one of `looks`, or a look is not above 0.
    """
    planned = sorted(set(looks))
    if step not in planned or planned[0] < 1:
        raise InvalidInput(
            place="looks",
            found=f"step {step} and looks at {', '.join(map(str, planned)) or 'no step'}",
            wanted="a step that is one of the looks, and looks at steps of at least 1",
            remedy="Name every step at which you look, this one among them.",
        )
    before = max((look for look in planned if look < step), default=0)
    return spent(step / planned[-1], alpha) - spent(before / planned[-1], alpha)
