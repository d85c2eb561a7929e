"""The words of the command line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import shtab

from modelfactory.cli import (
    comparing,
    coordinates,
    evaluating,
    inspecting,
    interchange,
    permission,
    planning,
    promoting,
    running,
    upkeep,
)
from modelfactory.cli.words import Parser, at_least_one, at_least_zero

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from modelfactory.cli.answer import Answer

    Verb = Callable[[argparse.Namespace], Answer]

FILE = "a Python file with a function `experiments()`"


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of `factory`; each verb's namespace holds the function that carries it out."""
    parser = Parser(
        prog="factory",
        description="Build foundation models by experiment: plan, run, evaluate, judge.",
        epilog="Exit codes: 0 done, 1 work failed, 2 bad input, 130 interrupted.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {_version()}")
    shtab.add_argument_to(parser, ["--print-completion"], help="print the completion script of a shell")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    _add_planning(verbs)
    _add_running(verbs)
    _add_inspecting(verbs)
    _add_upkeep(verbs)
    return parser


def _version() -> str:
    from importlib.metadata import version

    return version("modelfactory")


def _verb(
    verbs: argparse._SubParsersAction[Parser], name: str, verb: Verb, text: str
) -> argparse.ArgumentParser:
    parser = verbs.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object on stdout, all else on stderr"
    )
    parser.add_argument(
        "--workspace",
        type=Path,
        default=Path(os.environ.get("FACTORY_WORKSPACE", ".factory")),
        help="folder of the factory's state (default: $FACTORY_WORKSPACE, else ./.factory)",
    )
    parser.set_defaults(verb=verb)
    return parser


def _add_planning(verbs: argparse._SubParsersAction[Parser]) -> None:
    check = _verb(verbs, "check", planning.check, "find all faults of an experiment file; no work, no cost")
    _add_file(check)
    plan = _verb(
        verbs, "plan", planning.plan, "show what is stored, stale and to run, why, and what it costs"
    )
    _add_file(plan)
    _add_execution(plan)
    _add_way(plan)
    permission.add_option(plan)
    plan.add_argument(
        "--explain", metavar="STAGE", help="show one stage in full: fingerprint, role or its beginning"
    )
    plan.add_argument("--all", action="store_true", help="list every stage, also where there are many")
    coord = _verb(
        verbs,
        "coord-check",
        coordinates.coord_check,
        "train models of several widths for a few steps, "
        "and plot how activations grow with the width, with muP and without",
    )
    _add_file(coord)
    coordinates.add_options(coord)


def _add_running(verbs: argparse._SubParsersAction[Parser]) -> None:
    run = _verb(verbs, "run", running.run, "carry out what is missing; safe to stop and to start again")
    _add_file(run)
    _add_run_options(run)
    permission.add_option(run)
    demo = _verb(
        verbs, "demo", running.demo, "run the first question on the sources of Python's standard library"
    )
    _add_run_options(demo)
    eval_ = _verb(
        verbs, "eval", evaluating.eval_, "ask a stored checkpoint tasks; stored like those of experiments"
    )
    evaluating.add_options(eval_)
    _add_execution(eval_)
    permission.add_option(eval_)
    compare = _verb(
        verbs,
        "compare",
        comparing.compare,
        "give the verdict on what is stored, or rank any runs",
    )
    comparing.add_options(compare)
    promote = _verb(
        verbs,
        "promote",
        promoting.promote,
        "move a name to a variant that meets a rule, or say why not",
    )
    _add_file(promote)
    promoting.add_options(promote)
    report = _verb(verbs, "report", running.report, "write the report on what is stored, one HTML file")
    _add_file(report)
    report.add_argument("-o", "--output", type=Path, default=Path("report.html"), help="default: report.html")


def _add_inspecting(verbs: argparse._SubParsersAction[Parser]) -> None:
    status = _verb(verbs, "status", inspecting.status, "show what runs, what failed and why")
    status.add_argument(
        "--lines", type=int, default=10, help="lines of each failed stage's log (default: 10)"
    )
    show = _verb(
        verbs, "show", inspecting.show, "show a stage or an experiment: record, results, lineage both ways"
    )
    show.add_argument("id", metavar="ID", help="a fingerprint, its beginning, or the name of an experiment")
    diff = _verb(verbs, "diff", inspecting.diff, "show what differs between two specs")
    diff.add_argument("a", metavar="A", help="a fingerprint, its beginning, or the name of an experiment")
    diff.add_argument("b", metavar="B", help="the same")
    sample = _verb(verbs, "sample", inspecting.sample, "let a checkpoint go on with a text")
    sample.add_argument(
        "checkpoint", metavar="CHECKPOINT", help="a training or import stage, or an experiment: its last"
    )
    sample.add_argument(
        "prompt",
        metavar="PROMPT",
        help="the text to go on with; - reads it from stdin. Names of special tokens in it are plain text",
    )
    sample.add_argument(
        "--chat",
        action="store_true",
        help="PROMPT is what a user says, put into the checkpoint's chat template; print the answer alone",
    )
    sample.add_argument("--system", metavar="TEXT", help="a system message before it; with --chat")
    sample.add_argument("--max-new-tokens", type=int, default=128)
    sample.add_argument("--temperature", type=float, default=0.8, help="0: always the likeliest token")
    sample.add_argument("--top-k", type=int, default=0, help="draw from the k likeliest tokens; 0: from all")
    sample.add_argument(
        "--top-p", type=float, default=1.0, help="draw from the likeliest tokens of this mass"
    )
    sample.add_argument(
        "--min-p",
        type=float,
        default=0.0,
        help="draw from tokens this times as likely as the likeliest; 0: all",
    )
    sample.add_argument(
        "--repetition-penalty",
        type=float,
        default=1.0,
        help="above 1: make tokens that the text already holds less likely",
    )
    sample.add_argument("--seed", type=int, default=0)
    import_ = _verb(verbs, "import", interchange.import_, "keep a model from elsewhere as if trained here")
    interchange.add_import_options(import_)
    export = _verb(verbs, "export", interchange.export, "write a checkpoint for other libraries")
    interchange.add_export_options(export)


def _add_upkeep(verbs: argparse._SubParsersAction[Parser]) -> None:
    gc = _verb(verbs, "gc", upkeep.gc, "remove what no named experiment needs")
    gc.add_argument("--dry-run", action="store_true", help="list it only")
    gc.add_argument(
        "--forget", metavar="NAME", action="append", default=[], help="take an experiment's name away first"
    )
    doctor = _verb(verbs, "doctor", upkeep.doctor, "check workspace, disk, versions, threads and speed")
    doctor.add_argument("--deep", action="store_true", help="hash every stored file, not only its size")
    doctor.add_argument(
        "--rebuild", action="store_true", help="take damaged stages out, so that the next run remakes them"
    )


def _add_file(parser: argparse.ArgumentParser) -> None:
    argument = parser.add_argument("file", metavar="FILE", type=Path, help=FILE)
    argument.complete = shtab.FILE  # type: ignore[attr-defined]


def _add_execution(parser: argparse.ArgumentParser) -> None:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    parser.add_argument(
        "--jobs", type=at_least_one, default=cores, help=f"stages at once (default: {cores}, the cores here)"
    )
    parser.add_argument(
        "--threads",
        type=at_least_one,
        default=cores,
        help=f"CPU threads, divided between the jobs (default: {cores})",
    )
    parser.add_argument(
        "--on-stale",
        choices=("rebuild", "keep", "fail"),
        default="rebuild",
        help="what to do with results made by other code (default: rebuild)",
    )


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    _add_execution(parser)
    parser.add_argument(
        "--retries", type=at_least_zero, default=0, help="further tries of a stage that fails (default: 0)"
    )
    parser.add_argument(
        "--engine", choices=("local",), default="local", help="where stages run (default: local)"
    )
    _add_way(parser)
    parser.add_argument("--report", type=Path, help="write the report here at the end")


def _add_way(parser: argparse.ArgumentParser) -> None:
    """Add how training is carried out; it changes no result beyond rounding, but memory and time."""
    parser.add_argument(
        "--micro-batch-tokens",
        type=at_least_one,
        default=16_384,
        help="tokens passed through a model at once; gradients are summed (default: 16384)",
    )
    parser.add_argument(
        "--compile",
        choices=("auto", "on", "off"),
        default="auto",
        help="torch.compile; auto: for runs long enough to win by it on this machine (default: auto)",
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="where training computes (default: cpu)"
    )
    parser.add_argument(
        "--parallel",
        default="",
        metavar="NAME=SIZE,...",
        help="processes of a training stage: data, shard, tensor, context, expert (default: one process)",
    )
    parser.add_argument(
        "--checkpointing",
        choices=("none", "selective", "full"),
        default="none",
        help="what training computes again in the backward pass, to save memory (default: none)",
    )
