"""What a workspace holds in the end, in a form in which two can be held against each other."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from typing import TYPE_CHECKING, Any

from modelfactory.data import MemoryCache
from modelfactory.findings import judge
from modelfactory.findings.report_data import report_data
from modelfactory.loading import load_study
from modelfactory.plan import pin_sources, plan_experiments
from modelfactory.store import Store
from tests.end_to_end.factory import forget

if TYPE_CHECKING:
    from modelfactory.report import ReportData
    from tests.end_to_end.factory import Line

FIGURES = ("findings", "estimates", "variants", "losses", "evaluations", "datasets", "specs", "changes")
"""Fields of a report that come from results alone; the others tell times and costs."""

ABOUT = ("manifest.json", "record.json")
"""They hold hashes of timings, and when and where a stage was made."""


def stage_bytes(line: Line) -> dict[str, bytes]:
    """Return every file of every stage, but what tells of time and place."""
    root = line.workspace / "stages"
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and "observed" not in path.parts and path.name not in ABOUT
    }


def reported(line: Line) -> ReportData:
    """Return what the report of a study says."""
    path = list(sys.path)
    with contextlib.chdir(line.folder), Store.open(line.workspace) as store:
        study = load_study(line.study)
        sources = pin_sources(study.experiments, MemoryCache())
        plan = plan_experiments(study.experiments, sources, store, jobs=2, threads=1)
        verdict = judge(study.experiments, study.comparisons, plan.roles, store)
        found = report_data(study, plan, store, verdict)
    sys.path[:] = path
    forget(line.study.stem, line.keepers.stem)
    return found


def figures(line: Line) -> dict[str, Any]:
    """Return the numbers of a report."""
    data = reported(line)
    assert {field.name for field in dataclasses.fields(data)} >= set(FIGURES)
    return {name: getattr(data, name) for name in FIGURES}
