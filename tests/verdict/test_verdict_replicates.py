from __future__ import annotations

import numpy as np
import pytest

from modelfactory.verdict import (
    Noise,
    Outcomes,
    compare,
    detectable_difference,
    planned_difference,
    replicate_noise,
)
from tests.verdict.studies import SCORE, Against, simulated

SEEDS = {"a": range(5), "b": range(5)}


def earlier(gains: dict[str, float], *, n_seeds: int = 10) -> Outcomes:
    random = np.random.default_rng(1)
    return simulated(random, gains=gains, n_seeds=n_seeds, n_items=50, seed_sd=0.2)


def test_noise_is_that_of_the_simulation() -> None:
    noise = replicate_noise(earlier(dict.fromkeys("pqrstuvw", 0.0), n_seeds=40), SCORE)
    assert noise is not None
    assert noise.seed_variance == pytest.approx(0.2**2 + 0.1**2 / 50, rel=0.15)
    assert noise.item_variance == pytest.approx(0.3**2 / 50, rel=0.25)
    assert (noise.n_runs, noise.n_clusters) == (320, 50)


def test_without_replicates_nothing_is_known() -> None:
    assert replicate_noise(earlier({"p": 0.0, "q": 0.0}, n_seeds=1), SCORE) is None


def test_of_one_variant_alone_noise_between_items_is_unknown() -> None:
    noise = replicate_noise(earlier({"p": 0.0}), SCORE)
    assert noise is not None
    assert noise.item_variance is None


def test_more_seeds_see_smaller_differences_and_more_comparisons_larger_ones() -> None:
    noise = replicate_noise(earlier({"p": 0.0, "q": 0.0}), SCORE)
    assert noise is not None
    few, many = (planned_difference(noise, SEEDS, n_paired=n, n_comparisons=1) for n in (5, 50))
    corrected = planned_difference(noise, SEEDS, n_paired=5, n_comparisons=10)
    assert few is not None
    assert many is not None
    assert corrected is not None
    assert many < few < corrected


def test_a_design_of_single_seeds_sees_nothing() -> None:
    noise = replicate_noise(earlier({"p": 0.0, "q": 0.0}), SCORE)
    assert noise is not None
    assert planned_difference(noise, {"a": [0], "b": [0]}, n_paired=1, n_comparisons=1) is None
    pooled = {"a": [0], "b": [0], "c": range(4), "d": range(4)}
    assert planned_difference(noise, pooled, n_paired=1, n_comparisons=1) is not None


def test_runs_that_came_out_all_alike_tell_no_noise() -> None:
    random = np.random.default_rng(1)
    alike = simulated(
        random, gains={"p": 0.0, "q": 0.0}, n_seeds=4, n_items=6, seed_sd=0.0, item_sd=0.0, rest_sd=0.0
    )
    noise = replicate_noise(alike, SCORE)
    assert noise is not None
    assert noise.never_varied
    assert planned_difference(noise, SEEDS, n_paired=5, n_comparisons=1) is None


def test_without_noise_every_difference_is_seen() -> None:
    silent = Noise(seed_variance=0.0, seed_df=3.0, item_variance=0.0, item_df=5.0)
    assert detectable_difference(silent) == 0.0


def test_the_difference_told_before_is_seen_as_often_as_stated() -> None:
    noise = replicate_noise(earlier(dict.fromkeys("pqrstuvw", 0.0), n_seeds=40), SCORE)
    assert noise is not None
    gain = planned_difference(noise, SEEDS, n_paired=5, n_comparisons=1)
    assert gain is not None
    random, n, seen = np.random.default_rng(2), 300, 0
    for _ in range(n):
        study = simulated(random, gains={"a": 0.0, "b": gain}, n_seeds=5, n_items=50, seed_sd=0.2)
        (finding,) = compare(study, [Against("a", "b")], measures=[SCORE])
        seen += finding.verdict == "better"
    # Monte Carlo error of 300 studies is 2.3 points; the noise itself was estimated.
    assert seen / n == pytest.approx(0.8, abs=0.08)
