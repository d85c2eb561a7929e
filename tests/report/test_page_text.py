from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest

from modelfactory.report import ReportData, Variant, render_report, write_report
from tests.report.sample import HOSTILE, sample_report

if TYPE_CHECKING:
    from pathlib import Path

VOID = {"meta", "link", "input", "br", "hr", "img", "rect", "line", "circle", "path"}


class Outline(HTMLParser):
    """Collects what a page is made of, and finds elements that are not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.headings: list[str] = []
        self.links: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.append(tag)
        self.ids += [values["id"]] if values.get("id") else []
        self.links += [values[name] for name in ("src", "href") if values.get(name)]
        self.headings += [tag] if re.fullmatch(r"h\d", tag) else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


@pytest.fixture(scope="module")
def text(data: ReportData) -> str:
    return render_report(data)


@pytest.fixture(scope="module")
def outline(text: str) -> Outline:
    outline = Outline()
    outline.feed(text)
    return outline


def test_equal_data_gives_equal_bytes(text: str, page_file: Path) -> None:
    assert page_file.read_bytes() == render_report(sample_report()).encode()
    assert text == page_file.read_text(encoding="utf-8")


def test_it_is_below_seven_megabytes(page_file: Path) -> None:
    assert page_file.stat().st_size < 7_000_000


def test_it_is_well_formed_and_refers_to_nothing_outside(outline: Outline, text: str) -> None:
    assert outline.open == []
    assert len(outline.ids) == len(set(outline.ids))
    assert set(outline.links) == {"data:,", "#verdict"}
    assert "Content-Security-Policy" in text


def test_headings_are_in_order_and_the_verdict_comes_first(outline: Outline, text: str) -> None:
    assert outline.headings[:3] == ["h1", "h2", "h3"]
    assert outline.headings.count("h1") == 1
    assert text.index('id="verdict"') < text.index('id="differences"') < text.index('id="variants"')


def test_every_table_has_a_caption_and_every_chart_a_label(outline: Outline, text: str) -> None:
    assert outline.tags.count("table") == outline.tags.count("caption")
    assert len(re.findall(r'class="plot" id="[^"]+" role="img" aria-label="[^"]+"', text)) == 4


def test_what_users_wrote_is_shown_and_never_run(text: str) -> None:
    assert HOSTILE not in text
    assert "<script>alert(1)" not in text
    assert "&lt;/script&gt;&lt;script&gt;alert(1)" in text
    assert "\\x00" in text
    assert "\\udc80" in text
    assert "\\u202e" in text


def test_hostile_names_cannot_leave_the_chart_data(data: ReportData) -> None:
    name = "</script><b>&'\""
    variant = replace(data.variants[0], name=name)
    losses = (replace(data.losses[0], variant=name), *data.losses[1:])
    page = render_report(replace(data, variants=(variant, *data.variants[1:]), losses=losses))
    embedded = re.search(r'id="chart-data">(.*?)</script>', page, re.DOTALL).group(1)
    assert json.loads(embedded)["variants"][0]["name"] == name


def test_every_finding_is_said_in_words(text: str, data: ReportData) -> None:
    for finding in data.findings:
        assert finding.sentence.replace("<", "&lt;") in text
    assert '<details class="full">' in text


def test_the_table_of_differences_names_the_baseline_of_each(text: str, data: ReportData) -> None:
    for change in data.changes:
        assert (
            f'<td data-label="variant">{change.variant}</td><td data-label="against">{change.baseline}</td>'
            in text
        )


def test_chance_and_exact_bounds_are_explained(text: str, data: ReportData) -> None:
    assert "Guessing would score: next_line 25.0 %." in text
    assert "dotted: chance, 25 %" in text
    assert "Clopper" not in text
    exact = replace(data.estimates[-1], value=0.0, interval=(0.0, 0.1), exact=True)
    assert "Clopper" in render_report(replace(data, estimates=(*data.estimates[:-1], exact)))


def test_the_least_report_says_that_nothing_was_compared(tmp_path: Path) -> None:
    least = ReportData(
        title="t", question="q?", generated="now", findings=(), estimates=(),
        variants=(Variant(name="a", n_parameters=1, n_tokens=0, flops=0.0, seeds=()),),
    )  # fmt: skip
    write_report(least, tmp_path / "new" / "least.html")
    page = (tmp_path / "new" / "least.html").read_text(encoding="utf-8")
    assert "Nothing was compared" in page
    assert "Plotly" not in page


def test_a_spec_that_is_no_json_is_shown_as_it_is(data: ReportData) -> None:
    broken = replace(data.specs[0], json="{broken")
    assert "{broken" in render_report(replace(data, specs=(broken,)))


def test_loss_of_a_diverged_run_does_not_break_the_page(data: ReportData) -> None:
    loss = (*data.losses[0].loss[:-1], float("nan"))
    page = render_report(replace(data, losses=(replace(data.losses[0], loss=loss), *data.losses[1:])))
    assert "NaN" not in re.search(r'id="chart-data">(.*?)</script>', page, re.DOTALL).group(1)
