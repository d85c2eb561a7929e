"""Items from documents, spread over as many documents as there are."""

from __future__ import annotations

from collections import Counter
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

from modelfactory.evaluate.documents import MAX_SAMPLED, Document, sample
from modelfactory.evaluate.python_source import PythonSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


class Found(NamedTuple):
    """What a document gives."""

    document: Document
    source: PythonSource
    candidates: Sequence[Any]
    """In the order in which they are to be taken."""


class Sampled(NamedTuple):
    """Documents with candidates, and what became of the others."""

    found: list[Found]
    skipped: dict[str, int]
    n_documents: int


def candidates_of(
    documents: Iterable[Document],
    n_items: int,
    seed: str,
    candidates: Callable[[Document, PythonSource], Sequence[Any]],
) -> Sampled:
    """Take documents in an order by hash until `n_items` of them have a candidate."""
    sampled = sample(documents, MAX_SAMPLED, seed)
    found: list[Found] = []
    skipped: Counter[str] = Counter()
    n_looked_at = 0
    for document in sampled:
        if len(found) == n_items:
            break
        n_looked_at += 1
        source = PythonSource.of(document.text)
        if isinstance(source, str):
            skipped[source] += 1
        elif listed := candidates(document, source):
            found.append(Found(document, source, listed))
        else:
            skipped["without anything to ask about"] += 1
    return Sampled(found, dict(sorted(skipped.items())), n_looked_at)


def in_rounds(found: Sequence[Found]) -> Iterator[tuple[Found, Any]]:
    """Yield the first candidate of every document, then the second of those that have one, and so on."""
    nothing = object()
    rounds = zip_longest(*(each.candidates for each in found), fillvalue=nothing)
    for taken in rounds:
        for each, candidate in zip(found, taken, strict=True):
            if candidate is not nothing:
                yield each, candidate
