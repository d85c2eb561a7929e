"""The Experiment value and the checks that need more than one of its fields."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from itertools import combinations
from typing import TYPE_CHECKING

from modelfactory.data import holds_chats
from modelfactory.errors import ExperimentError, InvalidInput, SpecError, closest
from modelfactory.evaluate import Task
from modelfactory.evaluate.item_files import item_files
from modelfactory.evaluate.task import dataset_of, reads_chats
from modelfactory.models import Architecture
from modelfactory.spec import check_types, identity_json, require
from modelfactory.tokens import BPE, Mixture, Part, TokenizerFile
from modelfactory.train import FromRun, Training
from modelfactory.train.start import start_faults

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from modelfactory.data import Dataset


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One model, from documents to evaluations; never where or how it is carried out."""

    name: str = field(metadata={"identity": False})
    """A label, unique in its file. Give the seed as `seed=N` in it: replicates are told by the rest."""
    tokenizer: BPE | TokenizerFile
    mixture: Mixture
    model: Architecture
    training: Training
    evaluations: tuple[Task, ...]
    """Asked of every checkpoint."""

    def __post_init__(self) -> None:
        """Check types, then what concerns several fields."""
        if not check_types(self):
            return  # the faults are collected
        require(self.name.strip() != "", place="Experiment.name", found=self.name, wanted="a name")
        for error in self._faults():
            require(
                False, place=error.place, found=_Shown(error.found), wanted=error.wanted, remedy=error.remedy
            )

    @property
    def variant(self) -> str:
        """The name without its seed: experiments of one variant are replicates."""
        return variant_name(self.name)

    @property
    def datasets(self) -> tuple[Dataset, ...]:
        """Every dataset it reads, each once."""
        found = [part.dataset for part in self.mixture.parts]
        if isinstance(self.tokenizer, BPE):
            found.append(self.tokenizer.dataset)
        found.extend(dataset for task in self.evaluations if (dataset := dataset_of(task)) is not None)
        return tuple(dict.fromkeys(found))

    def _faults(self) -> Iterator[InvalidInput]:
        yield from self._batch_faults()
        yield from self._checkpoint_faults()
        yield from self._task_faults()
        yield from self._leak_faults()
        yield from self._chat_faults()
        yield from start_faults(self.name, model=self.model, tokenizer=self.tokenizer, training=self.training)

    def _batch_faults(self) -> Iterator[InvalidInput]:
        length, training = self.model.max_seq_len, self.training
        sizes = {f"batch_warmup[{n}].": each.batch_tokens for n, each in enumerate(training.batch_warmup)}
        for place, batch in {"": training.batch_tokens, **sizes}.items():
            if length > 0 and batch % length:
                fewer, more = batch // length * length, (batch // length + 1) * length
                yield ExperimentError(
                    place=f"{self.name}: training.{place}batch_tokens",
                    found=f"{batch}, which is not divisible by model.max_seq_len {length}",
                    wanted="whole sequences in a batch",
                    remedy=f"Use {fewer} or {more}." if fewer else f"Use {more}.",
                )

    def _checkpoint_faults(self) -> Iterator[InvalidInput]:
        """Refuse a number that would silently have less effect than it says."""
        asked, n_steps = self.training.n_checkpoints, self.training.n_steps
        if asked > n_steps >= 1:
            yield ExperimentError(
                place=f"{self.name}: training.n_checkpoints",
                found=f"{asked} in a run of {n_steps} step{'s' if n_steps > 1 else ''}",
                wanted="at most one checkpoint for each step",
                remedy=f"Use {n_steps} or fewer, train on more tokens, or use smaller batches.",
            )

    def _task_faults(self) -> Iterator[InvalidInput]:
        names = [task.name for task in self.evaluations]
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield ExperimentError(
                place=f"{self.name}: evaluations",
                found=f"{names.count(name)} tasks named {name!r}",
                wanted="one name for each task",
                remedy="Give one of them another `name`.",
            )
        for task in self.evaluations:
            if dataset_of(task) is None and not item_files(task):
                yield ExperimentError(
                    place=f"{self.name}: evaluations.{task.name}",
                    found="a task that asks about nothing",
                    wanted="`dataset`, held-out documents, or `item_files`, files of questions",
                    remedy="Declare one of the two as a field or a property of the task.",
                )

    def _trained_on(self) -> tuple[Part, ...]:
        """Return the parts of its own mixture, and of those that its start was trained on."""
        parts = list(self.mixture.parts)
        start = self.training.start
        while isinstance(start, FromRun):
            parts += start.experiment.mixture.parts
            start = start.experiment.training.start
        return tuple(parts)

    def _leak_faults(self) -> Iterator[InvalidInput]:
        """Refuse an evaluation on documents that training may read as well."""
        for task in self.evaluations:
            for part in self._trained_on():
                judged, trained = dataset_of(task), part.dataset
                if judged is None:
                    continue
                if set(judged.sources) & set(trained.sources) and not disjoint(judged, trained):
                    yield ExperimentError(
                        place=f"{self.name}: evaluations.{task.name}.dataset",
                        found=f"documents of {trained.name!r}, on which the mixture trains",
                        wanted="held-out documents",
                        remedy="Give both datasets a Split of equal share and salt, one part 'train', "
                        "the other 'held_out'.",
                    )

    def _chat_faults(self) -> Iterator[InvalidInput]:
        """Refuse to read conversations as plain text: they are JSON there, which nobody means."""
        texts = [task for task in self.evaluations if not reads_chats(task)]
        found = {f"evaluations.{task.name}.dataset": dataset_of(task) for task in texts}
        read = {place: dataset for place, dataset in found.items() if dataset is not None}
        if isinstance(self.tokenizer, BPE):
            read["tokenizer.dataset"] = self.tokenizer.dataset
        for place, dataset in read.items():
            if holds_chats(dataset):
                yield ExperimentError(
                    place=f"{self.name}: {place}",
                    found=f"the conversations of {dataset.name!r}",
                    wanted="texts",
                    remedy="Conversations are for the mixture and for AnswerLoss; give a dataset of Files, "
                    "Jsonl or Parquet.",
                )


class _Shown(str):
    """Text that is shown as it is, without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def disjoint(one: Dataset, other: Dataset) -> bool:
    """Say whether no document can be in both datasets: the two sides of one split."""
    a, b = one.split, other.split
    return a.held_out_share == b.held_out_share and a.salt == b.salt and a.part != b.part


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A question about two variants, asked of every task."""

    baseline: str
    """Name of a variant: an experiment's name without its seed."""
    variant: str

    def __post_init__(self) -> None:
        """Refuse a variant that is compared with itself."""
        check_types(self)
        require(
            self.baseline != self.variant,
            place="Comparison.variant",
            found=self.variant,
            wanted="another variant than the baseline",
        )


def variant_name(name: str) -> str:
    """Return an experiment's name without its `seed=N` part."""
    bare = re.sub(r"(^|[/,;_ -]+)seed\s*=?\s*\d+", "", name)
    return bare.strip("/,;_ -") or name


def check_together(experiments: Iterable[Experiment]) -> list[InvalidInput]:
    """Return what is wrong between the experiments of one file."""
    listed = list(experiments)
    names = [experiment.name for experiment in listed]
    faults: list[InvalidInput] = [
        ExperimentError(
            place=f"experiment {name!r}",
            found=f"{names.count(name)} experiments of this name",
            wanted="one",
            remedy="Put what differs into the name; where nothing differs, take one away.",
        )
        for name in sorted({name for name in names if names.count(name) > 1})
    ]
    return [*faults, *_replicate_faults(listed), *_hidden_replicates(listed)]


def _hidden_replicates(experiments: list[Experiment]) -> Iterator[InvalidInput]:
    """Find replicates whose names hide it: they would be compared with each other as if they differed."""
    alike: dict[object, dict[str, None]] = {}
    for experiment in experiments:
        alike.setdefault(_without_seed(experiment), {})[experiment.variant] = None
    for variants in alike.values():
        if len(variants) > 1:
            yield ExperimentError(
                place=f"experiments {', '.join(map(repr, list(variants)[:3]))}",
                found=f"{len(variants)} names for experiments that differ in nothing but training.seed",
                wanted="one name for all replicates, but for its seed",
                remedy="Write the seed as seed=N in the name.",
            )


def _replicate_faults(experiments: list[Experiment]) -> Iterator[InvalidInput]:
    """Replicates must be equal in all but the seed, else their spread is not seed noise."""
    by_variant: dict[str, list[Experiment]] = {}
    for experiment in experiments:
        by_variant.setdefault(experiment.variant, []).append(experiment)
    for variant, group in by_variant.items():
        unlike = len({_without_seed(experiment) for experiment in group}) > 1
        if unlike:  # fields that say where, not what, may differ
            unlike = len({_identity_without_seed(experiment) for experiment in group}) > 1
        if unlike and len({experiment.name for experiment in group}) == len(group):
            yield ExperimentError(
                place=f"variant {variant!r}",
                found=f"{len(group)} experiments that differ in more than their seed",
                wanted="replicates, or names that differ in more than the seed",
                remedy="Put what differs into the name.",
            )
        seeds = [experiment.training.seed for experiment in group]
        if len(set(seeds)) < len(seeds) and len({e.name for e in group}) == len(group):
            yield ExperimentError(
                place=f"variant {variant!r}",
                found=f"seeds {', '.join(map(str, seeds))}",
                wanted="another training.seed for each replicate",
                remedy="A replicate with the same seed is the same run and adds no evidence.",
            )


def _without_seed(experiment: Experiment) -> tuple[object, ...]:
    """Return a value that replicates share: everything but the name and the training seed."""
    training = experiment.training
    rest = tuple(getattr(training, field.name) for field in fields(training) if field.name != "seed")
    return (experiment.tokenizer, experiment.mixture, experiment.model, experiment.evaluations, rest)


def _identity_without_seed(experiment: Experiment) -> str:
    # those of the runs it starts from as well: replicates may start from replicates
    training = re.sub(r'"seed":\d+', '"seed":0', identity_json(experiment.training))
    parts = (experiment.tokenizer, experiment.mixture, experiment.model, *experiment.evaluations)
    return "\n".join([training, *map(identity_json, parts)])


def default_comparisons(experiments: Iterable[Experiment]) -> tuple[Comparison, ...]:
    """Compare the first variant with each other one."""
    variants = list(dict.fromkeys(experiment.variant for experiment in experiments))
    return tuple(Comparison(baseline=variants[0], variant=other) for other in variants[1:])


def check_comparisons(
    comparisons: Iterable[Comparison], experiments: Iterable[Experiment]
) -> list[InvalidInput]:
    """Return an error for each comparison that names no variant."""
    variants = list(dict.fromkeys(experiment.variant for experiment in experiments))
    return [
        SpecError(
            place=f"comparisons()[{n}].{side}",
            found=repr(name),
            wanted="a variant",
            remedy=closest(name, variants),
        )
        for n, comparison in enumerate(comparisons)
        for side, name in (("baseline", comparison.baseline), ("variant", comparison.variant))
        if name not in variants
    ]


def all_variants(experiments: Iterable[Experiment]) -> tuple[Comparison, ...]:
    """Compare every variant with every other one."""
    variants = list(dict.fromkeys(experiment.variant for experiment in experiments))
    return tuple(Comparison(baseline=one, variant=other) for one, other in combinations(variants, 2))
