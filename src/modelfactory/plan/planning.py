"""Experiments -> stages, merged by fingerprint."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from modelfactory.evaluate import Evaluate
from modelfactory.plan.cost import Prices, totals
from modelfactory.plan.planned import Plan, PlannedStage, stage_id
from modelfactory.plan.states import with_states
from modelfactory.tokens import BPE, Shards, TokenizerFile
from modelfactory.train import segment

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from modelfactory.data import Dataset, Pin
    from modelfactory.experiment import Experiment
    from modelfactory.plan.sources import PinnedSources
    from modelfactory.store import Store

RUN = {
    "documents": ("modelfactory.data.stage:run", 1),
    "tokenizer": ("modelfactory.tokens.tokenizer_stage:run", 1),
    "tokens": ("modelfactory.tokens.shard_stage:run", 1),
    "train": ("modelfactory.train.stage:run", 1),
    "evaluate": ("modelfactory.evaluate.stage:run", 1),
}
"""Kind -> the stage function and its declared version."""


def plan_experiments(
    experiments: Iterable[Experiment], sources: PinnedSources, store: Store | None, *, jobs: int, threads: int
) -> Plan:
    """Return every stage the experiments need, each with its state, its reason, and its price.

    `store` is None where no workspace exists yet: then everything is to run.
    """
    listed = tuple(experiments)
    graph = _Graph(sources.by_source)
    roles = {experiment.name: graph.add(experiment) for experiment in listed}
    prices = Prices(store, threads=threads, graph=graph.stages, pins=graph.pins)
    priced = [prices.priced(stage) for stage in graph.named()]
    stages = with_states(priced, store, roles)
    total = totals(stages, listed, prices, jobs=jobs)
    return Plan(
        stages=tuple(stages),
        totals=total,
        pins=graph.pins,
        experiments=listed,
        roles=roles,
        assumptions=prices.assumptions(stages),
    )


class _Graph:
    """Stages by fingerprint, in the order in which they were first needed, which is topological."""

    def __init__(self, by_source: Mapping[Any, Pin]) -> None:
        self.stages: dict[str, PlannedStage] = {}
        self.pins: dict[str, Pin] = {}
        self._by_source = by_source
        self._datasets: dict[Dataset, str] = {}
        self._users: dict[str, list[str]] = {}

    def add(self, experiment: Experiment) -> dict[str, str]:
        """Add the stages of one experiment; return role -> fingerprint."""
        roles: dict[str, str] = {}
        for n, dataset in enumerate(experiment.datasets):  # two treatments of one corpus share a name
            roles[f"documents{n}:{dataset.name}/{dataset.split.part}"] = self._documents(dataset)
        roles["tokenizer"] = tokenizer = self._tokenizer(experiment.tokenizer)
        tokens = [self._tokens(part.dataset, tokenizer) for part in experiment.mixture.parts]
        roles |= {f"tokens{n}": fingerprint for n, fingerprint in enumerate(tokens)}
        self._train(experiment, tokens, tokenizer, roles)
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

    def _tokens(self, dataset: Dataset, tokenizer: str) -> str:
        inputs = {"documents": self._documents(dataset), "tokenizer": tokenizer}
        return self._put("tokens", f"{dataset.name} ({dataset.split.part})", Shards(), inputs)

    def _train(
        self, experiment: Experiment, tokens: list[str], tokenizer: str, roles: dict[str, str]
    ) -> None:
        """Add the chain of segments between checkpoints, and the evaluations of each checkpoint."""
        inputs = {"tokenizer": tokenizer, **{f"tokens{n}": each for n, each in enumerate(tokens)}}
        training, before, resumes = experiment.training, 0, ""
        for step in training.checkpoint_steps:
            spec = segment(training, experiment.model, experiment.mixture, from_step=before, to_step=step)
            label = f"{experiment.name} to step {step:,}"
            resumes = self._put("train", label, spec, inputs, resumes=resumes)
            roles[f"train@{step}"] = resumes
            self._evaluate(experiment, step, resumes, tokenizer, roles)
            before = step

    def _evaluate(
        self, experiment: Experiment, step: int, checkpoint: str, tokenizer: str, roles: dict[str, str]
    ) -> None:
        for task in experiment.evaluations:
            inputs = {
                "checkpoint": checkpoint,
                "tokenizer": tokenizer,
                "documents": self._documents(task.dataset),
            }
            label = f"{task.name} of {experiment.name} at step {step:,}"
            roles[f"{task.name}@{step}"] = self._put("evaluate", label, Evaluate(task=task), inputs)
