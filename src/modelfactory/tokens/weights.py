"""Real weights as integer shares, with nothing lost where that is possible."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from modelfactory.errors import SpecError
from modelfactory.spec import require

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_PERIOD = 1_000_000
"""Largest number of sequences after which the assignment of a mixture repeats."""


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Of every `period` sequences in a row, source s gives exactly `shares[s]`."""

    shares: tuple[int, ...]
    """At least 1 each; their sum is `period`; they have no common divisor."""
    exact: bool
    """False when the weights have no common denominator up to MAX_PERIOD and were rounded."""

    @property
    def period(self) -> int:
        """Sequences after which the assignment repeats, at most MAX_PERIOD."""
        return sum(self.shares)

    @property
    def effective_weights(self) -> tuple[float, ...]:
        """The weights that are really used; they sum to 1 and `integer_shares` gives the same back."""
        return tuple(share / self.period for share in self.shares)


def integer_shares(weights: Sequence[float], place: str = "weights") -> Shares:
    """Return the shares that stand for `weights`, which need not sum to 1.

    `(0.7, 0.3)`, `(7, 3)` and `(70, 30)` are one mixture, as are `(1 / 3, 2 / 3)` and `(1, 2)`: a float is
    read as the fraction of denominator up to MAX_PERIOD that it is nearest to, if it is the float nearest
    to that fraction; otherwise as the decimal number that Python prints for it. Weights that have no common
    denominator up to MAX_PERIOD are rounded to millionths by largest remainders, ties to the first source.

    Raises:
        SpecError: no weights, or a weight that is not finite, not above 0, or rounds to 0 millionths.
    """
    check_weights(weights, place)
    fractions = [_fraction(weight) for weight in weights]
    total = sum(fractions)
    quotas = [fraction / total for fraction in fractions]
    denominator = math.lcm(*(quota.denominator for quota in quotas))
    if denominator <= MAX_PERIOD:
        return Shares(shares=tuple(int(quota * denominator) for quota in quotas), exact=True)
    return Shares(shares=_rounded(quotas, weights, place), exact=False)


def check_weights(weights: Sequence[float], place: str = "weights") -> None:
    """Raise SpecError unless there is a weight, and each is finite and above 0."""
    require(len(weights) > 0, place=place, found=weights, wanted="at least one weight")
    for number, weight in enumerate(weights):
        require(
            math.isfinite(weight) and weight > 0,
            place=f"{place}[{number}]",
            found=weight,
            wanted="a finite number above 0",
            remedy="Leave out a source that shall give nothing.",
        )


def _fraction(weight: float) -> Fraction:
    near = Fraction(weight).limit_denominator(MAX_PERIOD)
    return near if near > 0 and float(near) == weight else Fraction(repr(float(weight)))


def _rounded(quotas: Sequence[Fraction], weights: Sequence[float], place: str) -> tuple[int, ...]:
    """Round to millionths by largest remainders, then take out the common divisor."""
    floors = [int(quota * MAX_PERIOD) for quota in quotas]
    by_remainder = sorted(range(len(quotas)), key=lambda s: (floors[s] - quotas[s] * MAX_PERIOD, s))
    for source in by_remainder[: MAX_PERIOD - sum(floors)]:
        floors[source] += 1
    for number, share in enumerate(floors):
        if share == 0:
            raise SpecError(
                place=f"{place}[{number}]",
                found=f"{weights[number]!r}, which is {float(quotas[number]):.3g} of the mixture",
                wanted=f"at least {1 / MAX_PERIOD:g} of it: weights are kept in millionths",
                remedy="Raise the weight or leave the source out.",
            )
    divisor = math.gcd(*floors)
    return tuple(share // divisor for share in floors)
