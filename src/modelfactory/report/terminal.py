"""The verdict on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from modelfactory.report.numbers import NONE, printable
from modelfactory.report.tables import finding_interval, half_width, verdict_text
from modelfactory.verdict.sentences import headlines
from modelfactory.verdict.words import MINUS, count_text, difference_text, difference_unit, p_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from modelfactory.verdict.finding import Finding


def print_verdict(findings: Sequence[Finding], console: Console | None = None, *, question: str = "") -> None:
    """Print the question, the verdict in words, and a table of the findings.

    What is settled is said in full; what is not has its row, and its sentence in the report.

    Args:
        findings: of `compare`.
        console: to print on; standard output by default.
        question: the docstring of the experiment file.
    """
    (console or Console()).print(verdict_renderable(findings, question=question))


def verdict_renderable(findings: Sequence[Finding], *, question: str = "") -> RenderableType:
    """Return what `print_verdict` prints, for a caller with its own layout."""
    parts: list[RenderableType] = []
    if question:
        parts += [Text(printable(question.strip()), style="bold"), Text("")]
    parts += [Text(printable(line), style="bold") for line in headlines(findings)]
    if not findings:
        return Group(*parts, Text("Nothing was compared yet."))
    for measure in dict.fromkeys(finding.measure for finding in findings):
        unit = f", {difference_unit(measure)}" if measure.unit else ""
        own = [finding for finding in findings if finding.measure == measure]
        parts += [Text(""), Text(printable(f"{measure.label}{unit}"), style="underline"), _table(own)]
    parts += [Text(""), Text(_caption(findings), style="dim")]
    settled = [finding for finding in findings if finding.conclusion != "cannot tell"]
    parts += [Padding(Text(printable(finding.sentence)), (0, 0, 0, 2)) for finding in settled]
    if open_ones := len(findings) - len(settled):
        parts.append(Text(f"{count_text(open_ones, 'undecided finding')} in full: factory report"))
    notes = dict.fromkeys(note for finding in findings for note in finding.notes)
    parts += [Text(f"Note: {printable(note)}", style="yellow") for note in notes]
    return Group(*parts)


def _caption(findings: Sequence[Finding]) -> str:
    if all(finding.p_corrected is None for finding in findings):
        return "The interval is uncorrected; without noise between seeds there is no p."
    comparisons = count_text(findings[0].n_comparisons, "comparison")
    return f"The interval is uncorrected; p is corrected for {comparisons}."


def _table(findings: Sequence[Finding]) -> RichTable:
    table = RichTable(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in (f"variant {MINUS} baseline", "verdict"):
        table.add_column(name, overflow="fold", min_width=17)
    for name in ("difference", f"{100 * (1 - findings[0].alpha):g} % interval", "p (Holm)"):
        table.add_column(name, justify="right", no_wrap=True)
    for finding in findings:
        table.add_row(*_cells(finding))
    return table


def _cells(finding: Finding) -> tuple[Text, ...]:
    corrected = NONE if finding.p_corrected is None else p_text(finding.p_corrected).removeprefix("p ")
    difference = difference_text(finding.difference, finding.measure, half_width(finding))
    return (
        Text(printable(f"{finding.variant} {MINUS} {finding.baseline}")),
        Text(verdict_text(finding), style=_style(finding)),
        Text(difference.removesuffix(difference_unit(finding.measure)).rstrip()),
        Text(finding_interval(finding)),
        Text(corrected.removeprefix("= ")),
    )


def _style(finding: Finding) -> str:
    if finding.conclusion == "better":
        return "bold green"
    if finding.conclusion == "worse":
        return "bold red"
    return "cyan" if finding.conclusion == "no difference" else "yellow"
