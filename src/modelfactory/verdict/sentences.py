"""The verdict in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelfactory.verdict.words import (
    count_text,
    difference_text,
    difference_unit,
    interval_text,
    margin_text,
    p_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from modelfactory.verdict.finding import Conclusion, Finding
    from modelfactory.verdict.power import Need

FEW_CLUSTERS = 20
SOURCE = "from the replicates of other variants, assuming that all share it"


def sentence(finding: Finding, need: Need) -> str:
    """Return the whole verdict on one comparison, in words."""
    parts = [f"{_claim(finding)}: {_evidence(finding)}.", *_reservations(finding)]
    if finding.conclusion == "cannot tell":
        parts.append(_what_it_takes(finding, need))
    return " ".join(part for part in parts if part)


def _claim(finding: Finding) -> str:
    on = f"on {finding.measure.label}"
    match finding.conclusion:
        case "better" | "worse" as word:
            return f"{finding.variant} is {word} than {finding.baseline} {on}"
        case "no difference":
            margin = margin_text(finding.measure)
            return f"{finding.variant} and {finding.baseline} show no difference larger than {margin} {on}"
        case _:
            return f"Cannot tell whether {finding.variant} or {finding.baseline} is better {on}"


def _evidence(finding: Finding) -> str:
    half = None if finding.interval is None else (finding.interval[1] - finding.interval[0]) / 2
    seen = [f"difference {difference_text(finding.difference, finding.measure, half)}"]
    if finding.interval is not None:
        seen.append(f"({_interval(finding)}{_p(finding)})")
    items = count_text(finding.n_items, "item")
    if finding.n_clusters != finding.n_items:
        items += f" in {count_text(finding.n_clusters, 'cluster')}"
    return f"{' '.join(seen)}, {count_text(finding.n_seeds, 'paired seed')}, {items}"


def _interval(finding: Finding) -> str:
    assert finding.interval is not None
    noise = " of item noise only" if finding.covers == "items only" else ""
    ends = interval_text(finding.interval, finding.measure, sign=True)
    return f"{100 * (1 - finding.alpha):g} % interval{noise} {ends}"


def _p(finding: Finding) -> str:
    if finding.conclusion == "no difference" and finding.p_equivalence is not None:
        return f"; of a larger difference {p_text(finding.p_equivalence)}{_after(finding)}"
    if finding.p_corrected is None:
        return ""
    return f"; {p_text(finding.p_corrected)}{_after(finding)}"


def _after(finding: Finding) -> str:
    if finding.n_comparisons == 1:
        return ""
    rate = " by false discovery rate" if finding.correction == "benjamini-hochberg" else ""
    return f", corrected for {finding.n_comparisons} comparisons{rate}"


def _reservations(finding: Finding) -> list[str]:
    said = []
    if finding.covers == "items only":
        said.append(
            f"{_single(finding)} and no variant of this task was trained twice, so the noise between seeds "
            "is unknown: a difference on a single seed is never called a win."
        )
    elif finding.n_seeds == 1 and finding.covers == "seeds and items":
        said.append(f"Only one seed is paired; seed noise is taken {SOURCE}.")
    said += _about_p(finding)
    said += _about_items(finding)
    if 1 < finding.n_clusters < FEW_CLUSTERS:
        said.append(f"Only {finding.n_clusters} independent items: the noise between items is poorly known.")
    return said


def _single(finding: Finding) -> str:
    return "Only one seed is paired" if finding.n_seeds == 1 else "Few seeds are paired"


def _about_items(finding: Finding) -> list[str]:
    found = finding.mcnemar
    if found is None:
        return []
    differ = count_text(found.n_differ, "item")
    sides = f"{found.only_variant:,} were right with {finding.variant} alone and {found.only_baseline:,}"
    test = f"exact McNemar test, {p_text(found.p_value)}: noise of items only, nothing about another seed"
    return [f"Of {differ} that came out differently, {sides} with {finding.baseline} alone ({test})."]


def _about_p(finding: Finding) -> list[str]:
    p, corrected = finding.p_value, finding.p_corrected
    if p is None or corrected is None:
        return []
    settled = finding.conclusion in {"better", "worse"}
    if p < finding.alpha <= corrected:
        return ["Alone it would pass, but among so many comparisons chance may explain it."]
    if settled and finding.p_equivalence is not None and finding.p_equivalence < finding.alpha:
        return [f"The difference is smaller than the {margin_text(finding.measure)} that matters."]
    return []


def _what_it_takes(finding: Finding, need: Need) -> str:
    power = f"with {100 * finding.power:g} % power"
    if finding.covers == "nothing" and finding.n_seeds:
        return "The task has one independent item: it takes more items, further seeds would not settle it."
    if need.shows == "items":
        return (
            "Every item came out alike on both sides: it takes more items, or a task that tells these models "
            "apart; further seeds would not settle it."
        )
    if need.shows == "noise" and need.seeds is not None:
        seeds = count_text(need.seeds, "further seed")
        return f"At least {seeds} of both would show how large the noise between seeds is."
    if need.seeds is None:
        items = f"about {need.items:,} independent items" if need.items else "more items"
        return (
            f"What is left is mostly noise between items: it takes {items}, "
            "further seeds alone would not settle it."
        )
    seeds = f"About {count_text(need.seeds, 'further seed')} of both"
    if need.shows == "equivalence":
        return f"{seeds} would show {power} that it is below {margin_text(finding.measure)}."
    return f"{seeds} would show a difference of this size {power}."


def headlines(findings: Sequence[Finding]) -> list[str]:
    """Return one short line per pair of variants: what is settled and what is not."""
    pairs = dict.fromkeys((finding.baseline, finding.variant) for finding in findings)
    return [_headline(pair, [f for f in findings if (f.baseline, f.variant) == pair]) for pair in pairs]


def _headline(pair: tuple[str, str], findings: Sequence[Finding]) -> str:
    order: tuple[Conclusion, ...] = ("better", "worse", "no difference", "cannot tell")
    said = (_grouped(word, [f for f in findings if f.conclusion == word]) for word in order)
    return f"{pair[1]} against {pair[0]}: {'; '.join(text for text in said if text)}."


def _grouped(word: Conclusion, findings: Sequence[Finding]) -> str:
    if not findings:
        return ""
    if word == "no difference":
        named = (
            f"{finding.measure.task} (none larger than {margin_text(finding.measure)})"
            for finding in findings
        )
        return f"no difference on {_listed(named)}"
    if word == "cannot tell":
        unsettled = (f"{finding.measure.task} ({_seen(finding)}; {_helps(finding)})" for finding in findings)
        return f"cannot tell on {_listed(unsettled)}"
    return f"{word} on {_listed(f'{f.measure.task} ({_seen(f)})' for f in findings)}"


def _seen(finding: Finding) -> str:
    """Return the difference with half the width of its interval."""
    if finding.interval is None:
        return f"{difference_text(finding.difference, finding.measure)} seen"
    half = (finding.interval[1] - finding.interval[0]) / 2
    seen = difference_text(finding.difference, finding.measure, half).removesuffix(
        difference_unit(finding.measure)
    )
    around = difference_text(half, finding.measure, half, sign=False)
    return f"{seen.rstrip()} \N{PLUS-MINUS SIGN} {around}"


def _helps(finding: Finding) -> str:
    """Return what would settle a comparison that is open."""
    if finding.seeds_needed is not None:
        return f"to settle it: {count_text(finding.seeds_needed, 'further seed')}"
    if finding.items_needed is not None:
        have = count_text(finding.n_clusters, "independent item")
        return f"to settle it: about {finding.items_needed:,} in place of {have}, not seeds"
    return "to settle it: more items, not seeds"


def _listed(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
