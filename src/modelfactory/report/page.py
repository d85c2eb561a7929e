"""One self-contained HTML file: opens offline, asks nothing of any network, prints."""

from __future__ import annotations

import json
from importlib import resources
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup

from modelfactory.report import numbers
from modelfactory.report.charts import bucket_size, chart_data, styles
from modelfactory.report.forest import forests
from modelfactory.report.graph import HEIGHT, WIDTH, draw, draw_narrow
from modelfactory.report.tables import chance_text, variants_table
from modelfactory.verdict.sentences import headlines

if TYPE_CHECKING:
    from pathlib import Path

    from modelfactory.report.data import ReportData, SpecText

DASH_ARRAYS = {"solid": "none", "dash": "7 4", "dot": "2 4", "dashdot": "7 3 2 3", "longdash": "12 4"}


def write_report(data: ReportData, path: Path) -> None:
    """Write a report; equal data gives byte-identical files.

    Args:
        data: all that the report says.
        path: of the HTML file; its folder is made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render_report(data), encoding="utf-8", newline="\n")


def render_report(data: ReportData) -> str:
    """Return the report as HTML."""
    charts = chart_data(data)
    return (
        _environment()
        .get_template("report.html")
        .render(
            data=data,
            headlines=headlines(data.findings),
            pairs=_pairs(data),
            forests=forests(data.findings),
            table=variants_table(data),
            chance=chance_text(data),
            styles=styles(data),
            charts=charts["charts"],
            every=bucket_size(data),
            graphs={"wide": draw(data.nodes, data.edges), "narrow": draw_narrow(data.nodes, data.edges)},
            box_width=WIDTH,
            box_height=HEIGHT,
            dashes=DASH_ARRAYS,
            n=numbers,
            specs=[(spec.name, _indented(spec)) for spec in data.specs],
            models=list(dict.fromkeys(finding.model for finding in data.findings)),
            notes=list(dict.fromkeys(note for finding in data.findings for note in finding.notes)),
            chart_json=_script_json(charts),
            style=Markup(_packaged("report.css")),  # noqa: S704 - our own file
            script=Markup(_packaged("report.js")),  # noqa: S704 - our own file
            plotly=Markup(_plotly() if charts["charts"] else ""),  # noqa: S704 - the library's own file
        )
    )


def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FunctionLoader(_packaged),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_finalized,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _finalized(value: Any) -> Any:
    return numbers.printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _packaged(name: str) -> str:
    return resources.files("modelfactory.report").joinpath(name).read_text(encoding="utf-8")


def _plotly() -> str:
    # Read as a file: importing plotly takes longer than all the rest of a report.
    folder = resources.files("plotly") / "package_data"
    script = folder.joinpath("plotly.min.js").read_text(encoding="utf-8")
    # The text of an inline script ends at the first such tag, wherever it stands.
    assert "</script" not in script.lower()
    return script


def _script_json(value: Any) -> Markup:
    """Return JSON that cannot end the script element it stands in, whatever names users gave."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))  # noqa: S704


def _indented(spec: SpecText) -> str:
    try:
        return json.dumps(json.loads(spec.json), indent=2, ensure_ascii=False)
    except ValueError:
        return spec.json


def _pairs(data: ReportData) -> list[dict[str, Any]]:
    pairs = dict.fromkeys((finding.baseline, finding.variant) for finding in data.findings)
    return [
        {
            "baseline": baseline,
            "variant": variant,
            "findings": [f for f in data.findings if (f.baseline, f.variant) == (baseline, variant)],
        }
        for baseline, variant in pairs
    ]
