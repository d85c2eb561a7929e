"""The page of a coordinate check: one HTML file, its plots drawn as SVG."""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup

from modelfactory.train.coordinates import KINDS, RULES, Coordinate, slopes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

WIDTH, HEIGHT, MARGIN = 200, 150, 34


@dataclass(frozen=True, kw_only=True)
class Checked:
    """The coordinates of one model."""

    names: tuple[str, ...]
    """Variants that have it."""
    coordinates: tuple[Coordinate, ...]
    n_steps: int


def write_coordinates(checked: Sequence[Checked], path: Path) -> None:
    """Write the page; equal coordinates give equal bytes. Its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render_coordinates(checked), encoding="utf-8", newline="\n")


def render_coordinates(checked: Sequence[Checked]) -> str:
    """Return the page as HTML."""
    models = [{"names": each.names, "rows": _rows(each)} for each in checked]
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_packaged),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("coordinates.html").render(
        models=models,
        kinds=KINDS,
        style=Markup(_packaged("report.css")),  # noqa: S704 - our own file
        n_steps=max((each.n_steps for each in checked), default=0),
        width=WIDTH,
        height=HEIGHT,
        margin=MARGIN,
    )


def _packaged(name: str) -> str:
    return resources.files("modelfactory.report").joinpath(name).read_text(encoding="utf-8")


def _rows(checked: Checked) -> list[dict[str, Any]]:
    """Return a row of panels for each rule; panels of one kind share their axes, so that they compare."""
    by_size, by_change = (slopes(checked.coordinates, checked.n_steps, of) for of in ("size", "change"))
    rows = []
    for rule in RULES:
        panels = []
        for kind in KINDS:
            frame = _Frame([each for each in checked.coordinates if each.kind == kind])
            slope = {"size": by_size[rule, kind], "change": by_change[rule, kind]}
            panels.append({"kind": kind, **frame.drawn(rule), **slope})
        rows.append({"rule": rule, "panels": panels})
    return rows


class _Frame:
    """Places of one kind's sizes and widths, both on logarithmic axes."""

    def __init__(self, coordinates: Sequence[Coordinate]) -> None:
        self._all = coordinates
        self._widths = sorted({each.width for each in coordinates})
        sizes = [each.size for each in coordinates]
        self._low, self._high = math.floor(math.log10(min(sizes))), math.ceil(math.log10(max(sizes)))
        self._high = max(self._high, self._low + 1)

    def drawn(self, rule: str) -> dict[str, Any]:
        """Return lines by step, and labels of both axes."""
        steps = sorted({each.step for each in self._all})
        lines = []
        for step in steps:
            own = [each for each in self._all if (each.rule, each.step) == (rule, step)]
            places = [(self._x(each.width), self._y(math.log10(each.size))) for each in own]
            lines.append({"step": step, "share": step / max(steps[-1], 1), "places": places})
        powers = range(self._low, self._high + 1, -(-(self._high - self._low) // 4))
        return {
            "lines": lines,
            "x_ticks": [(self._x(width), width) for width in self._widths],
            "y_ticks": [(self._y(power), f"{10.0**power:g}") for power in powers],
        }

    def _x(self, width: int) -> float:
        first, last = math.log(self._widths[0]), math.log(self._widths[-1])
        share = (math.log(width) - first) / (last - first)
        return round(MARGIN + share * (WIDTH - MARGIN - 12), 1)

    def _y(self, power: float) -> float:
        share = (self._high - power) / (self._high - self._low)
        return round(8 + share * (HEIGHT - MARGIN), 1)
