"""Documents: where they come from, which are kept, and the lake they lie in.

A document is a text with the source and path it came from; its id is the SHA-256 of its text in UTF-8. What
is kept of which sources is a `Dataset`; the stage in `data.stage` makes it real, and `read_documents` reads
it back.
"""

from modelfactory.data import lake
from modelfactory.data.chats import holds_chats
from modelfactory.data.checks import check_dataset
from modelfactory.data.dataset import Dataset, Source
from modelfactory.data.dedup import ExactDedup
from modelfactory.data.filters import (
    Filter,
    Keep,
    MaxLength,
    MaxLineLength,
    MinAlphanumeric,
    MinLength,
)
from modelfactory.data.pins import MemoryCache, Pin, PinCache, PinnedFile, pin, pin_file
from modelfactory.data.reading import read_documents
from modelfactory.data.sources import Chats, Files, Jsonl, Parquet, python_standard_library
from modelfactory.data.split import Split

__all__ = [
    "Chats",
    "Dataset",
    "ExactDedup",
    "Files",
    "Filter",
    "Jsonl",
    "Keep",
    "MaxLength",
    "MaxLineLength",
    "MemoryCache",
    "MinAlphanumeric",
    "MinLength",
    "Parquet",
    "Pin",
    "PinCache",
    "PinnedFile",
    "Source",
    "Split",
    "check_dataset",
    "holds_chats",
    "lake",
    "pin",
    "pin_file",
    "python_standard_library",
    "read_documents",
]
