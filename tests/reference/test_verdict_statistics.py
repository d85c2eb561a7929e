"""The verdict's statistics against scipy and statsmodels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from modelfactory.verdict import McNemar, Measure, Outcomes, benjamini_hochberg, compare, holm, mean_squares
from modelfactory.verdict.variance import cluster_scores, own_noise

multitest = pytest.importorskip("statsmodels.stats.multitest", reason="statsmodels is not installed")
contingency = pytest.importorskip(
    "statsmodels.stats.contingency_tables", reason="statsmodels is not installed"
)
ols = pytest.importorskip("statsmodels.formula.api", reason="statsmodels is not installed").ols
pandas = pytest.importorskip("pandas", reason="statsmodels is not installed")
anova_lm = pytest.importorskip("statsmodels.stats.anova", reason="statsmodels is not installed").anova_lm


def test_with_noise_free_items_it_is_the_paired_t_test_on_seed_means() -> None:
    by_seed = np.random.default_rng(0).normal(0.1, 1, 6)
    noise = own_noise(mean_squares(np.repeat(by_seed[:, None], 30, axis=1)))
    reference = stats.ttest_1samp(by_seed, 0)
    assert noise.p_value(by_seed.mean()) == pytest.approx(reference.pvalue, rel=1e-6)
    interval = reference.confidence_interval(0.95)
    assert noise.half_width(0.05) == pytest.approx((interval.high - interval.low) / 2, rel=1e-9)


def test_with_noise_free_seeds_it_is_the_paired_t_test_on_clusters() -> None:
    by_cluster = np.random.default_rng(1).normal(0.3, 1, 30)
    noise = own_noise(mean_squares(np.repeat(by_cluster[None, :], 4, axis=0)))
    assert noise.p_value(by_cluster.mean()) == pytest.approx(
        stats.ttest_1samp(by_cluster, 0).pvalue, rel=1e-6
    )


def test_mean_squares_are_those_of_a_two_way_analysis_of_variance() -> None:
    scores = np.random.default_rng(2).normal(size=(4, 7)) + np.arange(4)[:, None]
    rows = pandas.DataFrame(
        {"y": scores.ravel(), "seed": np.repeat(np.arange(4), 7), "cluster": np.tile(np.arange(7), 4)}
    )
    reference = anova_lm(ols("y ~ C(seed) + C(cluster)", rows).fit())
    squares = mean_squares(scores)
    found = (squares.seed, squares.cluster, squares.residual)
    assert found == pytest.approx(tuple(reference["mean_sq"]), rel=1e-9)


def test_pooled_seed_noise_is_the_residual_of_randomised_blocks() -> None:
    random = np.random.default_rng(3)
    level = random.normal(size=(4, 3))
    tables = [
        Outcomes.of_checkpoint(
            variant=name, seed=seed, step=1, task="t", metric="m", item_id=["x", "y"], cluster=["x", "y"],
            value=[level[v, seed], level[v, seed] + 1],
        )
        for v, name in enumerate("abcd")
        for seed in range(3)
    ]  # fmt: skip
    rows = pandas.DataFrame(
        {"y": level.ravel(), "variant": np.repeat(np.arange(4), 3), "seed": np.tile(np.arange(3), 4)}
    )
    residual = anova_lm(ols("y ~ C(variant) + C(seed)", rows).fit())["mean_sq"]["Residual"]
    pair = type("Pair", (), {"baseline": "a", "variant": "b"})()
    measure = Measure(task="t", metric="m", higher_is_better=True)
    (finding,) = compare(Outcomes.concatenate(tables), [pair], measures=[measure])
    assert "pooled over 4 variants" in finding.model
    assert finding.stderr == pytest.approx(np.sqrt(2 * residual / 3), rel=1e-9)
    reference = 2 * stats.t.sf(abs(finding.difference) / finding.stderr, 6)
    assert finding.p_value == pytest.approx(reference, rel=1e-6)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
@settings(max_examples=30, deadline=None)
def test_holm_is_that_of_statsmodels(p_values: list[float]) -> None:
    assert holm(p_values) == pytest.approx(multitest.multipletests(p_values, method="holm")[1].tolist())


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
@settings(max_examples=30, deadline=None)
def test_benjamini_hochberg_is_that_of_statsmodels_and_scipy(p_values: list[float]) -> None:
    ours = benjamini_hochberg(p_values)
    assert ours == pytest.approx(multitest.multipletests(p_values, method="fdr_bh")[1].tolist())
    assert ours == pytest.approx(stats.false_discovery_control(p_values).tolist())


@given(st.integers(0, 400), st.integers(0, 400))
@settings(max_examples=50, deadline=None)
def test_mcnemar_is_that_of_statsmodels(only_a: int, only_b: int) -> None:
    theirs = contingency.mcnemar([[7, only_a], [only_b, 5]], exact=True).pvalue
    assert McNemar(only_baseline=only_a, only_variant=only_b).p_value == pytest.approx(theirs, rel=1e-9)


def test_the_variance_of_a_ratio_is_the_linearised_one() -> None:
    random = np.random.default_rng(4)
    weight, value = random.uniform(1, 9, (1, 200)), random.normal(2, 1, (1, 200))
    scores, effective = cluster_scores(value, weight, np.arange(200))
    metric = np.average(value[0], weights=weight[0])
    linear = weight[0] * (value[0] - metric) / weight.mean()
    assert scores.mean() == pytest.approx(metric)
    assert scores.var(ddof=1) == pytest.approx(linear.var(ddof=1))
    assert effective == pytest.approx(weight.sum() ** 2 / (weight**2).sum())


def test_the_standard_error_of_a_ratio_is_that_of_a_cluster_robust_regression() -> None:
    random = np.random.default_rng(5)
    cluster = np.repeat(np.arange(25), 4)
    weight, value = random.uniform(1, 9, 100), random.normal(2, 1, 100) + random.normal(0, 1, 25)[cluster]
    wls = pytest.importorskip("statsmodels.regression.linear_model").WLS
    fitted = wls(value, np.ones(100), weights=weight).fit(
        cov_type="cluster", cov_kwds={"groups": cluster, "use_correction": False}
    )
    scores, _ = cluster_scores(value[None, :], weight[None, :], cluster)
    ours = scores.std(ddof=0) / np.sqrt(25)
    assert ours == pytest.approx(float(fitted.bse[0]), rel=1e-9)
