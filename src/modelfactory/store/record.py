"""What the store knows about a stage, an experiment, and the edges between stages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class Record:
    """One stage as it was carried out: enough to say where its bytes came from and to make them again."""

    fingerprint: str
    """Identity of the stage, 64 hex digits."""
    kind: str
    """documents, tokenizer, tokens, train, evaluate, ..."""
    label: str = ""
    """For people."""
    spec_json: str = "{}"
    """The full spec, fields that are no identity included."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Name of an input -> fingerprint of a stage, or digest of a pin."""
    input_contents: Mapping[str, str] = field(default_factory=dict)
    """Name of an input -> content_sha256 of what was read."""
    resumed_from: str = ""
    """Fingerprint of the stage whose state this one continued; empty when it began at the start."""
    code: Mapping[str, Any] = field(default_factory=dict)
    """Digests of the source that ran."""
    libraries: Mapping[str, str] = field(default_factory=dict)
    """Name of a library -> version."""
    content_sha256: str = ""
    """Content of the stage, observed/ left out; from the manifest."""
    n_bytes: int = 0
    """Bytes on disk; from the manifest."""
    state: Literal["stored", "failed"] = "stored"
    """Whether this tells of a published stage or of a failure."""
    error: str = ""
    """Why it failed."""
    log: str = ""
    """Path of the log."""
    started: float = 0.0
    """Seconds since 1970."""
    seconds: float = 0.0
    """Wall time of the work."""
    attempt: int = 1
    """Counted from 1."""
    host: str = ""
    """Machine that did the work."""
    tokens: int = 0
    """Tokens trained on or read."""
    flops: int = 0
    """Floating-point operations of the work, as accounted by the plan."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values, ready for json.dumps."""
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Record:
        """Rebuild a record; names that this version does not know are left out."""
        return Record(**{name: data[name] for name in NAMES if name in data})


NAMES = tuple(each.name for each in fields(Record))
"""Fields of a record; columns of the database have the same names."""


@dataclass(frozen=True, kw_only=True)
class Edge:
    """`child` was made from `parent`, which it calls `name`."""

    child: str
    name: str
    parent: str
    """Fingerprint of a stage, or digest of a pin."""


@dataclass(frozen=True, kw_only=True)
class NamedExperiment:
    """An experiment and the stages its name stands for."""

    name: str
    file: str
    spec_json: str
    stages: Mapping[str, str]
    """Role -> fingerprint."""
    named: float
    """Seconds since 1970."""


def compact(value: object) -> str:
    """Return JSON without spaces and with sorted names: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
