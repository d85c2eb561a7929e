"""What a plan can know about a dataset without reading a document."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelfactory.data.opening import is_compressed
from modelfactory.data.sources import Files
from modelfactory.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from modelfactory.data.dataset import Dataset
    from modelfactory.data.pins import Pin


def check_dataset(dataset: Dataset, pins: Sequence[Pin]) -> None:
    """Find, from the pins of its sources in their order, why no document could remain, or one is too large.

    The id of a file that is a document is the hash in its pin, so the split of plain files is known.

    Raises:
        SourceError: all files are empty, none is in the part of the split, or one is too large.
    """
    for source, pin in zip(dataset.sources, pins, strict=True):
        _refuse_too_large(source, pin)
    plain = all(_is_document_per_file(source, pin) for source, pin in zip(dataset.sources, pins, strict=True))
    if not plain:
        return  # only the stage can know
    files = [file for pin in pins for file in pin.files]
    filled = [file for file in files if file.n_bytes > 0]
    if not filled:
        raise nothing_left(dataset, len(files), {"empty": len(files)})
    if not any(dataset.split.holds(file.sha256) for file in filled):
        raise empty_part(dataset, len(filled))


def _is_document_per_file(source: object, pin: Pin) -> bool:
    readable = isinstance(source, Files) and source.not_utf8 != "replace"
    return readable and not any(is_compressed(file.path) for file in pin.files)


def _refuse_too_large(source: object, pin: Pin) -> None:
    for file in pin.files:
        if not isinstance(source, Files) or is_compressed(file.path):
            continue
        if file.n_bytes > source.max_document_bytes:
            raise too_large(f"{pin.root}/{file.path}", f"{file.n_bytes:,}", source.max_document_bytes)


def too_large(place: str, n_bytes: str, most: int) -> SourceError:
    """Return the error for a document that is larger than its source allows."""
    return SourceError(
        place=place,
        found=f"a document of {n_bytes} bytes",
        wanted=f"at most {most:,} bytes, the source's max_document_bytes",
        remedy="Cut it into several documents, leave it out with `exclude`, or raise max_document_bytes.",
    )


def empty_part(dataset: Dataset, n_read: int) -> SourceError:
    """Return the error for a split of which one part got no document."""
    split = dataset.split
    grow = "Raise held_out_share" if split.part == "held_out" else "Lower held_out_share"
    return SourceError(
        place=f"dataset {dataset.name!r}: split",
        found=f"none of {n_read:,} documents in the part {split.part!r}"
        f" (held_out_share {split.held_out_share:g})",
        wanted="at least one",
        remedy=f"{grow}, give more documents, or another salt.",
    )


def nothing_left(dataset: Dataset, n_read: int, dropped: dict[str, int]) -> SourceError:
    """Return the error for a dataset of which every document was dropped."""
    counts = ", ".join(f"{count:,} {reason}" for reason, count in dropped.items())
    return SourceError(
        place=f"dataset {dataset.name!r}",
        found=f"no document left of {n_read:,} (dropped: {counts or 'none'})",
        wanted="at least one",
        remedy="Loosen the filter that dropped most, or look at the sources.",
    )
