"""A rule over findings, and every reason against."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from modelfactory.errors import SpecError
from modelfactory.findings.promotion import Against
from modelfactory.promote import Contamination, NotWorse, Rule, decide
from modelfactory.verdict import Finding, Measure, Outcome, Outcomes, compare

CLEAN = {task: Contamination(n_documents=10, n_contaminated=0) for task in ("a", "c")}


def rule(margin: float = 0.05, allowed: float = 0.0) -> Rule:
    wanted = (NotWorse(task="c", margin=margin),)
    return Rule(better_on=("a",), not_worse_on=wanted, max_contaminated=allowed)


def findings(gain_a: float, gain_c: float, n_seeds: int = 4) -> list[Finding]:
    """Return findings on accuracies, higher is better, with little noise."""
    rng = np.random.default_rng(0)
    rows = []
    for task, gain in (("a", gain_a), ("c", gain_c)):
        for variant, plus in (("current best", 0.0), ("candidate", gain)):
            for seed in range(n_seeds):
                rows += [
                    Outcome(
                        variant, seed, 0, task, "score", f"i{i}", f"i{i}", 0.5 + plus + rng.normal(0, 0.02)
                    )
                    for i in range(60)
                ]
    measures = [Measure(task=task, metric="score", higher_is_better=True) for task in ("a", "c")]
    return compare(Outcomes.from_rows(rows), [Against()], measures=measures)


def reasons(found: list[Finding], contamination: Any = CLEAN, asked: Rule | None = None) -> list[str]:
    return list(decide(asked or rule(), found, contamination, is_first=False).reasons)


def test_better_on_one_and_as_good_on_the_other_is_enough() -> None:
    assert reasons(findings(0.1, 0.0)) == []


def test_each_reason_is_told() -> None:
    found = reasons(findings(0.0, -0.2), {"a": Contamination(n_documents=10, n_contaminated=3)})
    assert [reason.split(":")[0] for reason in found] == ["a", "c", "a", "c"]
    assert "wanted better" in found[0]
    assert "corrected interval" in found[1]
    assert "3 of 10 documents" in found[2]
    assert "not known" in found[3]


def test_a_smaller_margin_than_the_noise_is_not_shown() -> None:
    same = findings(0.1, 0.0)
    assert reasons(same, asked=rule(margin=0.05)) == []
    assert reasons(same, asked=rule(margin=1e-6))


def test_one_seed_proves_nothing() -> None:
    found = reasons(findings(0.1, 0.0, n_seeds=1))
    assert "cannot tell" in found[0]
    assert "seed noise is not known" in found[1]


def test_a_share_of_contaminated_documents_may_be_allowed() -> None:
    some = {task: Contamination(n_documents=10, n_contaminated=1) for task in ("a", "c")}
    assert reasons(findings(0.1, 0.0), some, rule(allowed=0.1)) == []
    assert len(reasons(findings(0.1, 0.0), some, rule(allowed=0.09))) == 2


def test_a_first_promotion_compares_nothing_but_still_asks() -> None:
    assert decide(rule(), [], CLEAN, is_first=True).is_met
    assert not decide(rule(), [], {}, is_first=True).is_met
    assert not decide(rule(), [], CLEAN, is_first=True, missing=["a: not evaluated"]).is_met
    assert len(decide(rule(), [], CLEAN, is_first=False).reasons) == 2


@pytest.mark.parametrize("margin", [0.0, -0.1, float("nan"), float("inf")])
def test_a_margin_is_above_zero(margin: float) -> None:
    with pytest.raises(SpecError, match="margin"):
        NotWorse(task="c", margin=margin)


def test_a_share_is_from_0_to_1() -> None:
    with pytest.raises(SpecError, match="max_contaminated"):
        rule(allowed=1.5)
