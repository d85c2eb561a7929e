"""What most verbs begin with: a study, a store, a plan."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from modelfactory.data import MemoryCache
from modelfactory.errors import CommandError, SpecError, WorkspaceError, closest
from modelfactory.loading import Study, load_study
from modelfactory.plan import Plan, Way, pin_sources, plan_experiments, refuse_repetition
from modelfactory.stage import Parallel
from modelfactory.store import Store
from modelfactory.train.parallel import check_parallel

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from pathlib import Path


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
    """
    way = _way(arguments)  # a word that is none is told before anything is read
    study = load_study(file or arguments.file)
    with maybe_store(arguments.workspace, create=create) as store:
        sources = pin_sources(study.experiments, store.pins if store is not None else MemoryCache())
        jobs = getattr(arguments, "jobs", 1)
        threads = max(getattr(arguments, "threads", 1) // jobs, 1)
        plan = plan_experiments(study.experiments, sources, store, jobs=jobs, threads=threads, way=way)
        if to_run:
            refuse_repetition(plan, store)
            _check_parallel(way.parallel, plan)
            _check_device(way, plan, is_run=create)
            _check_micro_batch(way.micro_batch_tokens, plan)
        yield Setting(study=study, store=store, plan=plan, way=way)


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
