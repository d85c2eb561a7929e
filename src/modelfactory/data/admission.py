"""From pinned sources to the documents that pass: split, flaws, filters."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from modelfactory.data.documents import batches
from modelfactory.data.readers import read_files
from modelfactory.errors import Stopped
from modelfactory.stage import Progress

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from modelfactory.data.dataset import Dataset
    from modelfactory.data.documents import Document
    from modelfactory.data.drops import Drops
    from modelfactory.data.pins import Pin
    from modelfactory.stage import Site


@dataclass(kw_only=True)
class Tally:
    """Documents met so far."""

    n_read: int = 0
    n_in_part: int = 0
    n_bytes_in_part: int = 0
    by_source: Counter[str] = field(default_factory=Counter)
    """Those in the part of the split."""
    file_bytes: int = 0
    """Of the files that were read to their end, as they lie on disk."""


def admitted(
    dataset: Dataset, pins: Sequence[Pin], *, tally: Tally, drops: Drops, site: Site
) -> Iterator[pa.Table]:
    """Yield the documents of one part of the split that have no flaw and pass every filter.

    Raises:
        SourceError: a file is not the one that was planned, or cannot be read as its source declares.
        StageFailed: a filter function of the author failed.
        Stopped: the user asked to stop.
    """
    total = sum(pin.n_bytes for pin in pins)
    for batch in batches(_read(dataset, pins, tally)):
        if site.stopping():
            raise Stopped("stopped between two batches of documents")
        mine = _in_part(dataset, batch, tally)
        sound = _without_flaws(mine, drops)
        passed = _filtered(dataset, sound, drops)
        if passed.num_rows:
            yield passed
        seen = {"documents": float(tally.n_in_part)}
        site.report(Progress(done=tally.file_bytes, total=total, unit="bytes", metrics=seen))


def _read(dataset: Dataset, pins: Sequence[Pin], tally: Tally) -> Iterator[Document]:
    for n, (source, pin) in enumerate(zip(dataset.sources, pins, strict=True)):
        for file, documents in read_files(source, pin, f"source{n}"):
            yield from documents
            tally.file_bytes += file.n_bytes


def _in_part(dataset: Dataset, batch: pa.Table, tally: Tally) -> pa.Table:
    """Split before anything is dropped, so that every document counts in exactly one part."""
    mine = batch.filter(pa.array(map(dataset.split.holds, batch["document_id"].to_pylist()), pa.bool_()))
    tally.n_read += batch.num_rows
    tally.n_in_part += mine.num_rows
    tally.n_bytes_in_part += sum(mine["n_bytes"].to_pylist())
    tally.by_source.update(mine["source"].to_pylist())
    return mine


def _without_flaws(batch: pa.Table, drops: Drops) -> pa.Table:
    for flaw in sorted(set(batch["flaw"].to_pylist()) - {""}):
        drops.add(batch.filter(pc.equal(batch["flaw"], flaw)), flaw)
    return batch.filter(pc.equal(batch["flaw"], "")).drop_columns(["flaw"])


def _filtered(dataset: Dataset, batch: pa.Table, drops: Drops) -> pa.Table:
    for condition in dataset.filters:
        if not batch.num_rows:
            break
        kept = condition.keeps(batch)
        drops.add(batch.filter(pc.invert(kept)), condition.reason)
        batch = batch.filter(kept)
    return batch
