"""What a stage is told: where it runs, never what it makes.

A stage is a plain call `run(spec, inputs, output_dir, site)`; this file holds the type of `site`. It can be
built by hand, so a stage can be run from a notebook without the factory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

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


def _nobody_listens(progress: Progress) -> None:
    """Stand in for a driver in a notebook."""


def _never() -> bool:
    return False


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
    report: Callable[[Progress], None] = _nobody_listens
    stopping: Callable[[], bool] = _never
    """True once the user asked to stop: raise `errors.Stopped` at the next safe place."""
    warm: dict[str, Any] = field(default_factory=dict)
    """Things kept between stages of one worker process, such as a live trainer; never needed for a result."""


class Run(Protocol):
    """The form of every stage function."""

    def __call__(self, spec: Any, inputs: Mapping[str, Path], output_dir: Path, site: Site) -> None:
        """Read `inputs`, write files below `output_dir`, which exists and is empty."""
