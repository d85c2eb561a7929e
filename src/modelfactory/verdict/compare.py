"""Compare variants: pair, test, correct, conclude."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, get_args

from modelfactory.errors import InvalidInput, closest, listed
from modelfactory.verdict.correction import Correction, adjusted
from modelfactory.verdict.finding import Conclusion, Finding
from modelfactory.verdict.grid import make_grid
from modelfactory.verdict.paired import Paired, pair_up
from modelfactory.verdict.power import Design, Need, further_seeds
from modelfactory.verdict.seeds import PooledNoise
from modelfactory.verdict.sentences import sentence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from modelfactory.verdict.measure import Measure, Pair
    from modelfactory.verdict.outcomes import Outcomes

FIRST_SEEDS = 3
"""Seeds to ask for where seed noise is unknown: the fewest that show it with any use."""


def compare(
    outcomes: Outcomes,
    comparisons: Sequence[Pair],
    *,
    measures: Sequence[Measure],
    alpha: float = 0.05,
    power: float = 0.8,
    step: int | None = None,
    correction: Correction = "holm",
) -> list[Finding]:
    """Compare each pair on each measure that both have outcomes of.

    Findings come in the order of measures, then of comparisons, and are corrected together: give all
    comparisons that will be looked at in one call.

    Args:
        outcomes: of all variants of the study, also those not compared: they tell the seed noise.
        comparisons: pairs of variants, anything with `baseline` and `variant`.
        measures: what to compare on.
        alpha: chance of any false better or worse among all findings; with "benjamini-hochberg" the expected
            share of false ones among those called better or worse.
        power: that `seeds_needed` is for.
        step: compare checkpoints of this step; by default each variant's last.
        correction: for the number of comparisons.

    Raises:
        InvalidInput: an unknown variant, two sides without a common task or item, a level outside 0..1,
            or an unknown correction.
    """
    _check(outcomes, comparisons, alpha, power)
    _check_correction(correction)
    paired: list[tuple[Pair, Measure, Paired]] = []
    for measure in measures:
        grid = make_grid(outcomes, measure, step)
        pooled = PooledNoise(grid)
        found = [(pair, pair_up(grid, pair, pooled)) for pair in comparisons]
        paired += [(pair, measure, summed) for pair, summed in found if summed is not None]
    _refuse_untested(comparisons, paired)
    return _concluded(paired, alpha, power, correction)


def _concluded(
    paired: Sequence[tuple[Pair, Measure, Paired]], alpha: float, power: float, correction: Correction
) -> list[Finding]:
    p_values = [_p_value(one) for _, _, one in paired]
    p_equivalence = [_p_equivalence(one, measure) for _, measure, one in paired]
    corrected, equivalent = _corrected(p_values, correction), _corrected(p_equivalence, correction)
    n = max(sum(p is not None for p in p_values), 1)
    findings = []
    for (pair, measure, one), p, p_holm, p_equal in zip(paired, p_values, corrected, equivalent, strict=True):
        conclusion = _conclusion(one, measure, p_holm, p_equal, alpha)
        need = _need(one, measure, conclusion, alpha / n, power)
        finding = Finding(
            baseline=pair.baseline,
            variant=pair.variant,
            measure=measure,
            baseline_value=one.baseline_value,
            variant_value=one.variant_value,
            difference=one.difference,
            interval=_interval(one, alpha),
            interval_corrected=_interval(one, alpha / n),
            covers=one.covers,
            stderr=None if one.noise is None else one.noise.stderr,
            p_value=p,
            p_corrected=p_holm,
            p_equivalence=p_equal,
            alpha=alpha,
            power=power,
            n_comparisons=n,
            n_seeds=one.n_seeds,
            n_items=one.n_items,
            n_clusters=one.n_clusters,
            conclusion=conclusion,
            seeds_needed=need.seeds,
            items_needed=need.items,
            sentence="",
            model=one.model,
            notes=one.notes,
            correction=correction,
            mcnemar=one.mcnemar,
        )
        findings.append(replace(finding, sentence=sentence(finding, need)))
    return findings


def _p_value(one: Paired) -> float | None:
    if one.spread is None or one.covers != "seeds and items":
        return None
    return one.spread.p_value(one.difference)


def _p_equivalence(one: Paired, measure: Measure) -> float | None:
    """Return the larger p-value of the two one-sided tests."""
    if one.spread is None or one.covers != "seeds and items" or measure.margin == 0:
        return None
    inside = measure.margin - abs(one.difference)
    one_sided = one.spread.p_value(inside) / 2
    return one_sided if inside > 0 else 1.0 - one_sided


def _corrected(p_values: Sequence[float | None], correction: Correction) -> list[float | None]:
    raised = iter(adjusted([p for p in p_values if p is not None], correction))
    return [None if p is None else next(raised) for p in p_values]


def _conclusion(
    one: Paired, measure: Measure, p: float | None, p_equivalence: float | None, alpha: float
) -> Conclusion:
    if p is not None and p < alpha and one.difference != 0:
        return "better" if (one.difference > 0) == measure.higher_is_better else "worse"
    if p_equivalence is not None and p_equivalence < alpha:
        return "no difference"
    return "cannot tell"


def _interval(one: Paired, alpha: float) -> tuple[float, float] | None:
    if one.spread is None:
        return None
    half = one.spread.half_width(alpha)
    return one.difference - half, one.difference + half


def _need(one: Paired, measure: Measure, conclusion: Conclusion, level: float, power: float) -> Need:
    if conclusion != "cannot tell":
        return Need(seeds=0, shows="")
    if one.covers == "nothing" and one.n_seeds:
        return Need(seeds=None, shows="")
    if one.noise is None or one.covers == "items only":
        return Need(seeds=max(FIRST_SEEDS - one.n_seeds, 1), shows="noise")
    if one.noise.variance == 0:
        return Need(seeds=None, shows="items")
    design = Design(noise=one.noise, n_seeds=one.n_seeds, alpha=level)
    need = further_seeds(design, one.difference, measure.margin, power, one.n_clusters)
    # With one seed, what items do in that seed alone counts as noise between items: seeds may well help.
    return Need(seeds=FIRST_SEEDS - 1, shows="noise") if one.n_seeds == 1 and need.seeds is None else need


def _check(outcomes: Outcomes, comparisons: Sequence[Pair], alpha: float, power: float) -> None:
    for name, level in (("alpha", alpha), ("power", power)):
        if not 0 < level < 1:
            raise InvalidInput(
                place=name,
                found=repr(level),
                wanted="a number between 0 and 1",
                remedy="Usual: alpha 0.05, power 0.8.",
            )
    known = outcomes.variants()
    for pair in comparisons:
        for side in ("baseline", "variant"):
            _check_known(side, getattr(pair, side), known)
        if pair.baseline == pair.variant:
            raise InvalidInput(
                place="comparisons",
                found=f"{pair.variant} against itself",
                wanted="two variants",
                remedy="Leave it out.",
            )


def _check_correction(correction: str) -> None:
    known = get_args(Correction)
    if correction not in known:
        raise InvalidInput(
            place="correction",
            found=repr(correction),
            wanted=" or ".join(known),
            remedy=closest(correction, known),
        )


def _check_known(side: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        raise InvalidInput(
            place=f"comparisons.{side}",
            found=name,
            wanted=f"a variant with outcomes ({listed(known, most=8) or 'there is none yet'})",
            remedy=closest(name, known),
        )


def _refuse_untested(comparisons: Sequence[Pair], paired: Sequence[tuple[Pair, Measure, Paired]]) -> None:
    tested = {(pair.baseline, pair.variant) for pair, _, _ in paired}
    for pair in comparisons:
        if (pair.baseline, pair.variant) not in tested:
            raise InvalidInput(
                place=f"comparison of {pair.variant} with {pair.baseline}",
                found="no task that both have outcomes of",
                wanted="at least one",
                remedy="Evaluate both on the same tasks, and name the task and metric in `measures`.",
            )
