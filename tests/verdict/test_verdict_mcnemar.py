from __future__ import annotations

import numpy as np
import pytest

from modelfactory.errors import InvalidInput
from modelfactory.verdict import Finding, Measure, Outcomes, benjamini_hochberg, compare
from tests.verdict.studies import Against, table

ACCURACY = Measure(task="task", metric="score", higher_is_better=True, unit="share")


def single_seeds(only_a: int, only_b: int, *, both: int = 60, neither: int = 30) -> Outcomes:
    right = [(1, 1)] * both + [(0, 0)] * neither + [(1, 0)] * only_a + [(0, 1)] * only_b
    a, b = np.array(right, dtype=float).T
    return table({("a", 0): a, ("b", 0): b})


def one(outcomes: Outcomes, measure: Measure = ACCURACY) -> Finding:
    (finding,) = compare(outcomes, [Against("a", "b")], measures=[measure])
    return finding


def test_two_single_seed_runs_get_the_exact_test_of_their_items() -> None:
    finding = one(single_seeds(2, 9))
    assert finding.mcnemar is not None
    assert (finding.mcnemar.only_baseline, finding.mcnemar.only_variant) == (2, 9)
    # 2 * (1 + 11 + 55) / 2^11
    assert finding.mcnemar.p_value == pytest.approx(134 / 2048)
    assert finding.to_json()["p_items_only"] == finding.mcnemar.p_value
    assert (
        "11 items that came out differently, 9 were right with b alone and 2 with a alone" in finding.sentence
    )
    assert "noise of items only" in finding.sentence


def test_item_noise_is_no_ground_for_a_verdict_however_small_its_p_value() -> None:
    finding = one(single_seeds(0, 500))
    assert finding.mcnemar is not None
    assert finding.mcnemar.p_value < 1e-100
    assert (finding.verdict, finding.p_value) == ("cannot tell", None)


def test_items_that_never_differ_have_p_one() -> None:
    finding = one(single_seeds(0, 0))
    assert finding.mcnemar is not None
    assert finding.mcnemar.p_value == 1.0


def test_no_such_test_for_several_seeds_for_scores_or_for_items_that_hang_together() -> None:
    assert one(table({(name, seed): [0.0, 1.0, 1.0] for name in "ab" for seed in (0, 1)})).mcnemar is None
    assert one(table({("a", 0): [0.2, 1.0, 0.0], ("b", 0): [0.0, 1.0, 1.0]})).mcnemar is None
    together = table({("a", 0): [0.0, 1.0, 0.0], ("b", 0): [0.0, 1.0, 1.0]}, cluster=["x", "x", "y"])
    assert one(together).mcnemar is None
    weighted = table({("a", 0): [0.0, 1.0, 0.0], ("b", 0): [0.0, 1.0, 1.0]}, weight=[1.0, 1.0, 2.0])
    assert one(weighted).mcnemar is None


def four_against_one() -> Outcomes:
    random = np.random.default_rng(0)
    gains = {"a": 0.0, "b": 0.046, "c": 0.043, "d": 0.036, "e": 0.0}
    luck = random.normal(0, 0.02, (5, 4))
    return table(
        {
            (name, seed): np.full(30, gain) + luck[n, seed] + random.normal(0, 0.01, 30)
            for n, (name, gain) in enumerate(gains.items())
            for seed in range(4)
        }
    )


def test_benjamini_hochberg_is_a_choice_that_the_sentence_names() -> None:
    pairs = [Against("a", name) for name in "bcde"]
    strict = compare(four_against_one(), pairs, measures=[ACCURACY])
    lenient = compare(four_against_one(), pairs, measures=[ACCURACY], correction="benjamini-hochberg")
    raw = [finding.p_value for finding in strict if finding.p_value is not None]
    assert [finding.p_corrected for finding in lenient] == benjamini_hochberg(raw)
    assert all(b.p_corrected <= h.p_corrected for h, b in zip(strict, lenient, strict=True))
    assert any(b.p_corrected < h.p_corrected for h, b in zip(strict, lenient, strict=True))
    assert "corrected for 4 comparisons by false discovery rate" in lenient[0].sentence
    assert "false discovery" not in strict[0].sentence
    assert lenient[0].to_json()["correction"] == "benjamini-hochberg"


def test_an_unknown_correction_is_refused_with_the_nearest() -> None:
    with pytest.raises(InvalidInput, match="benjamini-hochberg"):
        compare(single_seeds(1, 2), [Against("a", "b")], measures=[ACCURACY], correction="benjamini")
