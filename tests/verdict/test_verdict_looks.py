from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from modelfactory.errors import InvalidInput
from modelfactory.verdict import level_of_look, mean_squares, spent
from modelfactory.verdict.variance import own_noise

LOOKS = (100, 200, 300, 400, 500)
N = 2_000


def test_levels_of_all_looks_add_up_to_alpha() -> None:
    levels = [level_of_look(step, LOOKS) for step in LOOKS]
    assert sum(levels) == pytest.approx(0.05)
    assert levels[0] < 1e-4 < levels[1]
    assert level_of_look(500, [500]) == pytest.approx(0.05)


def test_the_spending_function_is_that_of_lan_and_demets() -> None:
    assert spent(0.5) == pytest.approx(2 - 2 * stats.norm.cdf(stats.norm.ppf(0.975) / math.sqrt(0.5)))
    assert (spent(0.0), spent(1.0)) == (0.0, pytest.approx(0.05))


def watched(levels: list[float]) -> float:
    """Share of null studies called different at any look; differences of a run drift from look to look."""
    random, false = np.random.default_rng(0), 0
    for _ in range(N):
        growing = random.normal(0, 1, (len(LOOKS), 4, 1)).cumsum(axis=0)
        scores = growing + random.normal(0, 0.5, (len(LOOKS), 4, 10))
        false += any(
            abs(at.mean()) > own_noise(mean_squares(at)).half_width(level)
            for at, level in zip(scores, levels, strict=True)
        )
    return false / N


def test_watching_does_not_inflate_errors() -> None:
    tolerance = 3 * math.sqrt(0.05 * 0.95 / N)
    assert watched([level_of_look(step, LOOKS) for step in LOOKS]) <= 0.05 + tolerance
    assert watched([0.05] * len(LOOKS)) > 0.05 + tolerance


@pytest.mark.parametrize(("step", "looks"), [(150, LOOKS), (0, (0, 100)), (100, ())])
def test_a_look_that_was_not_planned_is_refused(step: int, looks: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInput, match="one of the looks"):
        level_of_look(step, looks)
