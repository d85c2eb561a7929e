"""What a report is made of: plain values, filled in by whoever knows the store."""

from __future__ import annotations

from dataclasses import dataclass

from modelfactory.verdict.estimate import Estimate
from modelfactory.verdict.finding import Finding
from modelfactory.verdict.measure import Measure


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One line of the table of variants."""

    name: str
    """Experiment name without the seed."""
    n_parameters: int
    """Parameters, embeddings included."""
    n_tokens: int
    """Tokens trained on, per seed."""
    flops: float
    """Floating-point operations of training, per seed."""
    seeds: tuple[int, ...]
    """Seeds trained."""
    n_trainable: int | None = None
    """Parameters that training changes, such as those of adapters; None for all."""


@dataclass(frozen=True, kw_only=True)
class LossCurve:
    """Training loss of one run; all columns of equal length."""

    variant: str
    """Name of the variant."""
    seed: int
    """Its seed."""
    steps: tuple[int, ...]
    """Training steps, ascending."""
    n_tokens: tuple[int, ...]
    """Tokens seen up to each step."""
    flops: tuple[float, ...]
    """Floating-point operations up to each step."""
    loss: tuple[float, ...]
    """Mean cross-entropy of the step's batch, nats per token."""


@dataclass(frozen=True, kw_only=True)
class EvaluationCurve:
    """One metric of one run at its checkpoints; all columns of equal length."""

    variant: str
    """Name of the variant."""
    seed: int
    """Its seed."""
    measure: Measure
    """Task and metric."""
    steps: tuple[int, ...]
    """Steps of the checkpoints, ascending."""
    n_tokens: tuple[int, ...]
    """Tokens seen up to each."""
    flops: tuple[float, ...]
    """Floating-point operations up to each."""
    values: tuple[float, ...]
    """The metric."""
    chance: float | None = None
    """What guessing would score; None where the task has no such level."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A dropped document, to look at."""

    path: str
    """Where it came from."""
    text: str
    """Its beginning."""


@dataclass(frozen=True, kw_only=True)
class Drop:
    """Documents dropped for one reason."""

    reason: str
    """As the filter states it."""
    n_documents: int
    """Dropped."""
    n_bytes: int
    """In UTF-8."""
    samples: tuple[Sample, ...] = ()
    """A few of them."""


@dataclass(frozen=True, kw_only=True)
class DatasetDrops:
    """What a dataset kept and dropped."""

    name: str
    """Of the dataset."""
    n_documents: int
    """Kept."""
    n_bytes: int
    """Kept, in UTF-8."""
    drops: tuple[Drop, ...]
    """By reason."""
    notes: tuple[str, ...] = ()
    """What else was done to it, in whole sentences."""


@dataclass(frozen=True, kw_only=True)
class PlanNode:
    """A stage of the plan, or several alike."""

    id: str
    """Unique within the report."""
    kind: str
    """documents, tokenizer, tokens, train, evaluate."""
    label: str
    """What a person calls it."""
    state: str
    """stored, stale, to run, failed, blocked, or several with counts."""
    count: int = 1
    """Stages that this node stands for."""


@dataclass(frozen=True, kw_only=True)
class SpecText:
    """An experiment, exactly."""

    name: str
    """Of the experiment."""
    json: str
    """Its spec; the report indents it."""


@dataclass(frozen=True, kw_only=True)
class SpecChange:
    """One field in which a variant differs from a baseline."""

    baseline: str
    """Name of the baseline."""
    variant: str
    """Name of the variant."""
    path: str
    """Dotted path of the field."""
    before: str
    """Value in the baseline: JSON, or a class with its fields."""
    after: str
    """Value in the variant, likewise."""


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A named fact, such as the version of a library or the vocabulary reached."""

    name: str
    """What it is."""
    value: str
    """As it is to be printed."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What the study took."""

    seconds: float
    """Wall time of all its stages, added up."""
    flops: float
    """Floating-point operations of all training done."""
    n_bytes: int
    """Disk held by its stages."""


@dataclass(frozen=True, kw_only=True)
class ReportData:
    """All that a report says. Equal data gives byte-identical files."""

    title: str
    """Name of the study."""
    question: str
    """Docstring of the experiment file."""
    generated: str
    """When the report was made, in words; clocks are read by the caller."""
    findings: tuple[Finding, ...]
    """The verdict."""
    estimates: tuple[Estimate, ...]
    """Score of each variant on each measure."""
    variants: tuple[Variant, ...]
    """In the order to show them; colours follow it."""
    losses: tuple[LossCurve, ...] = ()
    """One per run."""
    evaluations: tuple[EvaluationCurve, ...] = ()
    """One per run and measure."""
    datasets: tuple[DatasetDrops, ...] = ()
    """What data preparation kept and dropped."""
    nodes: tuple[PlanNode, ...] = ()
    """Stages of the plan."""
    edges: tuple[tuple[str, str], ...] = ()
    """(id of a stage, id of a stage made from it)."""
    specs: tuple[SpecText, ...] = ()
    """Every experiment, exactly."""
    changes: tuple[SpecChange, ...] = ()
    """In what variants differ from each baseline they are compared with."""
    versions: tuple[Fact, ...] = ()
    """Of Python and libraries."""
    commands: tuple[str, ...] = ()
    """That repeat the study."""
    cost: Cost | None = None
    """What it took; None where nothing was recorded."""
    facts: tuple[Fact, ...] = ()
    """Anything else a reader should know, such as the vocabulary that the corpus supports."""
    problems: tuple[str, ...] = ()
    """What is missing from this report and why, such as failed runs; shown before the verdict's details."""
