"""Which held-out documents a task asks about."""

from __future__ import annotations

import hashlib
import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

from modelfactory.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

MAX_SAMPLED = 4_096
"""Documents that items are made from at most; what is held in memory of a larger dataset."""


@dataclass(frozen=True, slots=True)
class Document:
    """A held-out document."""

    document_id: str
    """SHA-256 of its text."""
    text: str
    path: str
    """For people."""


def held_out(documents_dir: Path, lake: Path) -> Iterator[Document]:
    """Read the documents of a documents stage."""
    from modelfactory.data import read_documents

    for batch in read_documents(documents_dir, lake, ["document_id", "text", "path"]):
        for row in zip(*(batch.column(n).to_pylist() for n in range(3)), strict=True):
            yield Document(*row)


def sample(documents: Iterable[Document], n: int, seed: str) -> list[Document]:
    """Return `n` documents at most, in the order of the SHA-256 of `seed` and their id.

    So the sample does not depend on the order of `documents`, and one that is added later displaces at most
    one other. A text that occurs several times is taken once, under the first of its paths.
    """
    by_id: dict[str, Document] = {}
    limit = max(2 * n, n + 1_024)
    for document in documents:
        known = by_id.get(document.document_id)
        if known is None or document.path < known.path:
            by_id[document.document_id] = document
        if len(by_id) > limit:
            by_id = {found.document_id: found for found in _smallest(by_id.values(), n, seed)}
    return _smallest(by_id.values(), n, seed)


def _smallest(documents: Iterable[Document], n: int, seed: str) -> list[Document]:
    return heapq.nsmallest(n, documents, key=lambda document: order(seed, document.document_id))


def order(*parts: object) -> str:
    """Return the SHA-256 of `parts`, by which things are put into an order that means nothing."""
    return hashlib.sha256("\n".join(map(str, parts)).encode("utf-8", "surrogatepass")).hexdigest()


def require_items(
    n_found: int, n_wanted: int, *, place: str, what: str, n_documents: int, skipped: Mapping[str, int]
) -> None:
    """Raise SourceError unless there are enough items, saying how many there were."""
    if n_found >= n_wanted:
        return
    why = "; ".join(f"{count} {reason}" for reason, count in skipped.items())
    raise SourceError(
        place=place,
        found=f"{n_found} {what} in {n_documents} held-out documents" + (f" (skipped: {why})" if why else ""),
        wanted=f"at least {n_wanted}",
        remedy="Hold out more documents"
        + (f", or ask for {n_found} at most." if n_found else ": a larger held_out_share, more sources."),
    )
