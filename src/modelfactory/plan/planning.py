"""Experiments -> stages, merged by fingerprint."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from modelfactory.errors import InvalidInput, InvalidInputs
from modelfactory.evaluate import Evaluate
from modelfactory.evaluate.item_files import item_files
from modelfactory.evaluate.task import dataset_of
from modelfactory.loading import flattened, in_experiments
from modelfactory.plan.cost import Prices, Way, totals
from modelfactory.plan.planned import Plan, PlannedStage, stage_id
from modelfactory.plan.states import with_states
from modelfactory.tokens import BPE, Shards, TokenizerFile, chat_files
from modelfactory.train import FromRun, segment
from modelfactory.train.own_parts import own_parts_named
from modelfactory.train.start import START

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from modelfactory.data import Dataset, Pin
    from modelfactory.evaluate import Task
    from modelfactory.experiment import Experiment
    from modelfactory.plan.sources import PinnedSources
    from modelfactory.store import Store
    from modelfactory.train import Pretrained
    from modelfactory.train.start import Run

RUN = {
    "documents": ("modelfactory.data.stage:run", 1),
    "tokenizer": ("modelfactory.tokens.tokenizer_stage:run", 1),
    "tokens": ("modelfactory.tokens.shard_stage:run", 1),
    "train": ("modelfactory.train.stage:run", 1),
    "evaluate": ("modelfactory.evaluate.stage:run", 1),
    "import": ("modelfactory.interchange.stage:run", 2),
}
"""Kind -> the stage function and its declared version."""


def plan_experiments(
    experiments: Iterable[Experiment],
    sources: PinnedSources,
    store: Store | None,
    *,
    jobs: int,
    threads: int,
    way: Way | None = None,
) -> Plan:
    """Return every stage the experiments need, each with its state, its reason, and its price.

    `store` is None where no workspace exists yet: then everything is to run. `way` is how training would be
    carried out, by default in one process as `factory run` does; only the memory estimate looks at it.

    Raises:
        InvalidInputs: each distinct fault of what the user's own parts count, with the experiments it is in.
    """
    plan, faults = try_plan(experiments, sources, store, jobs=jobs, threads=threads, way=way)
    if faults:
        raise InvalidInputs(faults)
    return plan


def try_plan(
    experiments: Iterable[Experiment],
    sources: PinnedSources,
    store: Store | None,
    *,
    jobs: int,
    threads: int,
    way: Way | None = None,
    n_experiments: int | None = None,
) -> tuple[Plan, list[InvalidInput]]:
    """Return the plan of the experiments that can be planned, and all faults of the others.

    Sizes and prices are counted by formulas of the user's own. `n_experiments` is how many the file has,
    where some are left out.
    """
    listed = tuple(experiments)
    planned = partial(_planned, sources=sources, store=store, jobs=jobs, threads=threads, way=way or Way())
    try:
        with own_parts_named(experiments=listed):
            return planned(listed), []
    except InvalidInput:
        sound, faults = _each_alone(listed, planned, n_experiments or len(listed))
        if not faults:
            raise
        return planned(sound), faults


def _each_alone(
    listed: Sequence[Experiment], planned: Callable[[tuple[Experiment, ...]], Plan], n_experiments: int
) -> tuple[tuple[Experiment, ...], list[InvalidInput]]:
    """Return the experiments that can be planned, and each fault of the others once, with their names."""
    sound: list[Experiment] = []
    faults: dict[str, tuple[InvalidInput, list[str]]] = {}
    for experiment in listed:
        parts = {each.name: getattr(experiment, each.name) for each in fields(experiment)}
        try:
            with own_parts_named(**parts):
                planned((experiment,))
            sound.append(experiment)
        except InvalidInput as error:
            for fault in flattened(error):
                faults.setdefault(str(fault), (fault, []))[1].append(experiment.name)
    told = [in_experiments(fault, names, n_experiments) for fault, names in faults.values()]
    return tuple(sound), told


def _planned(
    listed: tuple[Experiment, ...],
    sources: PinnedSources,
    store: Store | None,
    *,
    jobs: int,
    threads: int,
    way: Way,
) -> Plan:
    graph = Graph(sources)
    roles = {experiment.name: graph.add(experiment) for experiment in listed}
    prices = Prices(store, threads=threads, graph=graph.stages, pins=graph.pins)
    priced = [prices.priced(stage) for stage in graph.named()]
    stages = with_states(priced, store, roles)
    total = totals(stages, listed, prices, jobs=jobs, way=way)
    return Plan(
        stages=tuple(stages),
        totals=total,
        pins=graph.pins,
        experiments=listed,
        roles=roles,
        assumptions=prices.assumptions(stages),
    )


class Graph:
    """Stages by fingerprint, in the order in which they were first needed, which is topological."""

    def __init__(self, sources: PinnedSources) -> None:
        self.stages: dict[str, PlannedStage] = {}
        self.pins: dict[str, Pin] = {}
        self._by_source, self._imports = sources.by_source, sources.imports
        self._datasets: dict[Dataset, str] = {}
        self._users: dict[str, list[str]] = {}

    def add(self, experiment: Experiment) -> dict[str, str]:
        """Add the stages of one experiment; return role -> fingerprint."""
        roles = self._documents_of(experiment.datasets)
        roles |= self._run_of(experiment, tasks=experiment.evaluations)
        self._name(experiment.name, roles)
        return roles

    def _name(self, experiment: str, roles: Mapping[str, str]) -> None:
        for fingerprint in set(roles.values()):
            self._users.setdefault(fingerprint, []).append(experiment)

    def named(self) -> list[PlannedStage]:
        """Return the stages with the experiments that need them."""
        return [
            replace(stage, experiments=tuple(self._users[fingerprint]))
            for fingerprint, stage in self.stages.items()
        ]

    def _put(
        self,
        kind: str,
        label: str,
        spec: Any,
        inputs: Mapping[str, str],
        *,
        pins: Mapping[str, str] = MappingProxyType({}),
        resumes: str = "",
    ) -> str:
        run, version = RUN[kind]
        fingerprint = stage_id(kind, version, spec, {**inputs, **pins})
        if fingerprint not in self.stages:
            self.stages[fingerprint] = PlannedStage(
                id=fingerprint,
                kind=kind,
                label=label,
                run=run,
                version=version,
                spec=spec,
                inputs=inputs,
                pins=pins,
                resumes=resumes,
            )
        return fingerprint

    def _documents_of(self, datasets: Iterable[Dataset]) -> dict[str, str]:
        return {  # two treatments of one corpus share a name
            f"documents{n}:{dataset.name}/{dataset.split.part}": self._documents(dataset)
            for n, dataset in enumerate(datasets)
        }

    def _documents(self, dataset: Dataset) -> str:
        if dataset not in self._datasets:
            found = [self._by_source[source] for source in dataset.sources]
            self.pins |= {pin.digest: pin for pin in found}
            pins = {f"source{n}": pin.digest for n, pin in enumerate(found)}
            label = f"{dataset.name} ({dataset.split.part})"
            self._datasets[dataset] = self._put("documents", label, dataset, {}, pins=pins)
        return self._datasets[dataset]

    def _tokenizer(self, tokenizer: BPE | TokenizerFile) -> str:
        if isinstance(tokenizer, BPE):
            label = f"byte-pair encoding of {tokenizer.vocab_size:,} on {tokenizer.dataset.name}"
            return self._put("tokenizer", label, tokenizer, {"documents": self._documents(tokenizer.dataset)})
        pin = self._by_source[tokenizer]
        self.pins[pin.digest] = pin
        return self._put("tokenizer", tokenizer.path, tokenizer, {}, pins={"tokenizer_file": pin.digest})

    def _tokens(self, dataset: Dataset, tokenizer: str, spec: BPE | TokenizerFile) -> str:
        inputs = {"documents": self._documents(dataset), "tokenizer": tokenizer}
        pins = self._chat_pins(dataset, spec)
        return self._put("tokens", f"{dataset.name} ({dataset.split.part})", Shards(), inputs, pins=pins)

    def _chat_pins(self, dataset: Dataset, tokenizer: BPE | TokenizerFile | None) -> dict[str, str]:
        """Return the pins of what renders its conversations, by input; none for texts."""
        found = {name: self._by_source[path] for name, path in chat_files(dataset, tokenizer).items()}
        self.pins |= {pin.digest: pin for pin in found.values()}
        return {name: pin.digest for name, pin in found.items()}

    def _item_pins(self, task: Task) -> dict[str, str]:
        """Return the pins of the files of questions that a task reads, by input."""
        found = {name: self._by_source[(task, name)] for name in item_files(task)}
        self.pins |= {pin.digest: pin for pin in found.values()}
        return {name: pin.digest for name, pin in found.items()}

    def _run_of(
        self, experiment: Run, *, tasks: tuple[Task, ...] = (), until: int | None = None
    ) -> dict[str, str]:
        """Add the chain of segments between checkpoints, and all that it is made from; return roles.

        Args:
            experiment: what is trained.
            tasks: that each checkpoint is evaluated by.
            until: the last checkpoint that is wanted; None for all.
        """
        tokenizer = self._tokenizer(experiment.tokenizer)
        spec_of_it, parts = experiment.tokenizer, experiment.mixture.parts
        tokens = [self._tokens(part.dataset, tokenizer, spec_of_it) for part in parts]
        inputs = {"tokenizer": tokenizer, **{f"tokens{n}": each for n, each in enumerate(tokens)}}
        before_it = self._start(experiment.training.start, tokenizer)
        if START in before_it:
            inputs[START] = before_it[START]
        roles = inputs | before_it
        training, before, resumes = experiment.training, 0, ""
        for step in training.checkpoint_steps:
            spec = segment(training, experiment.model, experiment.mixture, from_step=before, to_step=step)
            label = f"{experiment.name} to step {step:,}"
            resumes = self._put("train", label, spec, inputs, resumes=resumes)
            roles[f"train@{step}"] = resumes
            place = f"{experiment.name} at step {step:,}"
            roles |= self.evaluations(place, step, tasks, roles, spec_of_it)
            before = step
            if step == until:
                break
        return roles

    def _start(self, start: Pretrained | FromRun | None, tokenizer: str) -> dict[str, str]:
        """Add what a run starts from: the import of a model, or another run up to a checkpoint."""
        if start is None:
            return {}
        if isinstance(start, FromRun):
            before = self._run_of(start.experiment, until=start.at_step)
            before |= self._documents_of(_trained_on(start.experiment))
            roles = {f"{START}/{role}": fingerprint for role, fingerprint in before.items()}
            return roles | {START: before[f"train@{start.at_step}"]}
        pin = self._by_source[start]
        self.pins[pin.digest] = pin
        inputs, pins = {"tokenizer": tokenizer}, {"source": pin.digest}
        return {START: self._put("import", start.path, self._imports[start], inputs, pins=pins)}

    def evaluations(
        self,
        label: str,
        step: int,
        tasks: tuple[Task, ...],
        roles: Mapping[str, str],
        tokenizer: BPE | TokenizerFile | None,
    ) -> dict[str, str]:
        """Add the evaluations of one checkpoint; return `task@step` -> fingerprint.

        Args:
            label: of the checkpoint, for people.
            step: of it.
            tasks: it is asked.
            roles: has `train@step` and `tokenizer`.
            tokenizer: it was trained with; renders conversations.
        """
        found = {}
        for task in tasks:
            inputs = {"checkpoint": roles[f"train@{step}"], "tokenizer": roles["tokenizer"]}
            pins = self._item_pins(task)
            if (dataset := dataset_of(task)) is not None:
                inputs["documents"] = self._documents(dataset)
                pins |= self._chat_pins(dataset, tokenizer)
            made = self._put("evaluate", f"{task.name} of {label}", Evaluate(task=task), inputs, pins=pins)
            found[f"{task.name}@{step}"] = made
        return found


def _trained_on(experiment: Run) -> tuple[Dataset, ...]:
    """Return the datasets of its mixture and its tokenizer, each once."""
    found = [part.dataset for part in experiment.mixture.parts]
    if isinstance(experiment.tokenizer, BPE):
        found.append(experiment.tokenizer.dataset)
    return tuple(dict.fromkeys(found))
