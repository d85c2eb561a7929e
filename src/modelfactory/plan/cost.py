"""What stages cost, from throughputs measured on this machine before, else from stated assumptions."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from modelfactory.plan.planned import PlannedStage, Totals
from modelfactory.spec import fingerprint
from modelfactory.tokens import BPE
from modelfactory.train import FromRun
from modelfactory.train.batches import batch_sizes
from modelfactory.train.memory import memory_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from modelfactory.data import Pin
    from modelfactory.experiment import Experiment
    from modelfactory.store import Store
    from modelfactory.train import Training

ASSUMED = {"documents": 8e6, "tokenizer": 4e6, "tokens": 4e6, "train": 15e9, "evaluate": 0.5, "import": 100e6}
"""Units a second on one CPU thread before anything was measured, see UNITS."""
UNITS = {
    "documents": "bytes/s",
    "tokenizer": "bytes/s",
    "tokens": "bytes/s",
    "train": "FLOP/s",
    "evaluate": "stages/s",
    "import": "bytes/s",
}
BYTES_PER_TOKEN = 3.5
"""Assumed until a tokenizer's facts say better."""
SHARES = {"documents": 0.6, "tokenizer": 0.0, "tokens": 2 / BYTES_PER_TOKEN, "import": 2.0}
"""Bytes that a stage makes of each byte it reads; published weights have 16 bits, checkpoints 32."""


@dataclass(frozen=True)
class _Work:
    """How much a stage has to do, in the unit of its kind."""

    amount: float
    disk_bytes: int
    tokens: int = 0
    flops: int = 0


class Prices:
    """Prices stages; remembers what it looked up."""

    def __init__(
        self, store: Store | None, *, threads: int, graph: Mapping[str, PlannedStage], pins: Mapping[str, Pin]
    ) -> None:
        self._store = store
        self._threads = threads
        self._graph = graph
        self._pins = pins
        self._rates: dict[tuple[str, str], float | None] = {}

    def priced(self, stage: PlannedStage) -> PlannedStage:
        """Return the stage with tokens, FLOPs, seconds and bytes."""
        work = self._work(stage)
        rate = self._rate(stage) or ASSUMED[stage.kind] * (self._threads if stage.kind == "train" else 1)
        return replace(
            stage,
            work=work.amount,
            tokens=work.tokens,
            flops=work.flops,
            seconds=work.amount / rate,
            disk_bytes=work.disk_bytes,
        )

    def assumptions(self, stages: Iterable[PlannedStage]) -> tuple[str, ...]:
        """Return in words what was assumed for stages that will run."""
        kinds = {stage.kind for stage in stages if stage.state != "stored" and self._rate(stage) is None}
        return tuple(
            f"{kind}: {ASSUMED[kind]:,.3g} {UNITS[kind]} on one thread, assumed until one has run here"
            for kind in ASSUMED
            if kind in kinds
        )

    def vocab_size(self, tokenizer: str) -> int:
        """Return the real vocabulary size once the tokenizer is stored, else the one asked for."""
        spec = self._graph[tokenizer].spec
        if self._store is not None:
            facts = _facts(self._store.stage_dir(tokenizer) / "tokenizer_facts.json")
            if "vocab_size" in facts:
                return int(facts["vocab_size"])
        return spec.vocab_size if isinstance(spec, BPE) else _vocabulary_of_file(spec.path)

    def _rate(self, stage: PlannedStage) -> float | None:
        keys = (price_key(stage), "any") if stage.kind != "evaluate" else (price_key(stage),)
        for key in keys:
            if (stage.kind, key) not in self._rates:
                found = self._store.throughput(stage.kind, f"{key}/{self._threads}") if self._store else None
                self._rates[stage.kind, key] = found
            if self._rates[stage.kind, key] is not None:
                return self._rates[stage.kind, key]
        return None

    def _work(self, stage: PlannedStage) -> _Work:
        if stage.kind == "train":
            return self._training(stage)
        if stage.kind == "evaluate":
            return _Work(1.0, 100_000)
        n_bytes = self._n_bytes(stage)
        share = SHARES[stage.kind]
        return _Work(float(n_bytes), int(n_bytes * share) + 200_000)

    def _n_bytes(self, stage: PlannedStage) -> int:
        """Return the bytes of the sources behind a stage."""
        own = sum(
            pin.n_bytes for digest in stage.pins.values() if (pin := self._pins.get(digest)) is not None
        )
        documents = stage.inputs.get("documents")
        return own + (self._n_bytes(self._graph[documents]) if documents else 0)

    def _training(self, stage: PlannedStage) -> _Work:
        vocab_size = self.vocab_size(stage.inputs["tokenizer"])
        tokens = int(stage.spec.n_tokens_to_step - stage.spec.n_tokens_before)
        flops = tokens * flops_per_token(stage.spec.model, vocab_size)
        return _Work(float(flops), _checkpoint_bytes(stage.spec.model, vocab_size), tokens, flops)

    def memory_bytes(self, stages: Iterable[PlannedStage]) -> int:
        """Return the estimated memory of the training stage that takes most, 0 if there is none."""
        specs = {
            (each.spec.model, each.spec.optimizer, each.spec.precision, each.spec.batch_tokens): each
            for each in stages
            if each.kind == "train"
        }
        estimates = (
            memory_bytes(each.spec.model, self.vocab_size(each.inputs["tokenizer"]), each.spec)
            for each in specs.values()
        )
        return max((found.total for found in estimates), default=0)


def _checkpoint_bytes(model: Any, vocab_size: int) -> int:
    """Return those of the weights, and of two averages for each that is trained."""
    n_parameters = int(model.n_parameters(vocab_size))
    trainable = getattr(model, "n_trainable", None)
    return 4 * n_parameters + 8 * (n_parameters if trainable is None else int(trainable(vocab_size)))


@lru_cache(maxsize=4096)
def flops_per_token(model: Any, vocab_size: int) -> int:
    """Return FLOPs of one training token, forward and backward, at the model's full length."""
    return int(model.flops_per_token(vocab_size, model.max_seq_len))


@lru_cache(maxsize=4096)
def _facts(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found


@lru_cache(maxsize=64)
def _vocabulary_of_file(path: str) -> int:
    from tokenizers import Tokenizer

    vocabulary = Tokenizer.from_file(path).get_vocab(with_added_tokens=True)
    return max(vocabulary.values()) + 1  # ids may have gaps, and a model has a row for each id


def note_speed(store: Store, stage: PlannedStage, *, seconds: float, threads: int) -> None:
    """Keep how fast a stage was, for the next plan."""
    if seconds <= 0 or stage.work <= 0:
        return
    keys = {price_key(stage), "any"} if stage.kind != "evaluate" else {price_key(stage)}
    for key in sorted(keys):
        store.note_throughput(stage.kind, f"{key}/{threads}", stage.work / seconds)


def price_key(stage: PlannedStage) -> str:
    """Return the key under which a stage's throughput is kept: stages of one key run equally fast."""
    if stage.kind == "train":
        return f"{_short_name(stage.spec.model)}/{stage.spec.precision}"
    return _short_name(stage.spec) if stage.kind == "evaluate" else "any"


@lru_cache(maxsize=4096)
def _short_name(spec: Any) -> str:
    return fingerprint(spec)[:16]


def totals(
    stages: Iterable[PlannedStage], experiments: Iterable[Experiment], prices: Prices, *, jobs: int
) -> Totals:
    """Return the sums over a plan."""
    listed = list(stages)
    missing = [stage for stage in listed if stage.state != "stored"]
    asked = [n_tokens(experiment.training) for experiment in experiments]
    trained = [stage for stage in missing if stage.kind == "train"]
    by_name = {stage.id: stage for stage in listed}
    requested = sum(
        stage.flops * len(stage.experiments) for stage in by_name.values() if stage.kind == "train"
    )
    return Totals(
        tokens_requested=sum(asked),
        tokens_to_train=sum(stage.tokens for stage in trained),
        flops_requested=requested,
        flops_to_train=sum(stage.flops for stage in trained),
        seconds=max(sum(stage.seconds for stage in missing) / jobs, _longest_chain(listed)),
        seconds_measured=not prices.assumptions(listed),
        disk_bytes=sum(stage.disk_bytes for stage in missing),
        memory_bytes=prices.memory_bytes(trained),
    )


def n_tokens(training: Training, until: int | None = None) -> int:
    """Return the tokens of a run up to a step, by default all, and those of the runs that it starts from."""
    whole = training.n_tokens
    if until is not None:
        whole = min(whole, batch_sizes(training.batch_tokens, training.batch_warmup).up_to(until))
    start = training.start
    return whole + (n_tokens(start.experiment.training, start.at_step) if isinstance(start, FromRun) else 0)


def _longest_chain(stages: list[PlannedStage]) -> float:
    """Return the seconds of the longest path of stages that wait for each other."""
    ends: dict[str, float] = {}
    for stage in stages:
        before = max((ends.get(parent, 0.0) for parent in stage.parents()), default=0.0)
        ends[stage.id] = before + (stage.seconds if stage.state != "stored" else 0.0)
    return max(ends.values(), default=0.0)
