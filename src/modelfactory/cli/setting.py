"""What most verbs begin with: a study, a store, a plan."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from modelfactory.cli.permission import permitted
from modelfactory.data import MemoryCache
from modelfactory.errors import CommandError, InvalidInput, InvalidInputs, SpecError, WorkspaceError, closest
from modelfactory.loading import Study, flattened, read_study
from modelfactory.plan import Plan, Way, is_pinned, refuse_repetition, try_plan, try_sources
from modelfactory.stage import Parallel
from modelfactory.store import Store
from modelfactory.train.parallel import check_parallel

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from pathlib import Path

    from modelfactory.loading import Reading


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A loaded study with its plan against a store, and how its training would be carried out."""

    study: Study
    store: Store | None
    plan: Plan
    way: Way


@contextmanager
def planned(
    arguments: argparse.Namespace, *, create: bool, file: Path | None = None, to_run: bool = True
) -> Iterator[Setting]:
    """Load the file, pin its sources, plan; the store is None where no workspace exists and none is made.

    With `to_run`, runs that training would refuse are refused here; what is stored can be read all the same.

    Raises:
        InvalidInputs: every fault of the file. Experiments that cannot be built, or whose sources are not
            there, are left out of what comes later; faults of the others are told all the same.
    """
    way = _way(arguments)  # a word that is none is told before anything is read
    reading = read_study(file or arguments.file)
    if getattr(arguments, "allow_unsandboxed", False):
        reading = permitted(reading)
    with maybe_store(arguments.workspace, create=create and reading.study is not None) as store:
        faults = list(reading.faults)
        with _unless_told(faults):
            plan = _planned(arguments, reading, store, way, faults)
            if to_run:
                _refuse_runs(plan, store, way, faults, is_run=create)
        if faults or reading.study is None:
            raise InvalidInputs(faults)
        yield Setting(study=reading.study, store=store, plan=plan, way=way)


@contextmanager
def _unless_told(faults: list[InvalidInput]) -> Iterator[None]:
    """Let nothing that is raised hide faults found before: the rest of a faulty file may raise anything."""
    before = bool(faults)
    try:
        yield
    except InvalidInput as error:
        faults.extend(flattened(error))
    except Exception:
        if not before:
            raise


def _planned(
    arguments: argparse.Namespace,
    reading: Reading,
    store: Store | None,
    way: Way,
    faults: list[InvalidInput],
) -> Plan:
    """Return the plan of the experiments that can be planned; add the faults of the others."""
    cache, n_experiments = store.pins if store is not None else MemoryCache(), reading.n_experiments
    sources, found = try_sources(reading.sound, cache, n_experiments)
    faults.extend(found)
    jobs = getattr(arguments, "jobs", 1)
    threads = max(getattr(arguments, "threads", 1) // jobs, 1)
    whole = [each for each in reading.sound if not found or is_pinned(each, sources)]
    plan, found = try_plan(
        whole, sources, store, jobs=jobs, threads=threads, way=way, n_experiments=n_experiments
    )
    faults.extend(found)
    return plan


def _refuse_runs(
    plan: Plan, store: Store | None, way: Way, faults: list[InvalidInput], *, is_run: bool
) -> None:
    """Add what training would refuse."""
    refusals = (
        partial(refuse_repetition, plan, store),
        partial(_check_parallel, way.parallel, plan),
        partial(_check_device, way, plan, is_run=is_run),
        partial(_check_micro_batch, way.micro_batch_tokens, plan),
    )
    for refuse in refusals:
        try:
            refuse()
        except InvalidInput as error:
            faults.extend(flattened(error))


def _check_parallel(parallel: Parallel, plan: Plan) -> None:
    """Refuse processes of training stages that do not divide their runs, before any work."""
    for stage in plan.stages:
        if stage.kind == "train":
            check_parallel(stage.spec, parallel)


def _check_device(way: Way, plan: Plan, *, is_run: bool) -> None:
    """Refuse GPUs that this machine has not, before any work; a plan may be of another machine."""
    if way.device == "cpu" or all(stage.kind != "train" or stage.state == "stored" for stage in plan.stages):
        return
    from modelfactory.train.processes import require_device

    try:
        require_device(way.device, way.parallel)
    except SpecError as error:
        if is_run:
            raise
        say(f"WARNING: {error.place}: found {error.found}: it can be planned here, but not run.")


def _check_micro_batch(n_tokens: int, plan: Plan) -> None:
    """Refuse fewer tokens than any row has: rows are never cut, so that would have no effect."""
    shortest = min((stage.spec.seq_len for stage in plan.stages if stage.kind == "train"), default=0)
    if n_tokens < shortest and n_tokens != Way().micro_batch_tokens:
        raise CommandError(
            place="--micro-batch-tokens",
            found=f"{n_tokens:,}",
            wanted=f"at least {shortest:,}, the tokens of a row (max_seq_len), which is never cut",
            remedy="For less memory give --checkpointing full, or the model a shorter max_seq_len.",
        )


def _way(arguments: argparse.Namespace) -> Way:
    """Return how training would be carried out, as far as a verb asks."""
    if not hasattr(arguments, "micro_batch_tokens"):
        return Way()
    return Way(
        micro_batch_tokens=arguments.micro_batch_tokens,
        is_compiled=arguments.compile == "on",
        checkpointing=arguments.checkpointing,
        parallel=Parallel.parse(arguments.parallel),
        device=arguments.device,
    )


@contextmanager
def maybe_store(root: Path, *, create: bool) -> Iterator[Store | None]:
    """Open the workspace; None where there is none and `create` is false."""
    if not create and not root.exists():
        yield None
        return
    with Store.open(root, create=create) as store:
        yield store


@contextmanager
def existing_store(root: Path) -> Iterator[Store]:
    """Open a workspace that must exist."""
    with maybe_store(root, create=False) as store:
        if store is None:
            raise WorkspaceError(
                place=str(root),
                found="no workspace",
                wanted="the folder of an earlier `factory run`",
                remedy="Give it with --workspace, or run an experiment first.",
            )
        yield store


def find_stage(store: Store, name: str) -> str:
    """Return the one fingerprint that `name` begins.

    Raises:
        CommandError: it begins none, or several.
    """
    found = store.find(name) if name else []
    if len(found) == 1:
        return found[0]
    raise CommandError(
        place=name or "''",
        found=f"{len(found)} stages" if found else "no stage and no experiment of this name",
        wanted="one",
        remedy="Give more of the fingerprint." if found else _known_names(store, name),
    )


def _known_names(store: Store, name: str) -> str:
    return closest(name, [experiment.name for experiment in store.experiments()])


def say(text: str) -> None:
    """Write a line for a person on stderr, where it never mixes with `--json`."""
    sys.stderr.write(f"{text}\n")
