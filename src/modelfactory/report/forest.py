"""The forest plot: differences with their intervals, one axis per measure, as places in per cent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from modelfactory.report.tables import finding_interval, half_width, verdict_text
from modelfactory.verdict.finding import Finding
from modelfactory.verdict.measure import Measure
from modelfactory.verdict.words import difference_text, difference_unit, number

if TYPE_CHECKING:
    from collections.abc import Sequence


N_TICKS = 4
LEFT, RIGHT = 3.0, 97.0


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One finding, placed."""

    finding: Finding
    """What is drawn."""
    at: float
    """Place of the difference, per cent of the width."""
    low: float | None
    """Of the lower end of the interval."""
    high: float | None
    """Of the upper end."""
    low_corrected: float | None
    """Of the lower end of the corrected interval, cut at the edge."""
    high_corrected: float | None
    """Of the upper end."""
    difference: str
    """In words."""
    interval: str
    """In words."""
    verdict: str
    """In words."""


@dataclass(frozen=True, kw_only=True)
class Forest:
    """All findings on one measure, on one axis."""

    measure: Measure
    """Of the axis."""
    unit: str
    """Of the differences."""
    bars: tuple[Bar, ...]
    """From top to bottom."""
    ticks: tuple[tuple[float, str], ...]
    """(place, label)."""
    zero: float
    """Place of no difference."""
    margin: tuple[float, float] | None
    """Places between which differences do not matter."""


def forests(findings: Sequence[Finding]) -> list[Forest]:
    """Return one forest per measure, in order of appearance."""
    measures = dict.fromkeys(finding.measure for finding in findings)
    return [_forest(measure, [f for f in findings if f.measure == measure]) for measure in measures]


def _forest(measure: Measure, findings: Sequence[Finding]) -> Forest:
    ends = [0.0, *(finding.difference for finding in findings)]
    ends += [end for finding in findings for end in finding.interval or ()]
    # A margin far wider than all that was found would squeeze it to a dot.
    reach = max(abs(end) for end in ends)
    if measure.margin and measure.margin <= 3 * reach:
        ends += [-measure.margin, measure.margin]
    axis = _Axis(low=min(ends), high=max(ends))
    return Forest(
        measure=measure,
        unit=difference_unit(measure),
        bars=tuple(_bar(finding, axis) for finding in findings),
        ticks=_ticks(axis, measure),
        zero=axis.place(0.0),
        margin=(axis.place(-measure.margin), axis.place(measure.margin)) if measure.margin else None,
    )


@dataclass(frozen=True, kw_only=True)
class _Axis:
    low: float
    high: float

    def place(self, value: float) -> float:
        span = self.high - self.low or 1.0
        share = (value - self.low) / span if self.high > self.low else 0.5
        return round(min(max(LEFT + (RIGHT - LEFT) * share, 0.0), 100.0), 3)


def _bar(finding: Finding, axis: _Axis) -> Bar:
    ends = None if finding.interval is None else [axis.place(end) for end in finding.interval]
    wide = None if finding.interval_corrected is None else [axis.place(e) for e in finding.interval_corrected]
    return Bar(
        finding=finding,
        at=axis.place(finding.difference),
        low=ends[0] if ends else None,
        high=ends[1] if ends else None,
        low_corrected=wide[0] if wide else None,
        high_corrected=wide[1] if wide else None,
        difference=difference_text(finding.difference, finding.measure, half_width(finding)),
        interval=finding_interval(finding),
        verdict=verdict_text(finding),
    )


def _ticks(axis: _Axis, measure: Measure) -> tuple[tuple[float, str], ...]:
    span = axis.high - axis.low
    if span <= 0:
        return ((axis.place(0.0), "0"),)
    scale = 100.0 if measure.unit == "share" else 1.0
    step = _nice(span * scale / N_TICKS)
    decimals = max(0, -math.floor(math.log10(step)))
    first, last = math.ceil(axis.low * scale / step - 1e-9), math.floor(axis.high * scale / step + 1e-9)
    return tuple((axis.place(k * step / scale), number(k * step, decimals)) for k in range(first, last + 1))


def _nice(step: float) -> float:
    """Return the next of 1, 2, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= step * (1 - 1e-9))
