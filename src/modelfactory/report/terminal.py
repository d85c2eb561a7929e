"""The verdict on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from modelfactory.report.numbers import printable
from modelfactory.report.tables import finding_interval, half_width, seeds_needed, verdict_text
from modelfactory.verdict.sentences import headlines
from modelfactory.verdict.words import difference_text, p_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from modelfactory.verdict.finding import Finding


def print_verdict(findings: Sequence[Finding], console: Console | None = None, *, question: str = "") -> None:
    """Print the question, the verdict in words, and a table of the findings.

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
    parts += [Text(""), _table(findings), Text("")]
    parts += [Padding(Text(printable(finding.sentence)), (0, 0, 0, 2)) for finding in findings]
    notes = dict.fromkeys(note for finding in findings for note in finding.notes)
    parts += [Text(f"Note: {printable(note)}", style="yellow") for note in notes]
    return Group(*parts)


def _table(findings: Sequence[Finding]) -> RichTable:
    table = RichTable(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("variant", "task", "verdict"):
        table.add_column(name, overflow="fold")
    for name in ("difference", "95 % interval", "p", "needs"):
        table.add_column(name, justify="right")
    for finding in findings:
        table.add_row(*_cells(finding))
    return table


def _cells(finding: Finding) -> tuple[Text, ...]:
    style = _style(finding)
    corrected = "–" if finding.p_corrected is None else p_text(finding.p_corrected).removeprefix("p ")
    return (
        Text(printable(finding.variant)),
        Text(printable(finding.measure.task)),
        Text(verdict_text(finding), style=style),
        Text(difference_text(finding.difference, finding.measure, half_width(finding))),
        Text(finding_interval(finding)),
        Text(corrected.removeprefix("= ")),
        Text(seeds_needed(finding)),
    )


def _style(finding: Finding) -> str:
    if finding.conclusion == "better":
        return "bold green"
    if finding.conclusion == "worse":
        return "bold red"
    return "cyan" if finding.conclusion == "no difference" else "yellow"
