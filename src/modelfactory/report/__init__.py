"""Reports: tables, the verdict on a terminal, and one self-contained HTML file."""

from modelfactory.report.data import (
    Cost,
    DatasetDrops,
    Drop,
    EvaluationCurve,
    Fact,
    LossCurve,
    PlanNode,
    ReportData,
    Sample,
    SpecChange,
    SpecText,
    Variant,
)
from modelfactory.report.page import render_report, write_report
from modelfactory.report.tables import Table, findings_table, to_markdown, variants_table
from modelfactory.report.terminal import print_verdict, verdict_renderable

__all__ = [
    "Cost",
    "DatasetDrops",
    "Drop",
    "EvaluationCurve",
    "Fact",
    "LossCurve",
    "PlanNode",
    "ReportData",
    "Sample",
    "SpecChange",
    "SpecText",
    "Table",
    "Variant",
    "findings_table",
    "print_verdict",
    "render_report",
    "to_markdown",
    "variants_table",
    "verdict_renderable",
    "write_report",
]
