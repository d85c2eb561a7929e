from __future__ import annotations

import numpy as np
import pytest

from modelfactory.verdict import Outcomes, early_signal
from tests.verdict.studies import SCORE, table


def study(by_step: dict[int, dict[str, float]]) -> Outcomes:
    return Outcomes.concatenate(
        [
            table({(name, 0): [score] * 3 for name, score in at.items()}, step=step)
            for step, at in by_step.items()
        ]
    )


END = {"a": 0.1, "b": 0.2, "c": 0.3, "d": 0.4}


def test_rank_correlation_with_the_final_ranking_by_step() -> None:
    swapped = END | {"a": 0.2, "b": 0.1}
    reversed_ = dict(zip(END, reversed(END.values()), strict=True))
    first, second, third = early_signal(study({1: reversed_, 2: swapped, 3: END, 4: END}), measures=[SCORE])
    assert (first.kendall, first.spearman, first.last) == (pytest.approx(-1), pytest.approx(-1), 4)
    # One of six pairs is the other way round.
    assert second.kendall == pytest.approx(4 / 6)
    assert third.kendall == pytest.approx(1)


def test_signal_to_noise_is_spread_at_the_end_over_wandering() -> None:
    wander = {
        step: {name: score + (-1) ** step * 0.01 for name, score in END.items()} for step in range(1, 5)
    }
    found = early_signal(study(wander), measures=[SCORE], n_late=4)
    assert found[0].signal_to_noise == pytest.approx(0.3 / np.std([0.01, -0.01, 0.01, -0.01], ddof=1))


def test_two_variants_equal_scores_and_a_single_step_say_nothing() -> None:
    two = {"a": 0.1, "b": 0.2}
    assert early_signal(study({1: two, 2: two}), measures=[SCORE])[0].kendall is None
    equal = dict.fromkeys("abc", 0.5)
    (found,) = early_signal(study({1: equal, 2: equal}), measures=[SCORE])
    assert (found.kendall, found.signal_to_noise) == (None, None)
    assert early_signal(study({1: END}), measures=[SCORE]) == []
