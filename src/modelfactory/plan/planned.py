"""What a plan is made of."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from modelfactory.data import Pin
from modelfactory.experiment import Experiment
from modelfactory.spec import identity_json, to_json
from modelfactory.spec.canonical import dumps

if TYPE_CHECKING:
    from modelfactory.code import Code

State = Literal["stored", "stale", "to run"]


@dataclass(frozen=True, kw_only=True)
class PlannedStage:
    """One stage of a plan; equal work of several experiments is one stage."""

    id: str
    """Fingerprint: 64 hexadecimal digits."""
    kind: str
    """documents, tokenizer, tokens, import, train or evaluate."""
    label: str
    """For people; no identity."""
    run: str
    """The stage function, as `module:name`."""
    version: int
    """Declared version of what the stage function means."""
    spec: Any
    inputs: Mapping[str, str]
    """Name of an input -> fingerprint of the stage that makes it."""
    pins: Mapping[str, str] = field(default_factory=dict)
    """Name of an outside input -> digest of its content."""
    resumes: str = ""
    """Fingerprint of the earlier state that a training stage continues from; no part of its identity."""
    experiments: tuple[str, ...] = ()
    """Names of the experiments that need it."""
    code: Mapping[str, str] = field(default_factory=dict)
    libraries: Mapping[str, str] = field(default_factory=dict)
    state: State = "to run"
    reason: str = ""
    """Why it is stale or to run."""
    waits_on: tuple[str, ...] = ()
    """Inputs that are rebuilt first; equal bytes make this stage stored after all."""
    work: float = 0.0
    """How much there is to do, in the unit of its kind: bytes, FLOPs, or 1 for an evaluation."""
    tokens: int = 0
    """Tokens it trains on."""
    flops: int = 0
    seconds: float = 0.0
    """Estimated wall time of the stage alone."""
    disk_bytes: int = 0
    """Estimated size of what it makes."""

    @cached_property
    def spec_json(self) -> dict[str, Any]:
        """The full spec as JSON data."""
        found: dict[str, Any] = to_json(self.spec)
        return found

    def parents(self) -> tuple[str, ...]:
        """Stages that must be there first."""
        return (*self.inputs.values(), *((self.resumes,) if self.resumes else ()))


@dataclass(frozen=True, kw_only=True)
class Totals:
    """What a plan costs."""

    tokens_requested: int
    """Tokens the experiments ask for, each counted alone."""
    tokens_to_train: int
    """Tokens that are left to train once shared and stored work is taken off."""
    flops_requested: int
    flops_to_train: int
    seconds: float
    """Estimated wall time with the jobs given."""
    seconds_measured: bool
    """Whether stages of about these sizes have all run on this machine."""
    disk_bytes: int
    """Estimated bytes the stages to run will take."""
    memory_bytes: int = 0
    """Estimated memory of a process of the training stage to run that takes most: what tensors hold, without
    Python, libraries, and what an allocator keeps of freed memory; 0 if there is none."""
    n_processes: int = 1
    """Processes of each training stage."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Stages in an order in which each comes after what it needs."""

    stages: tuple[PlannedStage, ...]
    totals: Totals
    pins: Mapping[str, Pin]
    """Digest -> pinned source; written to the workspace before work starts."""
    experiments: tuple[Experiment, ...]
    roles: Mapping[str, Mapping[str, str]]
    """Experiment name -> role (such as `train@200`) -> fingerprint."""
    assumptions: tuple[str, ...] = ()
    """Throughputs that were not measured yet, in words."""

    def stage(self, fingerprint: str) -> PlannedStage:
        """Return one stage."""
        return self._by_id[fingerprint]

    @cached_property
    def _by_id(self) -> dict[str, PlannedStage]:
        return {stage.id: stage for stage in self.stages}

    def count(self, state: State) -> int:
        """Return how many stages are in a state."""
        return sum(stage.state == state for stage in self.stages)


def stage_id(kind: str, version: int, spec: Any, inputs: Mapping[str, str]) -> str:
    """Return the fingerprint of a stage: its sub-spec, its inputs, and the declared version of its code."""
    named = (
        f'{{"inputs":{dumps(dict(inputs))},"kind":"{kind}","spec":{identity_json(spec)},"version":{version}}}'
    )
    return hashlib.sha256(named.encode("utf-8")).hexdigest()


def traced(code: Code) -> dict[str, Mapping[str, str]]:
    """Return the two fields of a planned stage that say which code it runs."""
    return {"code": code.definitions, "libraries": code.libraries}
