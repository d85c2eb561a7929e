"""The Dataset value: which documents of which sources are kept."""

from __future__ import annotations

from dataclasses import dataclass, field

from modelfactory.data.chats import check_sources
from modelfactory.data.dedup import ExactDedup
from modelfactory.data.filters import Filter
from modelfactory.data.sources import Source
from modelfactory.data.split import Split
from modelfactory.spec import check_types, require


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Documents of some sources: one part of a split, filtered, then deduplicated, each in declared order.

    What comes first decides: a document is counted under the first reason it is dropped for, and of equal
    documents the first in order of source, file and position survives.
    """

    name: str = field(metadata={"identity": False})
    """A label for people."""
    sources: tuple[Source, ...]
    filters: tuple[Filter, ...] = ()
    dedup: tuple[ExactDedup, ...] = ()
    split: Split

    def __post_init__(self) -> None:
        """Check types, and that there is a source."""
        check_types(self)
        require(self.name != "", place="Dataset.name", found=self.name, wanted="a name")
        require(len(self.sources) > 0, place="Dataset.sources", found=self.sources, wanted="at least one")
        require(
            len(set(self.sources)) == len(self.sources),
            place="Dataset.sources",
            found=self.sources,
            wanted="every source once",
            remedy="To weigh documents, give a Mixture several parts.",
        )
        check_sources(self.sources)


__all__ = ["Dataset", "Source"]
