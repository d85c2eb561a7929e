"""What a plan's comparisons will be able to see, told before anything runs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from modelfactory.experiment import variant_name
from modelfactory.findings.outcomes import measures_of, stored_table
from modelfactory.verdict import Outcomes, ReplicateNoise, planned_difference, replicate_noise
from modelfactory.verdict.words import count_text, difference_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from modelfactory.experiment import Comparison, Experiment
    from modelfactory.store import Record, Store
    from modelfactory.verdict import Measure

POWER = 0.8
OF_THE_MODEL = ("checkpoint", "tokenizer")
"""Inputs of an evaluation that may differ between runs whose items are the same."""


@dataclass(frozen=True, kw_only=True)
class DesignPower:
    """The difference that the comparisons of a study will see on one task."""

    task: str
    """Name of the task."""
    difference: float | None
    """Seen with 80 % power, in the metric's own unit; None where it is not known or none can be."""
    n_seeds: int
    """Paired seeds of the comparison that has the fewest."""
    n_comparisons: int
    """Comparisons corrected for, over all tasks."""
    sentence: str
    """In words, with where the noise is known from."""


def design_power(
    experiments: Sequence[Experiment],
    comparisons: Sequence[Comparison],
    roles: Mapping[str, Mapping[str, str]],
    inputs: Mapping[str, tuple[Any, Mapping[str, str]]],
    store: Store | None,
) -> list[DesignPower]:
    """Return what the comparisons will see on each task, by noise from stored runs of the same task.

    Args:
        experiments: of the study.
        comparisons: that it asks for; without any there is nothing to see.
        roles: experiment -> role -> fingerprint, as a plan has them.
        inputs: fingerprint of an evaluation -> its spec as JSON, and its inputs and pins.
        store: None where there is no workspace yet.
    """
    if not comparisons:
        return []
    seeds: dict[str, list[int]] = {}
    for experiment in experiments:
        seeds.setdefault(experiment.variant, []).append(experiment.training.seed)
    n_paired = min(len(set(seeds[pair.baseline]) & set(seeds[pair.variant])) for pair in comparisons)
    measures = measures_of(experiments)
    n = len(comparisons) * len(measures)
    found = []
    for measure in measures:
        planned = [
            inputs[known[role]]
            for known in roles.values()
            for role in known
            if role.startswith(f"{measure.task}@") and known[role] in inputs
        ]
        noise = _noise(measure, planned, store)
        seen = None
        if noise is not None:
            seen = planned_difference(noise, seeds, n_paired=n_paired, n_comparisons=n, power=POWER)
        said = _sentence(measure, noise, seen, n_paired, n)
        found.append(
            DesignPower(task=measure.task, difference=seen, n_seeds=n_paired, n_comparisons=n, sentence=said)
        )
    return found


def _noise(
    measure: Measure, planned: Sequence[tuple[Any, Mapping[str, str]]], store: Store | None
) -> ReplicateNoise | None:
    if store is None or not planned:
        return None
    tables = list(_tables(measure, planned[0], store))
    return replicate_noise(Outcomes.concatenate(tables), measure) if tables else None


def _tables(measure: Measure, planned: tuple[Any, Mapping[str, str]], store: Store) -> Iterator[Outcomes]:
    """Yield the last stored evaluation of each run in the store that answered the same items."""
    for named in store.experiments():
        records = store.states(named.stages.values())
        steps = {
            int(role.rpartition("@")[2]): records[fingerprint]
            for role, fingerprint in named.stages.items()
            if role.startswith(f"{measure.task}@") and fingerprint in records
        }
        spec = json.loads(named.spec_json)
        if steps and _same_task(steps[max(steps)], planned):
            yield stored_table(
                measure,
                store.stage_dir(steps[max(steps)].fingerprint),
                variant=variant_name(named.name),
                seed=spec["training"]["seed"],
                step=max(steps),
            )


def _same_task(record: Record, planned: tuple[Any, Mapping[str, str]]) -> bool:
    """Return whether an evaluation asked the items that the plan will ask: same spec, documents and pins."""
    spec, inputs = planned
    return json.loads(record.spec_json) == spec and _of_items(record.inputs) == _of_items(inputs)


def _of_items(inputs: Mapping[str, str]) -> dict[str, str]:
    """Return the inputs that items are made from: all but those of the model that is asked."""
    return {name: made for name, made in inputs.items() if name not in OF_THE_MODEL}


def _sentence(
    measure: Measure, noise: ReplicateNoise | None, seen: float | None, n_paired: int, n: int
) -> str:
    if n_paired == 0:
        return f"{measure.task}: this design can see no difference: two variants compared share no seed"
    if noise is None:
        return (
            f"{measure.task}: what difference this design can see is unknown: "
            "no variant is stored with two seeds of this task"
        )
    if noise.never_varied:
        return (
            f"{measure.task}: what difference this design can see is unknown: "
            f"the {noise.n_runs} stored runs of this task came out all alike"
        )
    if seen is None:
        return (
            f"{measure.task}: this design can see no difference: with one seed of each variant, "
            "or one independent item, its noise stays unknown"
        )
    paired = count_text(n_paired, "paired seed")
    corrected = f", corrected for {n} comparisons" if n > 1 else ""
    known = f"noise from {noise.n_runs} stored runs, with replicates of {', '.join(noise.variants)}"
    items = "" if noise.item_variance is not None else "; noise between items unknown and left out"
    difference = difference_text(seen, measure, seen, sign=False)
    return (
        f"{measure.task}: this design can see a difference of {difference} "
        f"at {100 * POWER:g} % power ({paired}{corrected}; {known}{items})"
    )
