"""What a stage is told: where it runs, never what it makes.

A stage is a plain call `run(spec, inputs, output_dir, site)`; this file holds the type of `site`. It can be
built by hand, so a stage can be run from a notebook without the factory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from math import prod
from pathlib import Path
from typing import Any, Literal, Protocol, Self

from modelfactory.errors import CommandError, closest
from modelfactory.spec import check_types, checked_value, field_types, require

OBSERVED = "observed"
"""Folder of a stage for what depends on wall time; hashed for integrity, no part of what the stage is."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a stage is."""

    done: int
    total: int
    """0 when unknown."""
    unit: str
    """Plural noun: steps, documents, items."""
    rate: float = 0.0
    """Units per second, lately."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Such as loss, tokens_per_s."""
    warning: str = ""
    """What a person should see at once, if anything."""


@dataclass(frozen=True, kw_only=True)
class Parallel:
    """Over how many processes a training stage is spread, and how; their product is the number of processes.

    Ranks are numbered with `tensor` fastest, then `shard`, `context`, `expert`, `data`: neighbours talk most.
    """

    data: int = 1
    """Copies of the model, each with rows of its own. Alone it is DDP, with `shard` hybrid sharding."""
    shard: int = 1
    """Pieces that parameters, gradients and optimizer state lie in, each with rows of its own (FSDP)."""
    tensor: int = 1
    """Pieces of every matrix product: heads of attention, widths of feed-forwards."""
    context: int = 1
    """Pieces of every row, along the sequence."""
    expert: int = 1
    """Groups of experts, each with rows of its own."""

    def __post_init__(self) -> None:
        """Refuse sizes below 1."""
        check_types(self)
        for each in fields(self):
            size = getattr(self, each.name)
            require(size >= 1, place=f"Parallel.{each.name}", found=size, wanted="at least 1")

    @property
    def world_size(self) -> int:
        """Processes."""
        return prod(getattr(self, each.name) for each in fields(self))

    @property
    def n_row_ranks(self) -> int:
        """Groups of processes among which the rows of a batch are divided."""
        return self.data * self.expert * self.shard

    def __str__(self) -> str:
        """Return what `parse` reads."""
        sizes = {each.name: getattr(self, each.name) for each in fields(self)}
        return ",".join(f"{name}={size}" for name, size in sizes.items() if size > 1)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the value of a text such as `shard=2,tensor=2`; what is left out is 1.

        Raises:
            CommandError: a word is no `NAME=SIZE`, or names nothing here.
        """
        sizes: dict[str, int] = {}
        known = [each.name for each in fields(cls)]
        for word in filter(None, text.split(",")):
            name, _, size = word.strip().partition("=")
            if name not in known or name in sizes or not size.isdecimal() or int(size) < 1:
                raise CommandError(
                    place="--parallel",
                    found=f"{name} twice" if name in sizes else repr(word),
                    wanted=f"NAME=SIZE, each of {', '.join(known)} once, such as shard=2,tensor=2",
                    remedy="" if name in known else closest(name, known),
                )
            sizes[name] = int(size)
        return cls(**sizes)


Checkpointing = Literal["none", "selective", "full"]
"""What a trainer keeps of a block between forward and backward pass.

none: all that the backward pass reads. selective: results of matrix products and of attention; the rest is
computed again. full: only what goes into the block; all of it is computed again.
"""

Device = Literal["cpu", "cuda"]


def _nobody_listens(progress: Progress) -> None:
    """Stand in for a driver in a notebook."""


def _never() -> bool:
    return False


_CHECKED = frozenset({"threads", "micro_batch_tokens", "compile", "device", "parallel", "checkpointing"})
"""Fields of a site by which training is carried out: the others are given by the engine."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where and with what a stage runs; may change its result only by floating-point reassociation."""

    lake: Path
    """Folder of the Iceberg lake: catalog and warehouse."""
    threads: int
    """CPU threads the stage may use, at least 1."""
    fingerprint: str = ""
    """Of the stage being run; empty in a notebook."""
    micro_batch_tokens: int = 16_384
    """Tokens a trainer passes through the model at once; gradients are summed over them."""
    compile: bool = False
    """Whether a trainer uses torch.compile."""
    device: Device = "cpu"
    """Where a trainer computes; with several processes on a machine, each takes the GPU of its local rank."""
    parallel: Parallel = field(default_factory=Parallel)
    """The processes of a training stage."""
    checkpointing: Checkpointing = "none"
    """What a trainer recomputes in the backward pass, to save memory."""
    peak_flops_per_s: Mapping[str, float] = field(default_factory=dict)
    """Of matrix products on this machine with these threads, by precision; empty where nobody measured it."""
    report: Callable[[Progress], None] = _nobody_listens
    stopping: Callable[[], bool] = _never
    """True once the user asked to stop: raise `errors.Stopped` at the next safe place."""
    warm: dict[str, Any] = field(default_factory=dict)
    """Things kept between stages of one worker process, such as a live trainer; never needed for a result."""

    def __post_init__(self) -> None:
        """Refuse what no stage could be carried out with."""
        for name, annotation in field_types(Site).items():
            if name in _CHECKED:
                checked_value(getattr(self, name), annotation, f"Site.{name}")
        for name in ("threads", "micro_batch_tokens"):
            count = getattr(self, name)
            require(count >= 1, place=f"Site.{name}", found=count, wanted="at least 1")


class Run(Protocol):
    """The form of every stage function."""

    def __call__(self, spec: Any, inputs: Mapping[str, Path], output_dir: Path, site: Site) -> None:
        """Read `inputs`, write files below `output_dir`, which exists and is empty."""
