"""Standard errors against numbers worked out by hand and published ones."""

from __future__ import annotations

import math

import pytest

from modelfactory.evaluate import estimate


def test_a_proportion() -> None:
    """14 of 307: sd / sqrt(n) with n - 1."""
    found = estimate([1.0] * 14 + [0.0] * 293, [1.0] * 307, [str(n) for n in range(307)])
    assert found.value == pytest.approx(14 / 307)
    assert found.stderr == pytest.approx(0.011926, abs=5e-7)
    assert (found.n_items, found.n_clusters) == (307, 307)


def test_a_ratio_of_sums_by_hand() -> None:
    """Documents of 10 and 30 bytes at 3 and 1 bits per byte: 60 bits in 40 bytes."""
    found = estimate([3.0, 1.0], [10.0, 30.0], ["a", "b"])
    assert found.value == pytest.approx(1.5)
    # residuals 10 * 1.5 and 30 * -0.5: sqrt(2 / 1 * (225 + 225)) / 40
    assert found.stderr == pytest.approx(30 / 40)


def test_items_of_one_cluster_are_one_observation() -> None:
    values, clusters = [1.0, 1.0, 0.0, 0.0], ["a", "a", "b", "b"]
    found = estimate(values, [1.0] * 4, clusters)
    # residuals by cluster +1 and -1: sqrt(2 * 2) / 4
    assert found.stderr == pytest.approx(0.5)
    alone = estimate(values, [1.0] * 4, ["a", "b", "c", "d"])
    assert alone.stderr == pytest.approx(math.sqrt(1 / 3) / 2)


def test_one_cluster_tells_nothing_about_the_spread() -> None:
    assert estimate([1.0, 0.0], [1.0, 1.0], ["a", "a"]).stderr is None


def test_a_mean_over_texts_is_weighted_by_their_tokens() -> None:
    """Of 1 token with a loss of 2 and 9 tokens with losses that sum to 90, not of two texts."""
    found = estimate([2.0, 90.0 / 9], [1, 9], ["a", "b"])
    assert found.value == pytest.approx((2 + 90) / 10)
    assert found.value != pytest.approx((2 + 10) / 2)
