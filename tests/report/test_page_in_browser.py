"""The page as a reader sees it, in headless Chromium."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from modelfactory.report import write_report

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from modelfactory.report import ReportData

OVERFLOWING = """() => [...document.querySelectorAll("main *")].filter((element) => {
  if (element.closest(".scroll, pre, svg, .plot")) return false;
  const box = element.getBoundingClientRect();
  return box.width > 0 && (box.right > innerWidth + 1 || box.left < -1);
}).map((element) => element.outerHTML.slice(0, 120))"""
LINES = """() => [...document.querySelectorAll("#loss .scatterlayer .trace")].length"""
X_TITLE = "() => document.querySelector('#loss .xtitle').textContent"


@pytest.fixture
def opened(browser: Any, page_file: Path) -> Iterator[Any]:
    pages = []

    def at(width: int, scheme: str = "light") -> Any:
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.seen, page.faults = [], []
        page.on("request", lambda request: page.seen.append(request.url))
        page.on("pageerror", lambda error: page.faults.append(str(error)))
        page.on("console", lambda said: page.faults.append(said.text))
        page.goto(page_file.as_uri())
        page.wait_for_selector("html[data-drawn=true]")
        pages.append(page)
        return page

    yield at
    for page in pages:
        page.close()


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (760, "light"), (400, "dark")])
def test_it_opens_offline_without_faults_and_fits_the_width(opened: Any, width: int, scheme: str) -> None:
    page = opened(width, scheme)
    assert page.faults == []
    assert len(page.seen) == 1
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(OVERFLOWING) == []


def test_the_verdict_is_on_the_first_screen(opened: Any) -> None:
    page = opened(1400)
    assert page.locator("#verdict .pair h3").first.bounding_box()["y"] < 500


def test_curves_switch_axis_and_hide_seeds_and_variants(opened: Any) -> None:
    page = opened(1000)
    assert page.evaluate(X_TITLE) == "training tokens"
    assert page.evaluate(LINES) == 16
    page.click("[data-x=flops]")
    assert page.evaluate(X_TITLE) == "training FLOPs"
    page.uncheck("[data-option=seeds]")
    assert page.evaluate(LINES) == 4
    page.click("[data-variant='0']")
    assert page.evaluate(LINES) == 3
    for option in ("logx", "logy", "tail"):
        page.check(f"[data-option={option}]")
    assert page.evaluate("document.getElementById('loss')._fullLayout.yaxis.type") == "log"
    assert page.faults == []


WHOLE = "#variants td, #plan .graph, #plan .node text, #repeat td"
CUT_OFF = """(whole) => [...document.querySelectorAll(whole)].filter((element) => {
  const box = element.getBoundingClientRect();
  return box.width > 0 && box.right > innerWidth;
}).map((element) => element.outerHTML.slice(0, 120))"""
CHANCE = """() => [...document.querySelectorAll(".plot")].filter((plot) =>
  plot.data.some((trace) => trace.name === "chance")).map((plot) => plot.data[0].y)"""


@pytest.mark.parametrize("width", [1400, 400])
def test_results_differences_and_plan_are_whole(opened: Any, width: int) -> None:
    page = opened(width)
    assert page.evaluate(CUT_OFF, WHOLE) == []
    shown = page.locator("#plan .graph").evaluate_all("(all) => all.filter((g) => g.clientWidth).length")
    assert shown == 1
    letters = page.locator("#plan .node text").evaluate_all(
        "(all) => all.map((text) => text.getBoundingClientRect().height).filter((height) => height)"
    )
    assert min(letters) >= 11


def test_a_long_name_leaves_room_for_its_fact(opened: Any) -> None:
    page = opened(400)
    widths = page.locator("#repeat dd").evaluate_all("(all) => all.map((value) => value.clientWidth)")
    assert min(widths) >= 150


def test_on_a_telephone_each_result_stands_beside_its_name(opened: Any) -> None:
    page = opened(400)
    label = "(cell) => getComputedStyle(cell, '::before').content"
    labels = page.locator("#variants tr").nth(1).locator("td").evaluate_all(f"(all) => all.map({label})")
    assert labels[-2:] == ['"next_line (accuracy) ↑"', '"complete_function (parses) ↑"']


def test_the_chance_level_is_a_line_in_the_chart_that_has_one(opened: Any) -> None:
    page = opened(1000)
    assert page.evaluate(CHANCE) == [[25, 25]]
    page.check("[data-option=tail]")
    page.click("[data-x=flops]")
    assert page.evaluate(CHANCE) == [[25, 25]]
    assert page.faults == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_prints_on_white_within_the_paper(opened: Any, scheme: str) -> None:
    page = opened(1400, scheme)
    assert page.pdf(format="A4").startswith(b"%PDF")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print", color_scheme=scheme)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("document.querySelectorAll('details.full:not([open])').length") == 0
    widths = page.evaluate("[...document.querySelectorAll('.plot .main-svg')].map((s) => s.clientWidth)")
    assert max(widths) <= 680
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("document.documentElement.classList.contains('printing')") is False
    assert page.evaluate("document.querySelectorAll('details.full[open]').length") == 0


def test_one_checkpoint_has_one_tick(data: ReportData, browser: Any, tmp_path: Path) -> None:
    last = [
        replace(curve, steps=curve.steps[-1:], n_tokens=curve.n_tokens[-1:], flops=curve.flops[-1:],
                values=curve.values[-1:])
        for curve in data.evaluations
    ]  # fmt: skip
    file = tmp_path / "one.html"
    write_report(replace(data, evaluations=tuple(last)), file)
    page = browser.new_page()
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-drawn=true]")
    ticks = page.evaluate(
        """() => [...document.querySelectorAll(".plot")].slice(1).map(
          (plot) => [...plot.querySelectorAll(".xtick text")].map((tick) => tick.textContent))"""
    )
    page.close()
    assert ticks
    assert all(len(found) == 1 for found in ticks)
