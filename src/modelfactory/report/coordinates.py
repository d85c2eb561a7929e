"""The page of a coordinate check: one HTML file, its plots drawn as SVG."""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup

from modelfactory.report.numbers import printable
from modelfactory.train.coordinate_sizes import KINDS
from modelfactory.train.coordinate_slopes import STABLE, Trend, slopes, trend, unstable
from modelfactory.train.coordinates import RULES, Coordinate, Rule
from modelfactory.verdict.words import number

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

WIDTH, HEIGHT, LEFT, BELOW = 216, 168, 40, 34
_POWERS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_GAP = 26
"""Least distance of two labels below a panel."""


@dataclass(frozen=True, kw_only=True)
class Checked:
    """The coordinates of one model."""

    names: tuple[str, ...]
    """Variants that have it, or have muP from it."""
    coordinates: tuple[Coordinate, ...]
    """None where it failed."""
    n_steps: int
    error: str = ""
    """Why it has none."""


def verdict(checked: Checked, rule: Rule) -> str:
    """Return in a line whether activations are stable under a rule, and else which are not."""
    found: dict[Trend, list[str]] = {}
    for kind, slope in unstable(slopes(checked.coordinates, checked.n_steps), rule).items():
        found.setdefault(trend(slope), []).append(f"{kind} ({slope_text(slope)})")
    return "; ".join(f"{word}: {', '.join(kinds)}" for word, kinds in found.items()) or "stable"


def slope_text(slope: float) -> str:
    """Return a slope with its sign and two decimals."""
    return number(slope, 2, sign=True)


def write_coordinates(checked: Sequence[Checked], path: Path) -> None:
    """Write the page; equal coordinates give equal bytes. Its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render_coordinates(checked), encoding="utf-8", newline="\n")


def render_coordinates(checked: Sequence[Checked]) -> str:
    """Return the page as HTML."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_packaged),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("coordinates.html").render(
        models=[_model(each) for each in checked],
        kinds=KINDS,
        style=Markup(_packaged("report.css")),  # noqa: S704 - our own file
        n_steps=max((each.n_steps for each in checked), default=0),
        stable=STABLE,
        width=WIDTH,
        height=HEIGHT,
        left=LEFT,
        slope_text=slope_text,
        trend=trend,
    )


def _packaged(name: str) -> str:
    return resources.files("modelfactory.report").joinpath(name).read_text(encoding="utf-8")


def _model(checked: Checked) -> dict[str, Any]:
    names = [printable(name) for name in checked.names]
    return {"names": names, "error": checked.error, "rows": [] if checked.error else _rows(checked)}


def _rows(checked: Checked) -> list[dict[str, Any]]:
    """Return a row of panels for each rule; panels of one kind share their axes, so that they compare."""
    by_size, by_change = (slopes(checked.coordinates, checked.n_steps, of) for of in ("size", "change"))
    rows = []
    for rule in RULES:
        panels = []
        for kind in KINDS:
            frame = _Frame([each for each in checked.coordinates if each.kind == kind and each.step > 0])
            slope = {"size": by_size[rule, kind], "change": by_change[rule, kind]}
            panels.append({"kind": kind, **frame.drawn(rule), **slope})
        rows.append({"rule": rule, "panels": panels, "verdict": verdict(checked, rule)})
    return rows


class _Frame:
    """Places of one kind's changes and widths, both on logarithmic axes."""

    def __init__(self, coordinates: Sequence[Coordinate]) -> None:
        self._all = coordinates
        self._widths = sorted({each.width for each in coordinates})
        changes = [each.change for each in coordinates]
        self._low, self._high = math.floor(math.log10(min(changes))), math.ceil(math.log10(max(changes)))
        self._high = max(self._high, self._low + 1)

    def drawn(self, rule: Rule) -> dict[str, Any]:
        """Return lines by step, and labels of both axes."""
        steps = sorted({each.step for each in self._all})
        lines = []
        for step in steps:
            own = [each for each in self._all if (each.rule, each.step) == (rule, step)]
            places = [(self._x(each.width), self._y(math.log10(each.change))) for each in own]
            lines.append({"step": step, "share": step / steps[-1], "places": places})
        powers = range(self._low, self._high + 1, -(-(self._high - self._low) // 4))
        return {
            "lines": lines,
            "x_ticks": list(self._x_ticks()),
            "y_ticks": [(self._y(power), _power_text(power)) for power in powers],
        }

    def _x_ticks(self) -> list[tuple[float, str]]:
        """Return the widths that have room for their label, the widest always."""
        last = self._x(self._widths[-1])
        kept = [(last, str(self._widths[-1]))]
        after = -math.inf
        for width in self._widths[:-1]:
            x, gap = self._x(width), max(_GAP, 7 * len(str(width)))
            if x - after >= gap and last - x >= gap:
                kept.append((x, str(width)))
                after = x
        return sorted(kept)

    def _x(self, width: int) -> float:
        first, last = math.log(self._widths[0]), math.log(self._widths[-1])
        share = (math.log(width) - first) / (last - first)
        return round(LEFT + 10 + share * (WIDTH - LEFT - 28), 1)

    def _y(self, power: float) -> float:
        share = (self._high - power) / (self._high - self._low)
        return round(8 + share * (HEIGHT - BELOW - 8), 1)


def _power_text(power: int) -> str:
    """Return a power of ten: 0.01 to 100 in full, others as 10⁻⁵."""
    return f"{10.0**power:g}" if -2 <= power <= 2 else f"10{str(power).translate(_POWERS)}"
