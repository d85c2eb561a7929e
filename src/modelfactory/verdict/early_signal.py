"""Early signal: which tasks tell at which step how variants will rank in the end.

Two figures: the rank correlation of scores at a step with the last, and the signal-to-noise ratio of Heineman
et al. (2025, arXiv 2508.13144): the spread of variants at the end over what a score wanders between the
last checkpoints of one run. Both parts are relative to the mean score there; here it cancels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy

from modelfactory.verdict.grid import make_grid
from modelfactory.verdict.measure import Measure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from modelfactory.verdict.outcomes import Outcomes

FEWEST = 3
"""Variants below which a ranking says nothing."""

Scores = dict[int, dict[tuple[str, int], float]]
"""step -> (variant, seed) -> score."""


@dataclass(frozen=True, kw_only=True)
class EarlySignal:
    """How well one task at one step tells the ranking at the end."""

    measure: Measure
    """Task and metric."""
    step: int
    """Of the checkpoints that are ranked."""
    last: int
    """Step of the final ranking."""
    n_variants: int
    """Variants with scores at both steps."""
    kendall: float | None
    """Kendall's tau-b of the two rankings, -1..1; None for fewer than 3 variants, or where all are equal."""
    spearman: float | None
    """Spearman's rank correlation, None as for `kendall`."""
    signal_to_noise: float | None
    """Of the task: the same at each step; None without two late checkpoints, or where nothing wanders."""


def early_signal(outcomes: Outcomes, *, measures: Sequence[Measure], n_late: int = 5) -> list[EarlySignal]:
    """Return the early signal of each measure at each step before the last, by measure, then step.

    Args:
        outcomes: of several steps; seeds of a variant are averaged.
        measures: what to rank by.
        n_late: last checkpoints of a run between which its noise is taken.
    """
    found = []
    for measure in measures:
        scores = _scores(outcomes, measure)
        *early, last = sorted(scores) or [0]
        ratio = _signal_to_noise(scores, n_late) if early else None
        found += [_at(measure, scores, step, last, ratio) for step in early]
    return found


def _scores(outcomes: Outcomes, measure: Measure) -> Scores:
    chosen = (outcomes.task == measure.task) & (outcomes.metric == measure.metric)
    found: Scores = {}
    for step in sorted(set(outcomes.step[chosen].tolist())):
        grid = make_grid(outcomes, measure, step)
        items = {key: grid.covered([row]) for key, row in grid.rows.items()}
        found[step] = {key: float(grid.scores([row], items[key])[0].mean()) for key, row in grid.rows.items()}
    return found


def _by_variant(scores: Mapping[tuple[str, int], float]) -> dict[str, float]:
    names = dict.fromkeys(name for name, _ in scores)
    return {n: float(np.mean([v for (name, _), v in scores.items() if name == n])) for n in names}


def _at(measure: Measure, scores: Scores, step: int, last: int, ratio: float | None) -> EarlySignal:
    now, end = _by_variant(scores[step]), _by_variant(scores[last])
    both = [name for name in now if name in end]
    x, y = [now[name] for name in both], [end[name] for name in both]
    ranked = len(both) >= FEWEST and len(set(x)) > 1 and len(set(y)) > 1
    return EarlySignal(
        measure=measure,
        step=step,
        last=last,
        n_variants=len(both),
        kendall=float(scipy.stats.kendalltau(x, y).statistic) if ranked else None,
        spearman=float(scipy.stats.spearmanr(x, y).statistic) if ranked else None,
        signal_to_noise=ratio,
    )


def _signal_to_noise(scores: Scores, n_late: int) -> float | None:
    late = sorted(scores)[-n_late:]
    runs = [key for key in scores[late[-1]] if all(key in scores[step] for step in late)]
    final = list(_by_variant(scores[late[-1]]).values())
    if len(late) < 2 or len(final) < 2 or not runs:
        return None
    wander = [np.var([scores[step][key] for step in late], ddof=1) for key in runs]
    noise = math.sqrt(float(np.mean(wander)))
    return (max(final) - min(final)) / noise if noise > 0 else None
