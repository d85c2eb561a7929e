"""Numbers of a metric as a person reads them: digits by their noise, per cent for shares."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modelfactory.verdict.measure import Measure

MINUS = "\N{MINUS SIGN}"
MOST_DIGITS = 6


def _scale(measure: Measure) -> float:
    return 100.0 if measure.unit == "share" else 1.0


def digits(spread: float | None, value: float = 0.0) -> int:
    """Return the decimals that show a spread with two digits, or a value without spread with three."""
    size, shown = (spread, 2) if spread else (abs(value), 3)
    if not size or not math.isfinite(size):
        return 3
    return min(max(shown - 1 - math.floor(math.log10(size)), 0), MOST_DIGITS)


def number(value: float, decimals: int, *, sign: bool = False) -> str:
    """Return a number with a real minus sign, and a plus sign if asked for; never minus zero."""
    text = f"{value:+,.{decimals}f}" if sign else f"{value:,.{decimals}f}"
    text = text.lstrip("+-") if not text.strip("+-0.,") else text
    return text.replace("-", MINUS)


def value_text(value: float, measure: Measure, spread: float | None = None) -> str:
    """Return a value of the metric with its unit: 48.2 %, 1.234 bits/byte."""
    scale = _scale(measure)
    text = number(value * scale, digits(None if spread is None else spread * scale, value * scale))
    unit = "%" if measure.unit == "share" else measure.unit
    return f"{text} {unit}".rstrip()


def difference_text(value: float, measure: Measure, spread: float | None = None, *, sign: bool = True) -> str:
    """Return a difference of the metric with its unit: +1.3 points, -0.012 bits/byte."""
    scale = _scale(measure)
    decimals = digits(None if spread is None else spread * scale, value * scale)
    return f"{number(value * scale, decimals, sign=sign)} {difference_unit(measure)}".rstrip()


def difference_unit(measure: Measure) -> str:
    """Return the unit of a difference."""
    return "points" if measure.unit == "share" else measure.unit


def margin_text(measure: Measure) -> str:
    """Return the margin as it was given: 2 points, 0.01 bits/byte."""
    return f"{measure.margin * _scale(measure):.6g} {difference_unit(measure)}".rstrip()


def interval_text(interval: tuple[float, float], measure: Measure, *, sign: bool = False) -> str:
    """Return an interval without its unit: 47.1 to 49.3."""
    scale = _scale(measure)
    decimals = digits((interval[1] - interval[0]) / 2 * scale, interval[0] * scale)
    low, high = (number(end * scale, decimals, sign=sign) for end in interval)
    return f"{low} to {high}"


def p_text(p: float) -> str:
    """Return "p = 0.012", or "p < 0.0001" below that."""
    return "p < 0.0001" if p < 0.0001 else f"p = {p:.2g}" if p < 0.995 else "p = 1"


def count_text(n: int, noun: str) -> str:
    """Return "1 seed", "1,200 items"."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"
