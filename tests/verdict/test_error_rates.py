"""Simulations, seeded: what is called 5 % is at most 5 %, within the noise of the simulation itself."""

from __future__ import annotations

import math

import numpy as np
import pytest

from modelfactory.verdict import compare, mean_squares
from modelfactory.verdict.power import Design, detectable_difference
from modelfactory.verdict.variance import own_noise
from tests.verdict.studies import SCORE, Against, simulated

N = 2_000
TOLERANCE = 3 * math.sqrt(0.05 * 0.95 / N)
SETTINGS = [
    pytest.param(1.0, 0.0, id="seeds only"),
    pytest.param(1.0, 1.0, id="seeds and items"),
    pytest.param(0.15, 1.0, id="mostly items"),
    pytest.param(0.0, 1.0, id="items only"),
    pytest.param(0.0, 0.0, id="neither"),
]


def differences(
    random: np.random.Generator, n_seeds: int, n_clusters: int, seed_sd: float, item_sd: float
) -> np.ndarray:
    """Null experiments: (N, seeds, clusters)."""
    seed = random.normal(0, 1, (N, n_seeds, 1)) * seed_sd
    item = random.normal(0, 1, (N, 1, n_clusters)) * item_sd
    return seed + item + random.normal(0, 1, (N, n_seeds, n_clusters))


def rejected(scores: np.ndarray) -> float:
    p_values = [own_noise(mean_squares(one)).p_value(one.mean()) for one in scores]
    return float(np.mean(np.array(p_values) < 0.05))


@pytest.mark.parametrize(("seed_sd", "item_sd"), SETTINGS)
def test_false_positives_stay_below_five_per_cent(seed_sd: float, item_sd: float) -> None:
    scores = differences(np.random.default_rng(1), 3, 50, seed_sd, item_sd)
    assert rejected(scores) <= 0.05 + TOLERANCE


def test_false_positives_are_five_per_cent_where_seeds_are_the_noise() -> None:
    assert abs(rejected(differences(np.random.default_rng(2), 3, 50, 1.0, 0.0)) - 0.05) <= TOLERANCE


@pytest.mark.parametrize("n_seeds", [2, 3, 5])
@pytest.mark.parametrize(("seed_sd", "item_sd"), SETTINGS)
def test_intervals_cover_at_least_what_they_say(n_seeds: int, seed_sd: float, item_sd: float) -> None:
    scores = differences(np.random.default_rng(3), n_seeds, 40, seed_sd, item_sd)
    inside = [abs(one.mean()) <= own_noise(mean_squares(one)).half_width(0.05) for one in scores]
    assert np.mean(inside) >= 0.95 - TOLERANCE


def test_the_whole_comparison_with_pooled_seed_noise_keeps_its_level() -> None:
    random, n, false = np.random.default_rng(4), 250, 0
    for _ in range(n):
        outcomes = simulated(
            random, gains={"a": 0.0, "b": 0.0, "c": 0.0}, n_seeds=3, n_items=40, seed_sd=0.1, shared_sd=0.3
        )
        findings = compare(outcomes, [Against("a", "b"), Against("a", "c")], measures=[SCORE])
        false += any(finding.conclusion in {"better", "worse"} for finding in findings)
    assert false / n <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / n)


def test_the_stated_power_is_reached() -> None:
    random = np.random.default_rng(5)
    scores = differences(random, 6, 50, 1.0, 1.0)
    # The design's true noise: what a planner would know from many earlier runs.
    true = own_noise(mean_squares(scores[0]))
    variance = (1.0 + 1 / 50) / 6, 1.0 / 50
    true = type(true)(seed_variance=variance[0], seed_df=5, item_variance=variance[1], item_df=49)
    effect = detectable_difference(true)
    p_values = [own_noise(mean_squares(one)).p_value(one.mean() + effect) for one in scores]
    assert abs(np.mean(np.array(p_values) < 0.05) - 0.8) < 0.04


def test_power_grows_with_seeds_and_the_far_tail_is_finite() -> None:
    noise = own_noise(mean_squares(differences(np.random.default_rng(6), 2, 50, 1.0, 0.1)[0]))
    design = Design(noise=noise, n_seeds=2, alpha=0.001)
    power = design.power(1.0, np.arange(2.0, 200.0))
    assert np.isfinite(power).all()
    assert power[-1] > 0.99
    assert (np.diff(power) > -1e-6).all()
