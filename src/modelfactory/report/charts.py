"""Curves as the page draws them: thinned, averaged over seeds, rounded."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from modelfactory.report.tables import chance_levels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from modelfactory.report.data import EvaluationCurve, LossCurve, ReportData
    from modelfactory.verdict.measure import Measure

POINTS_OF_ALL = 60_000
POINTS_OF_ONE = 300
N_COLOURS = 8
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "triangle-down", "star")

Curve = TypeVar("Curve", "LossCurve", "EvaluationCurve")


def styles(data: ReportData) -> list[dict[str, Any]]:
    """Return colour, line and marker of each variant: two variants never share all three."""
    return [
        {
            "name": variant.name,
            "colour": index % N_COLOURS,
            "dash": DASHES[(index + index // N_COLOURS) % len(DASHES)],
            "symbol": SYMBOLS[index % len(SYMBOLS)],
        }
        for index, variant in enumerate(data.variants)
    ]


def chart_data(data: ReportData) -> dict[str, Any]:
    """Return everything that the page's script draws, as JSON values."""
    charts = []
    chances = chance_levels(data)
    if data.losses:
        charts.append(_loss_chart(data))
    for measure in dict.fromkeys(curve.measure for curve in data.evaluations):
        curves = [curve for curve in data.evaluations if curve.measure == measure]
        share = measure.unit == "share"
        unit = "%" if share else measure.unit
        charts.append(
            {
                "id": f"evaluation-{len(charts)}",
                "title": measure.task,
                "detail": ", ".join(dict.fromkeys(word for word in (_metric(measure), unit) if word)),
                "unit": unit,
                "better": "higher" if measure.higher_is_better else "lower",
                "chance": _chance(chances.get(measure), share=share),
                "markers": True,
                "series": _series(data, curves, _per_cent if share else _values),
            }
        )
    return {"variants": styles(data), "charts": charts}


def _chance(level: float | None, *, share: bool) -> float | None:
    return None if level is None else 100 * level if share else level


def bucket_size(data: ReportData) -> int:
    """Return how many training steps one point of a loss curve is the mean of."""
    if not data.losses:
        return 1
    most = min(POINTS_OF_ONE, max(POINTS_OF_ALL // len(data.losses), 20))
    return max(math.ceil(max(len(curve.steps) for curve in data.losses) / most), 1)


def _loss_chart(data: ReportData) -> dict[str, Any]:
    every = bucket_size(data)
    thin = [_thinned(curve, every) for curve in data.losses]
    return {
        "id": "loss",
        "title": "Training loss",
        "detail": "nats per token",
        "unit": "nats per token",
        "better": "lower",
        "chance": None,
        "markers": False,
        "series": _series(data, thin, lambda curve: curve.loss),
    }


def _thinned(curve: LossCurve, every: int) -> LossCurve:
    """Return a curve of means over `every` steps, placed at the last of them."""
    if every == 1:
        return curve
    ends = [*range(every - 1, len(curve.steps), every)]
    if len(curve.steps) % every:
        ends.append(len(curve.steps) - 1)
    starts = [0, *(end + 1 for end in ends[:-1])]
    means = np.add.reduceat(np.asarray(curve.loss), starts) / np.diff([*starts, len(curve.loss)])
    return type(curve)(
        variant=curve.variant,
        seed=curve.seed,
        steps=tuple(curve.steps[end] for end in ends),
        n_tokens=tuple(curve.n_tokens[end] for end in ends),
        flops=tuple(curve.flops[end] for end in ends),
        loss=tuple(float(mean) for mean in means),
    )


def _metric(measure: Measure) -> str:
    return "" if measure.metric == measure.task else measure.metric


def _values(curve: EvaluationCurve) -> Sequence[float]:
    return curve.values


def _per_cent(curve: EvaluationCurve) -> Sequence[float]:
    return [100 * value for value in curve.values]


def _series(
    data: ReportData, curves: Sequence[Curve], values: Callable[[Curve], Sequence[float]]
) -> list[dict[str, Any]]:
    """Return one thin line per seed and one bold line per variant with several."""
    drawn: list[dict[str, Any]] = []
    for index, variant in enumerate(data.variants):
        own = [curve for curve in curves if curve.variant == variant.name]
        lines = [_line(curve, values(curve)) for curve in own]
        if len(own) > 1:
            drawn += [{"variant": index, "seed": c.seed, **line} for c, line in zip(own, lines, strict=True)]
        if own:
            mean = _mean(own, [values(curve) for curve in own])
            drawn.append({"variant": index, "seed": None, "n_seeds": len(own), **mean})
    return drawn


def _line(curve: LossCurve | EvaluationCurve, values: Sequence[float]) -> dict[str, Any]:
    return {"tokens": list(curve.n_tokens), "flops": _rounded(curve.flops), "y": _rounded(values)}


def _mean(curves: Sequence[Curve], values: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Return the mean over seeds at the steps that all of them have."""
    at = [dict(zip(curve.steps, column, strict=True)) for curve, column in zip(curves, values, strict=True)]
    first = curves[0]
    kept = [place for place, step in enumerate(first.steps) if all(step in column for column in at)]
    return {
        "tokens": [first.n_tokens[place] for place in kept],
        "flops": _rounded(first.flops[place] for place in kept),
        "y": _rounded(sum(column[first.steps[place]] for column in at) / len(at) for place in kept),
    }


def _rounded(values: Iterable[float]) -> list[float | None]:
    # Six digits are more than a screen shows; NaN has no place in JSON.
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values]
