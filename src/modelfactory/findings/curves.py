"""Training and evaluation curves of stored runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from modelfactory.experiment import Experiment
    from modelfactory.store import Store


@dataclass(frozen=True, kw_only=True)
class TrainedStep:
    """One step of a run."""

    step: int
    n_tokens: int
    """Tokens seen up to and with this step."""
    flops: float
    """FLOPs spent up to and with this step."""
    loss: float
    """Nats per token, mean over the valid tokens of the step."""
    lr: float


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """One checkpoint of a run with its results."""

    step: int
    fingerprint: str
    n_tokens: int
    flops: float
    results: Mapping[str, Mapping[str, Any]]
    """Task -> metric facts: value, stderr, n_items; and what the task states of its chance level."""


def trained_steps(experiment: Experiment, roles: Mapping[str, str], store: Store) -> list[TrainedStep]:
    """Return the steps of a run in order, from all of its segments that are stored.

    Steps without a label that counts have no loss, and are left out.

    A segment that continued from a checkpoint between two of this run's own holds only the steps after it;
    those before come from the stage it continued from.
    """
    steps: dict[int, TrainedStep] = {}
    for at in experiment.training.checkpoint_steps:
        for row in _metrics(store.stage_dir(roles[f"train@{at}"]) / "metrics.jsonl"):
            if row["loss"] is None:
                continue
            steps[row["step"]] = TrainedStep(
                step=row["step"],
                n_tokens=row["n_tokens"],
                flops=float(row["flops"]),
                loss=row["loss"],
                lr=row["lr"],
            )
    return [steps[step] for step in sorted(steps)]


def checkpoints(experiment: Experiment, roles: Mapping[str, str], store: Store) -> list[Checkpoint]:
    """Return the stored checkpoints of a run in order, with the results that are there."""
    found = []
    for at in experiment.training.checkpoint_steps:
        fingerprint = roles[f"train@{at}"]
        facts = _json(store.stage_dir(fingerprint) / "model.json")
        if facts is None:
            continue
        results = {
            task.name: {**result["metrics"][task.primary_metric], "chance": result["facts"].get("chance")}
            for task in experiment.evaluations
            if (result := _json(store.stage_dir(roles[f"{task.name}@{at}"]) / "result.json")) is not None
        }
        n_tokens = int(facts["n_tokens_seen"])
        flops = float(n_tokens * facts["flops_per_token"])
        found.append(
            Checkpoint(step=at, fingerprint=fingerprint, n_tokens=n_tokens, flops=flops, results=results)
        )
    return found


def _metrics(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        with path.open(encoding="utf-8") as lines:
            yield from map(json.loads, lines)


def _json(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        return None
    return found
