"""What was dropped: counts by reason, and samples for a person to look at."""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pathlib import Path

SAMPLES = 20
"""Kept of each reason."""
SAMPLE_CHARACTERS = 300

SCHEMA = pa.schema(
    [
        pa.field("reason", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("n_bytes", pa.int64(), nullable=False),
        pa.field("sample", pa.string(), nullable=False),
    ]
)


@dataclass(kw_only=True)
class Drops:
    """Counts and samples while a stage runs.

    The samples of a reason are the documents whose source and path have the smallest hashes: a uniform draw
    that does not depend on the order in which documents come.
    """

    counts: Counter[str] = field(default_factory=Counter)
    n_bytes: Counter[str] = field(default_factory=Counter)
    units: Counter[str] = field(default_factory=Counter)
    """Paragraphs and lines removed from documents."""
    unit_bytes: Counter[str] = field(default_factory=Counter)
    samples: dict[str, list[tuple[int, dict[str, Any]]]] = field(default_factory=dict)
    """By reason, a heap of the smallest draws; the draw is negated, so that the largest is on top."""

    def add(self, documents: pa.Table, reason: str) -> None:
        """Count documents, which may be none, as dropped for `reason`."""
        if documents.num_rows == 0:
            return
        self.counts[reason] += documents.num_rows
        heap = self.samples.setdefault(reason, [])
        places = zip(*(documents[name].to_pylist() for name in ("source", "path", "n_bytes")), strict=True)
        for n, (source, path, n_bytes) in enumerate(places):
            self.n_bytes[reason] += n_bytes
            draw = -int.from_bytes(hashlib.sha256(f"{source}\0{path}".encode()).digest())
            if len(heap) < SAMPLES or draw > heap[0][0]:
                sample = documents["text"][n].as_py()[:SAMPLE_CHARACTERS]
                row = {"reason": reason, "source": source, "path": path, "n_bytes": n_bytes, "sample": sample}
                (heapq.heappush if len(heap) < SAMPLES else heapq.heapreplace)(heap, (draw, row))

    def add_units(self, unit: str, count: int, n_bytes: int) -> None:
        """Count paragraphs or lines removed from a document, and the bytes it lost."""
        self.units[unit] += count
        self.unit_bytes[unit] += n_bytes

    def by_reason(self) -> dict[str, dict[str, int]]:
        """Return documents and bytes by reason, the most frequent first."""
        ordered = sorted(self.counts.items(), key=lambda item: (-item[1], item[0]))
        return {reason: {"n_documents": count, "n_bytes": self.n_bytes[reason]} for reason, count in ordered}

    def write_samples(self, path: Path) -> None:
        """Write the samples as Parquet, sorted by reason, source and path."""
        import pyarrow.parquet as pq

        rows = [row for heap in self.samples.values() for _, row in heap]
        rows.sort(key=lambda row: (row["reason"], row["source"], row["path"]))
        pq.write_table(pa.Table.from_pylist(rows, SCHEMA), path)
