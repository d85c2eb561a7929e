"""The report's tables as rows of text, for Markdown, terminals and pages alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from modelfactory.report import numbers
from modelfactory.report.numbers import NONE
from modelfactory.verdict.words import difference_text, interval_text, margin_text, p_text, value_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from modelfactory.report.data import ReportData, Variant
    from modelfactory.verdict.estimate import Estimate
    from modelfactory.verdict.finding import Finding
    from modelfactory.verdict.measure import Measure


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of text below a header."""

    header: tuple[str, ...]
    """Names of the columns."""
    rows: tuple[tuple[str, ...], ...]
    """One text per column."""
    numeric: tuple[bool, ...]
    """Columns that are aligned right."""


def findings_table(findings: Sequence[Finding]) -> Table:
    """Return one row per finding."""
    return Table(
        header=(
            "variant", "against", "task", "verdict", "difference", "95 % interval", "p (corrected)", "seeds",
            "items", "seeds needed",
        ),
        rows=tuple(_finding_row(finding) for finding in findings),
        numeric=(False, False, False, False, True, True, True, True, True, True),
    )  # fmt: skip


def _finding_row(finding: Finding) -> tuple[str, ...]:
    return (
        finding.variant,
        finding.baseline,
        finding.measure.task,
        verdict_text(finding),
        difference_text(finding.difference, finding.measure, half_width(finding)),
        finding_interval(finding),
        NONE
        if finding.p_corrected is None
        else p_text(finding.p_corrected).removeprefix("p ").removeprefix("= "),
        str(finding.n_seeds),
        f"{finding.n_items:,}",
        seeds_needed(finding),
    )


def verdict_text(finding: Finding) -> str:
    """Return the verdict with the margin in its unit."""
    if finding.conclusion != "no difference":
        return finding.conclusion
    return f"no difference larger than {margin_text(finding.measure)}"


def half_width(finding: Finding) -> float | None:
    """Return half the width of the interval."""
    return None if finding.interval is None else (finding.interval[1] - finding.interval[0]) / 2


def finding_interval(finding: Finding) -> str:
    """Return the interval, marked where it covers less than a verdict needs."""
    if finding.interval is None:
        return NONE
    only = " (items only)" if finding.covers == "items only" else ""
    return interval_text(finding.interval, finding.measure, sign=True) + only


def seeds_needed(finding: Finding) -> str:
    """Return the further seeds to settle it, in words."""
    if finding.conclusion != "cannot tell":
        return NONE
    if finding.seeds_needed is not None:
        return f"{finding.seeds_needed:,} more"
    # Seeds are the wrong thing to buy: the noise left is that of the items.
    items = "more items" if finding.items_needed is None else f"{finding.items_needed:,} items in all"
    return f"{items}, not seeds"


def variants_table(data: ReportData) -> Table:
    """Return one row per variant, one column per measure."""
    measures = tuple(dict.fromkeys(estimate.measure for estimate in data.estimates))
    found = {(estimate.variant, estimate.measure): estimate for estimate in data.estimates}
    rows = (
        (
            variant.name,
            parameters_text(variant),
            numbers.count(variant.n_tokens),
            numbers.flops(variant.flops),
            str(len(variant.seeds)),
            *(estimate_text(found.get((variant.name, measure))) for measure in measures),
        )
        for variant in data.variants
    )
    return Table(
        header=(
            "variant",
            "parameters",
            "tokens",
            "training",
            "seeds",
            *(measure_header(m) for m in measures),
        ),
        rows=tuple(rows),
        numeric=(False, True, True, True, True, *(True for _ in measures)),
    )


def parameters_text(variant: Variant) -> str:
    """Return 13.8 million, or 13.8 million (65,536 trained)."""
    trained = variant.n_trainable
    more = "" if trained in {None, variant.n_parameters} else f" ({numbers.count(trained or 0)} trained)"
    return numbers.count(variant.n_parameters) + more


def measure_header(measure: Measure) -> str:
    """Return the label of a measure with the direction that is better."""
    return f"{measure.label} {'↑' if measure.higher_is_better else '↓'}"


def estimate_text(estimate: Estimate | None) -> str:
    """Return a score with its interval."""
    if estimate is None:
        return NONE
    if estimate.interval is None:
        return value_text(estimate.value, estimate.measure)
    half = (estimate.interval[1] - estimate.interval[0]) / 2
    only = "; items only" if estimate.covers == "items only" else ""
    exact = "; exact bound" if estimate.exact else ""
    interval = interval_text(estimate.interval, estimate.measure)
    return f"{value_text(estimate.value, estimate.measure, half)} ({interval}{only}{exact})"


def chance_levels(data: ReportData) -> dict[Measure, float]:
    """Return what guessing would score on each measure that has such a level."""
    return {curve.measure: curve.chance for curve in data.evaluations if curve.chance is not None}


def chance_text(data: ReportData) -> str:
    """Return the chance levels as a sentence; empty where no task has one."""
    levels = [f"{m.task} {value_text(level, m)}" for m, level in chance_levels(data).items()]
    return f"Guessing would score: {', '.join(levels)}." if levels else ""


def to_markdown(table: Table) -> str:
    """Return a table in GitHub's Markdown."""
    marks = ("---:" if numeric else "---" for numeric in table.numeric)
    lines = [_line(table.header), f"| {' | '.join(marks)} |", *(_line(row) for row in table.rows)]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_markdown_cell(cell) for cell in cells)} |"


def _markdown_cell(text: str) -> str:
    escaped = numbers.printable(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
    return " ".join(escaped.split())
