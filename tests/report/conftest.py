from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from modelfactory.report import ReportData, write_report
from tests.report.sample import sample_report

if TYPE_CHECKING:
    from collections.abc import Iterator

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def data() -> ReportData:
    return sample_report()


@pytest.fixture(scope="session")
def page_file(data: ReportData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(data, path)
    return path


@pytest.fixture(scope="session")
def browser() -> Iterator[object]:
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is missing: the page cannot be looked at (apt-get install chromium)")
    playwright = pytest.importorskip("playwright.sync_api", reason="the extra `pages` is not installed")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        yield chromium
        chromium.close()
