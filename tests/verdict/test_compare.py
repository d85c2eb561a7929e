from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest

from modelfactory.errors import InvalidInput
from modelfactory.verdict import Finding, Measure, Outcome, Outcomes, compare, estimate, headlines
from tests.verdict.studies import SCORE, Against, simulated, table


def one(outcomes: Outcomes, measure: Measure = SCORE, **options: float) -> Finding:
    (finding,) = compare(outcomes, [Against("a", "b")], measures=[measure], **options)
    return finding


SHARE = Measure(task="task", metric="score", higher_is_better=True, margin=0.05, unit="share")


def study(gain: float, *, n_seeds: int = 4, seed_sd: float = 0.01, **noise: float) -> Outcomes:
    random = np.random.default_rng(3)
    return simulated(
        random, gains={"a": 0.0, "b": gain}, n_seeds=n_seeds, n_items=80, seed_sd=seed_sd, **noise
    )


def test_a_clear_gain_is_better_and_a_clear_loss_is_worse() -> None:
    assert one(study(0.5)).verdict == "better"
    assert one(study(-0.5)).verdict == "worse"
    assert one(study(0.5)).seeds_needed == 0


def test_for_losses_lower_is_better() -> None:
    loss = Measure(task="task", metric="score", higher_is_better=False)
    assert one(study(-0.5), loss).verdict == "better"


def test_no_difference_needs_two_one_sided_tests_within_the_margin() -> None:
    close = one(study(0.0, item_sd=0.02, rest_sd=0.02, seed_sd=0.005))
    assert close.verdict == "no difference larger than 0.05"
    assert close.p_equivalence < 0.05
    without = Measure(task="task", metric="score", higher_is_better=True)
    assert one(study(0.0, item_sd=0.02, rest_sd=0.02, seed_sd=0.005), without).verdict == "cannot tell"


def test_a_noisy_difference_cannot_be_told_and_says_how_many_seeds_would() -> None:
    finding = one(study(0.1, n_seeds=3, seed_sd=0.2, item_sd=0.02))
    assert finding.verdict == "cannot tell"
    assert finding.seeds_needed > 0
    assert f"{finding.seeds_needed} further seed" in finding.sentence


def test_where_items_dominate_it_says_that_seeds_cannot_help() -> None:
    finding = one(study(0.0, n_seeds=6, seed_sd=0.001, item_sd=3.0))
    assert (finding.verdict, finding.seeds_needed) == ("cannot tell", None)
    assert f"it takes about {finding.items_needed:,} independent items" in finding.sentence
    assert "further seeds alone would not settle it" in finding.sentence


def test_a_single_seed_is_never_a_win() -> None:
    finding = one(study(5.0, n_seeds=1))
    assert finding.verdict == "cannot tell"
    assert finding.p_value is None
    assert finding.covers == "items only"
    assert finding.seeds_needed == 2
    assert "a difference on a single seed is never called a win" in finding.sentence


def test_a_single_seed_wins_only_with_seed_noise_known_from_other_variants() -> None:
    random = np.random.default_rng(5)
    others = simulated(random, gains={"c": 0, "d": 0, "e": 0}, n_seeds=4, n_items=80, seed_sd=0.02)
    finding = one(Outcomes.concatenate([study(1.0, n_seeds=1), others]))
    assert finding.verdict == "better"
    assert "Only one seed is paired" in finding.sentence
    assert "replicates of other variants" in finding.sentence
    assert "pooled over 3 variants" in finding.model


def test_replicates_of_a_single_other_variant_are_enough_to_know_noise() -> None:
    random = np.random.default_rng(6)
    other = simulated(random, gains={"c": 0}, n_seeds=4, n_items=80, seed_sd=0.02)
    assert "from the replicates of c" in one(Outcomes.concatenate([study(1.0, n_seeds=1), other])).model


def test_few_seeds_borrow_the_studys_seed_noise_and_say_so() -> None:
    random = np.random.default_rng(1)
    gains = dict.fromkeys("abcdef", 0.0)
    finding = one(simulated(random, gains=gains, n_seeds=2, n_items=60, seed_sd=0.05))
    assert "pooled over 6 variants" in finding.model
    assert "5 degrees of freedom" in finding.model


def test_a_pair_noisier_than_the_rest_keeps_its_own_seed_noise() -> None:
    random = np.random.default_rng(2)
    calm = simulated(
        random, gains=dict.fromkeys("cdefgh", 0.0), n_seeds=3, n_items=60, seed_sd=0.001, rest_sd=0.001
    )
    wild = simulated(random, gains={"a": 0.0, "b": 0.0}, n_seeds=3, n_items=60, seed_sd=1.0)
    assert "from this pair's own seeds" in one(Outcomes.concatenate([wild, calm])).model


def test_seeds_of_one_side_only_are_left_out_and_reported() -> None:
    values = {("a", s): np.arange(9.0) + s for s in (0, 1, 2)} | {
        ("b", s): np.arange(9.0) + s for s in (1, 2, 7)
    }
    finding = one(table(values))
    assert finding.n_seeds == 2
    assert finding.notes == (
        "Only a has seed 0: not paired, left out.",
        "Only b has seed 7: not paired, left out.",
    )


def test_without_a_shared_seed_nothing_is_claimed() -> None:
    finding = one(table({("a", 0): np.zeros(9), ("b", 1): np.ones(9)}))
    assert (finding.verdict, finding.interval, finding.n_seeds) == ("cannot tell", None, 0)
    assert json.dumps(finding.to_json(), allow_nan=False)


def test_only_shared_items_count_and_the_others_are_counted() -> None:
    ten = table({("a", 0): np.arange(10.0), ("a", 1): np.arange(10.0)})
    six = table({("b", 0): np.arange(6.0), ("b", 1): np.arange(6.0)})
    finding = one(Outcomes.concatenate([ten, six]))
    assert finding.n_items == 6
    assert finding.notes == ("4 of 10 items are not in every checkpoint compared: left out.",)


def test_no_shared_item_is_refused() -> None:
    a = table({("a", 0): [1.0, 2.0]})
    b = table({("b", 0): [1.0, 2.0]}, item_id=["x", "y"], cluster=["x", "y"])
    with pytest.raises(InvalidInput, match="no item that both have"):
        one(Outcomes.concatenate([a, b]))


def test_one_item_cannot_tell() -> None:
    finding = one(table({("a", 0): [0.1], ("a", 1): [0.1], ("b", 0): [0.9], ("b", 1): [0.9]}))
    assert (finding.verdict, finding.seeds_needed) == ("cannot tell", None)
    assert "one independent item" in finding.sentence


def test_equal_real_valued_outcomes_are_no_difference() -> None:
    same = np.random.default_rng(0).normal(size=20)
    finding = one(table({(v, s): same + s for v in "ab" for s in (0, 1)}))
    assert finding.verdict == "no difference larger than 0.05"
    assert (finding.difference, finding.interval, finding.p_value) == (0.0, (0.0, 0.0), 1.0)


@pytest.mark.parametrize(
    ("n_items", "verdict"), [(10, "cannot tell"), (400, "no difference larger than 0.05")]
)
def test_equal_right_or_wrong_outcomes_bound_the_share_that_may_differ(n_items: int, verdict: str) -> None:
    right = np.random.default_rng(0).integers(0, 2, n_items).astype(float)
    finding = one(table({(v, s): right for v in "ab" for s in (0, 1)}))
    assert finding.verdict == verdict
    assert finding.interval[1] == pytest.approx(1 - 0.025 ** (1 / n_items))


def test_the_same_difference_everywhere_is_judged_by_the_sign_test() -> None:
    few = one(table({("a", 0): [0.0] * 3, ("a", 1): [0.0] * 3, ("b", 0): [1.0] * 3, ("b", 1): [1.0] * 3}))
    assert (few.verdict, few.p_value) == ("cannot tell", 0.25)
    many = one(table({(v, s): [float(v == "b")] * 30 for v in "ab" for s in (0, 1)}))
    assert many.verdict == "better"


def test_the_metric_is_weighted_by_the_items_weights() -> None:
    weight = [1.0, 3.0]
    outcomes = table({(v, s): [1.0 + s, 2.0 + (v == "b")] for v in "ab" for s in (0, 1)}, weight=weight)
    finding = one(outcomes)
    assert finding.baseline_value == pytest.approx(((1 + 6) / 4 + (2 + 6) / 4) / 2)
    assert finding.difference == pytest.approx(3 / 4)


def test_items_of_one_cluster_do_not_count_as_independent() -> None:
    random = np.random.default_rng(4)
    values = {(v, s): np.repeat(random.normal(0.2 * (v == "b"), 1, 20), 50) for v in "ab" for s in range(3)}
    cluster = [f"c{n // 50}" for n in range(1000)]
    apart = one(table(values))
    together = one(table(values, cluster=cluster))
    assert together.n_clusters == 20
    assert together.stderr > apart.stderr
    assert "1,000 items in 20 clusters" in together.sentence


def test_p_values_are_corrected_over_all_comparisons() -> None:
    random = np.random.default_rng(8)
    outcomes = simulated(random, gains=dict.fromkeys("abcd", 0.0), n_seeds=5, n_items=50, seed_sd=0.05)
    findings = compare(outcomes, [Against("a", n) for n in "bcd"], measures=[SCORE])
    assert {f.n_comparisons for f in findings} == {3}
    smallest = min(findings, key=lambda f: f.p_value)
    assert smallest.p_corrected == pytest.approx(min(3 * smallest.p_value, 1))


def test_the_last_step_is_compared_and_runs_behind_are_reported() -> None:
    early = table({(v, s): np.arange(9.0) for v in "ab" for s in (0, 1)}, step=5)
    late = table({("a", 0): np.ones(9), ("a", 1): np.ones(9), ("b", 0): np.ones(9)}, step=10)
    finding = one(Outcomes.concatenate([early, late]))
    assert finding.n_seeds == 1
    assert "b, seed 1, has no outcome at step 10: left out." in finding.notes
    assert one(Outcomes.concatenate([early, late]), step=5).n_seeds == 2


def test_the_json_has_what_the_command_promises() -> None:
    found = one(study(0.5)).to_json()
    assert {"baseline", "variant", "metric", "difference", "interval", "p_value", "n_seeds", "verdict",
            "seeds_needed"} <= found.keys()  # fmt: skip
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_headlines_say_what_is_settled() -> None:
    assert headlines([]) == []
    (line,) = headlines([one(study(0.5))])
    assert re.fullmatch(r"b against a: better on task \(\+0\.\d+ ± 0\.\d+\)\.", line)


def test_headlines_say_what_was_seen_and_what_would_settle_it() -> None:
    seeds = one(study(0.1, n_seeds=3, seed_sd=0.2, item_sd=0.02))
    assert f"; to settle it: {seeds.seeds_needed} further seed" in headlines([seeds])[0]
    items = one(study(0.0, n_seeds=6, seed_sd=0.001, item_sd=3.0))
    assert (
        f"to settle it: about {items.items_needed:,} in place of 80 independent items, not seeds"
        in (headlines([items])[0])
    )
    alike = one(table({(v, s): [0.0] * 32 for v in "ab" for s in (0, 1)}), SHARE)
    assert headlines([alike]) == [
        "b against a: cannot tell on task (0 ± 11 points; to settle it: more items, not seeds)."
    ]
    assert "Every item came out alike on both sides" in alike.sentence


def test_an_unknown_variant_is_refused_with_the_closest_name() -> None:
    with pytest.raises(InvalidInput, match="Did you mean 'gpt2'"):
        compare(table({("gpt2", 0): [1.0]}), [Against("gpt2", "gtp2")], measures=[SCORE])


def test_a_variant_against_itself_and_levels_outside_0_to_1_are_refused() -> None:
    with pytest.raises(InvalidInput, match="against itself"):
        compare(table({("a", 0): [1.0]}), [Against("a", "a")], measures=[SCORE])
    with pytest.raises(InvalidInput, match="alpha"):
        one(study(0.1), alpha=1.5)


def test_a_pair_without_a_common_task_is_refused() -> None:
    other = Measure(task="other", metric="score", higher_is_better=True)
    with pytest.raises(InvalidInput, match="no task that both"):
        one(study(0.1), other)


def test_values_that_are_not_numbers_are_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match=r"b, seed 4, step 10, task task, item i1.*found nan"):
        table({("b", 4): [0.0, math.nan]})
    with pytest.raises(InvalidInput, match="weight"):
        table({("b", 4): [0.0, 1.0]}, weight=[1.0, -1.0])


def test_an_item_twice_or_in_two_clusters_is_refused() -> None:
    with pytest.raises(InvalidInput, match="item x 2 times"):
        one(table({("a", 0): [1.0, 2.0], ("b", 0): [1.0, 2.0]}, item_id=["x", "x"], cluster=["x", "x"]))
    moved = [table({("a", 0): [1.0]}, cluster=["p"]), table({("b", 0): [1.0]}, cluster=["q"])]
    with pytest.raises(InvalidInput, match="one cluster for each item"):
        one(Outcomes.concatenate(moved))


def test_columns_of_unequal_length_are_refused() -> None:
    with pytest.raises(InvalidInput, match="columns of one length"):
        table({("a", 0): [1.0]}, cluster=["x", "y"])


def test_rows_and_columns_make_the_same_table() -> None:
    rows = [Outcome("a", 0, 10, "task", "score", "i0", "i0", 1.5, 1.0)]
    assert Outcomes.from_rows(rows).value.tolist() == table({("a", 0): [1.5]}).value.tolist()
    assert len(Outcomes.concatenate([])) == 0


def test_estimates_have_intervals_of_both_noises_and_say_when_not() -> None:
    both = {e.variant: e for e in estimate(study(0.5), measures=[SCORE])}
    assert both["b"].interval[0] < both["b"].value < both["b"].interval[1]
    assert both["a"].covers == "seeds and items"
    (single, _) = estimate(study(0.5, n_seeds=1), measures=[SCORE])
    assert single.covers == "items only"
    (alone,) = estimate(table({("a", 0): [1.0]}), measures=[SCORE])
    assert (alone.value, alone.interval) == (1.0, None)


@pytest.mark.parametrize(("outcome", "interval"), [(0.0, (0.0, 0.109)), (1.0, (0.891, 1.0))])
def test_a_share_of_items_that_all_came_out_alike_has_the_exact_bound(
    outcome: float, interval: tuple[float, float]
) -> None:
    found = estimate(table({("a", s): [outcome] * 32 for s in (0, 1, 2)}), measures=[SHARE])[0]
    assert (found.value, found.exact) == (outcome, True)
    assert found.interval == pytest.approx(interval, abs=5e-4)


def test_the_exact_bound_counts_independent_items_and_yields_to_noise_that_is_larger() -> None:
    clusters = [f"c{n % 4}" for n in range(32)]
    (four,) = estimate(table({("a", 0): [0.0] * 32}, cluster=clusters), measures=[SHARE])
    assert four.interval[1] == pytest.approx(1 - 0.025**0.25)
    alike = {("a", s): [0.0] * 400 for s in (0, 1)}
    noisy = {("b", s): [float(s)] * 400 for s in (0, 1)}
    found = {each.variant: each for each in estimate(table(alike | noisy), measures=[SHARE])}
    assert not found["a"].exact
    assert found["a"].interval[1] > 1 - 0.025 ** (1 / 400)
    (real,) = estimate(table({("a", s): [0.5] * 32 for s in (0, 1)}), measures=[SCORE])
    assert (real.interval, real.exact) == ((0.5, 0.5), False)


def test_the_interval_of_a_share_ends_at_0_and_1() -> None:
    rare = [1.0] + [0.0] * 31
    (found,) = estimate(table({("a", s): rare for s in (0, 1, 2)}), measures=[SHARE])
    assert found.interval[0] == 0.0
    assert 0.0 < found.value < found.interval[1] < 1.0
