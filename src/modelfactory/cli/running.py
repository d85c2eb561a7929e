"""`factory run`, `demo`, `compare` and `report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from modelfactory.cli.answer import Answer
from modelfactory.cli.compiling import known_peaks, wants_compile
from modelfactory.cli.pages import check_place, place_named
from modelfactory.cli.planning import totals_lines
from modelfactory.cli.setting import Setting, planned, say
from modelfactory.engine import LocalEngine
from modelfactory.errors import CommandError, WorkspaceError
from modelfactory.findings import Verdict, judge
from modelfactory.findings.problems import Stale, stale_of
from modelfactory.findings.report_data import report_data
from modelfactory.live import Live
from modelfactory.plan import note_speed, with_added
from modelfactory.report import print_verdict, write_report
from modelfactory.run import RunOptions, StageDone, carry_out
from modelfactory.spec import canonical_json

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from rich.console import Console

    from modelfactory.report import ReportData
    from modelfactory.run import Event, Outcome
    from modelfactory.store import Store

INTERRUPTED = 130


def run(arguments: argparse.Namespace) -> Answer:
    """Carry out a file, then give the verdict."""
    return _run(arguments, arguments.file, arguments.report)


def demo(arguments: argparse.Namespace) -> Answer:
    """Run the first question, with its report."""
    return _run(arguments, _first_question(), arguments.report or Path("report.html"))


def _first_question() -> Path:
    """Return the demo's experiment file, which is part of the checkout."""
    import modelfactory

    checkout = Path(modelfactory.__file__).resolve().parents[2]
    file = checkout / "experiments" / "first_question.py"
    if not file.exists():
        raise CommandError(
            place="demo",
            found=f"no {file}",
            wanted="the experiments folder beside the package",
            remedy="Install from a checkout with `pip install -e .`, or run an experiment file of your own.",
        )
    return file


def _run(arguments: argparse.Namespace, file: Path, report_to: Path | None) -> Answer:
    if report_to is not None:
        check_place(report_to, "report")
    with planned(arguments, create=True, file=file) as setting:
        store = _opened(setting)
        for line in totals_lines(setting.plan):
            say(line)
        outcome = _carried_out(arguments, setting, store)
        verdict = _verdict(setting, store) if outcome.complete else None
        keeps = arguments.on_stale == "keep"
        stale = stale_of(setting.plan, outcome.ran) if keeps and verdict is not None else None
        written = None
        if report_to is not None and verdict is not None:
            found = report_data(setting.study, setting.plan, store, verdict, stale)
            written = _written(found, report_to)
        n_stages = len(setting.plan.stages)
    data = outcome.counts() | {"stopped": outcome.stopped, "report": str(written) if written else None}
    code = INTERRUPTED if outcome.stopped else outcome.code

    def text(console: Console) -> None:
        print_failures(console, outcome)
        if verdict is not None:
            show_verdict(console, verdict, stale)
        _print_end(console, outcome, written, n_stages)

    return Answer(data=data, text=text, code=code)


def _written(data: ReportData, path: Path) -> Path:
    """Write the report; return where it is."""
    with place_named(path, "report"):
        write_report(data, path)
    return path.absolute()


def _opened(setting: Setting) -> Store:
    if setting.store is None:
        raise WorkspaceError(place="workspace", found="none", wanted="one", remedy="Give --workspace.")
    return setting.store


def _carried_out(arguments: argparse.Namespace, setting: Setting, store: Store) -> Outcome:
    for experiment in setting.plan.experiments:
        stages = with_added(store, experiment.name, setting.plan.roles[experiment.name])
        store.name_experiment(experiment.name, str(setting.study.file), canonical_json(experiment), stages)
    threads = max(arguments.threads // arguments.jobs, 1)
    is_compiled = wants_compile(arguments.compile, setting.plan, store)
    options = RunOptions(
        retries=arguments.retries,
        on_stale=arguments.on_stale,
        micro_batch_tokens=arguments.micro_batch_tokens,
        compile=is_compiled,
        device=arguments.device,
        parallel=setting.way.parallel,
        checkpointing=arguments.checkpointing,
        peak_flops_per_s=known_peaks(store, threads) if arguments.device == "cpu" else {},
        sys_path=(str(setting.study.folder),),
    )
    with (
        LocalEngine(jobs=arguments.jobs, threads_total=threads * arguments.jobs) as engine,
        live(arguments) as shown,
    ):
        return carry_out(setting.plan, store, engine, options, listener(shown, store, threads))


def live(arguments: argparse.Namespace) -> Live:
    """Return the display; it names failures only where the answer does not name them for people."""
    return Live(failures=arguments.json)


def listener(shown: Live, store: Store, threads: int) -> Callable[[Event], None]:
    """Show what happens, and keep how fast stages were for the next plan."""

    def hear(event: Event) -> None:
        shown(event)
        if isinstance(event, StageDone):
            note_speed(store, event.stage, seconds=event.seconds, threads=threads)

    return hear


def _verdict(setting: Setting, store: Store, step: int | None = None) -> Verdict:
    study = setting.study
    return judge(study.experiments, study.comparisons, setting.plan.roles, store, step=step)


def print_failures(console: Console, outcome: Outcome) -> None:
    for failure in outcome.failed:
        console.print(f"failed {failure.label}: {failure.error}", style="bold", markup=False)
    if outcome.failed:
        console.print("factory status shows the log")


def _print_end(console: Console, outcome: Outcome, written: Path | None, n_stages: int) -> None:
    counts = outcome.counts()
    console.print(
        f"{counts['ran']} ran, {counts['stored']} reused, {counts['failed']} failed, "
        f"{counts['blocked']} blocked in {counts['seconds']:.1f} s"
    )
    if outcome.stopped:
        settled = sum(map(len, (outcome.ran, outcome.stored, outcome.failed, outcome.blocked)))
        console.print(f"interrupted; {n_stages - settled} stages left; run the same command to go on")
    if written is not None:
        console.print(f"report: {written}", markup=False)


def show_verdict(console: Console, verdict: Verdict, stale: Stale | None = None) -> None:
    """Print whether they are stale, findings, and what they lack."""
    if stale is not None and stale.n:
        console.print(stale.sentence(), style="bold", markup=False)
    if verdict.findings:
        print_verdict(verdict.findings, console)
    for line in verdict.missing[:10]:
        console.print(f"not evaluated yet: {line}")
    if len(verdict.missing) > 10:
        console.print(f"... and {len(verdict.missing) - 10} more")


def compare(arguments: argparse.Namespace) -> Answer:
    """Give the verdict on what is stored."""
    with planned(arguments, create=False, to_run=False) as setting:
        verdict = _verdict(setting, _stored(setting, arguments.workspace), arguments.step)
        stale = stale_of(setting.plan)
    comparisons = [finding.to_json() for finding in verdict.findings]
    return Answer(
        data={
            "comparisons": comparisons,
            "missing": list(verdict.missing),
            "stale": stale.n,
            "stale_reasons": list(stale.reasons),
        },
        text=lambda console: show_verdict(console, verdict, stale),
    )


def report(arguments: argparse.Namespace) -> Answer:
    """Write the report on what is stored."""
    with planned(arguments, create=False, to_run=False) as setting:
        store = _stored(setting, arguments.workspace)
        stale = stale_of(setting.plan)
        data = report_data(setting.study, setting.plan, store, _verdict(setting, store), stale)
        written = _written(data, arguments.output)

    def text(console: Console) -> None:
        if stale.n:
            console.print(stale.sentence(), style="bold", markup=False)
        console.print(f"report: {written}", markup=False)

    return Answer(data={"report": str(written)}, text=text)


def _stored(setting: Setting, workspace: Path) -> Store:
    if setting.store is None:
        raise WorkspaceError(
            place=str(workspace),
            found="no workspace",
            wanted="stored results",
            remedy=f"Run `factory run {setting.study.file.name}` first.",
        )
    return setting.store


__all__ = ["compare", "demo", "report", "run"]
