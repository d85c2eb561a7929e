"""What stages cost, from times measured on this machine before, else from stated assumptions."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from modelfactory.models.part_results import counted
from modelfactory.plan.planned import PlannedStage, Totals
from modelfactory.plan.speeds import Speed, Took, recall, remember, speed
from modelfactory.spec import fingerprint
from modelfactory.stage import Checkpointing, Device, Parallel
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


@dataclass(frozen=True, kw_only=True)
class Way:
    """How training would be carried out: what its memory depends on besides the spec; see `Site`."""

    micro_batch_tokens: int = 16_384
    is_compiled: bool = False
    checkpointing: Checkpointing = "none"
    parallel: Parallel = field(default_factory=Parallel)
    device: Device = "cpu"


class Prices:
    """Prices stages; remembers what it looked up."""

    def __init__(
        self, store: Store | None, *, threads: int, graph: Mapping[str, PlannedStage], pins: Mapping[str, Pin]
    ) -> None:
        self._store = store
        self._threads = threads
        self._graph = graph
        self._pins = pins
        self._speeds: dict[tuple[str, str], Speed | None] = {}

    def priced(self, stage: PlannedStage) -> PlannedStage:
        """Return the stage with tokens, FLOPs, seconds and bytes."""
        work = self._work(stage)
        known = self._speed(stage)
        assumed = ASSUMED[stage.kind] * (self._threads if stage.kind == "train" else 1)
        return replace(
            stage,
            work=work.amount,
            tokens=work.tokens,
            flops=work.flops,
            seconds=work.amount / assumed if known is None else known.seconds(work.amount),
            disk_bytes=work.disk_bytes,
        )

    def assumptions(self, stages: Iterable[PlannedStage]) -> tuple[str, ...]:
        """Return in words what was assumed for priced stages that will run."""
        missing = [stage for stage in stages if stage.state != "stored"]
        unknown = {stage.kind for stage in missing if self._speed(stage) is None}
        scaled = {stage.kind for stage in missing if (known := self._speed(stage)) is not None
                  and not known.covers(stage.work)} - unknown  # fmt: skip
        assumed = [
            f"{kind}: {ASSUMED[kind]:,.3g} {UNITS[kind]} on one thread, assumed until one has run here"
            for kind in ASSUMED
            if kind in unknown
        ]
        return (*assumed, *(f"{kind}: scaled from stages of quite another size" for kind in sorted(scaled)))

    def vocab_size(self, tokenizer: str) -> int:
        """Return the real vocabulary size once the tokenizer is stored, else the one asked for."""
        spec = self._graph[tokenizer].spec
        if self._store is not None:
            facts = _facts(self._store.stage_dir(tokenizer) / "tokenizer_facts.json")
            if "vocab_size" in facts:
                return int(facts["vocab_size"])
        return spec.vocab_size if isinstance(spec, BPE) else _vocabulary_of_file(spec.path)

    def _speed(self, stage: PlannedStage) -> Speed | None:
        """Return that of stages of its key, else of its kind; None where none has run here."""
        for key in price_keys(stage):
            name = (stage.kind, f"{key}/{self._threads}")
            if name not in self._speeds:
                took = recall(self._store, *name) if self._store else []
                self._speeds[name] = speed(took) if took else None
            if (found := self._speeds[name]) is not None:
                return found
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

    def memory_bytes(self, stages: Iterable[PlannedStage], way: Way) -> int:
        """Return the estimated memory of a process of the training stage that takes most, 0 without any."""
        specs = {
            (each.spec.model, each.spec.optimizer, each.spec.precision, each.spec.batch_tokens): each
            for each in stages
            if each.kind == "train"
        }
        estimates = (
            memory_bytes(each.spec.model, self.vocab_size(each.inputs["tokenizer"]), each.spec, **vars(way))
            for each in specs.values()
        )
        return max((found.total for found in estimates), default=0)


def _checkpoint_bytes(model: Any, vocab_size: int) -> int:
    """Return those of the weights, and of two averages for each that is trained."""
    n_parameters = counted(model, "n_parameters", vocab_size)
    trainable = getattr(model, "n_trainable", None)
    return 4 * n_parameters + 8 * (n_parameters if trainable is None else int(trainable(vocab_size)))


@lru_cache(maxsize=4096)
def flops_per_token(model: Any, vocab_size: int) -> int:
    """Return FLOPs of one training token, forward and backward, at the model's full length."""
    return counted(model, "flops_per_token", vocab_size, model.max_seq_len)


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
    """Keep how long a stage took, for the next plan."""
    if seconds > 0 and stage.work > 0:
        keys = [f"{key}/{threads}" for key in price_keys(stage)]
        remember(store, stage.kind, keys, Took(stage.work, seconds))


def price_keys(stage: PlannedStage) -> tuple[str, ...]:
    """Return the keys under which a stage's time is kept, the most telling first."""
    if stage.kind == "train":
        return f"{_short_name(stage.spec.model)}/{stage.spec.precision}", "any"
    return (_short_name(stage.spec),) if stage.kind == "evaluate" else ("any",)


@lru_cache(maxsize=4096)
def _short_name(spec: Any) -> str:
    return fingerprint(spec)[:16]


def totals(
    stages: Iterable[PlannedStage], experiments: Iterable[Experiment], prices: Prices, *, jobs: int, way: Way
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
        memory_bytes=prices.memory_bytes(trained, way),
        n_processes=way.parallel.world_size,
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
