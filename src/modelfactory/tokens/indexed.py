r"""Megatron's indexed format: `tokens.bin` and `tokens.idx`.

`.bin` is every token after another, little-endian. `.idx`, also little-endian:

| bytes | what |
|---|---|
| 9 | `MMIDIDX\0\0` |
| 8 | version, unsigned: 1 |
| 1 | dtype of the tokens: 8 is uint16, 4 is int32 (Megatron's other codes are refused) |
| 8 | n_sequences, unsigned |
| 8 | n_document_indices, unsigned: n_documents + 1 |
| 4 x n_sequences | tokens in each sequence, int32 |
| 8 x n_sequences | byte in `.bin` at which each sequence starts, int64 |
| 8 x n_document_indices | number of the first sequence of each document, then n_sequences, int64 |

We write one sequence for each document. Files of others, whose documents have several sequences, are read.
"""

from __future__ import annotations

import struct
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from modelfactory.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from types import TracebackType


Tokens = NDArray[np.uint16] | NDArray[np.int32]

Dtype = np.dtype[np.uint16] | np.dtype[np.int32]

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
_HEADER = struct.Struct("<9sQBQQ")
_CODES: dict[int, Dtype] = {8: np.dtype("<u2"), 4: np.dtype("<i4")}
_CHUNK = 1 << 18
"""Documents whose index entries are in memory at once while an index is written."""
MAX_SEQUENCE = 2**31 - 1


def token_dtype(vocab_size: int) -> Dtype:
    """Return uint16 where every token of the vocabulary fits, else int32."""
    return np.dtype("<u2") if vocab_size <= 2**16 else np.dtype("<i4")


class IndexedWriter:
    """Write documents one after another; memory does not grow with their number.

    Use as a context manager. The index is written at the end, so files of a writer that failed have none.
    """

    def __init__(self, prefix: Path, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.dtype = token_dtype(vocab_size)
        self.n_tokens = 0
        self.n_documents = 0
        self._index_path = prefix.with_name(prefix.name + ".idx")
        self._bin: BinaryIO = prefix.with_name(prefix.name + ".bin").open("wb")
        self._lengths: BinaryIO = tempfile.TemporaryFile(dir=prefix.parent)  # noqa: SIM115 - closed by us

    def __enter__(self) -> Self:
        """Return the writer."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write the index unless the block failed; close the files in any case."""
        with self._bin, self._lengths:
            if error is None:
                self._write_index()

    def add(self, documents: Sequence[Sequence[int] | NDArray[np.int32]]) -> None:
        """Append documents, each a sequence of token ids below the vocabulary size."""
        lengths = np.array([len(document) for document in documents], dtype="<i8")
        if len(lengths) and lengths.max() > MAX_SEQUENCE:
            raise SourceError(
                place=f"document {self.n_documents + int(lengths.argmax())}",
                found=f"{lengths.max()} tokens",
                wanted=f"at most {MAX_SEQUENCE}, the most that the shard format can say",
                remedy="Split the document or drop it with data.MaxLength.",
            )
        for document in documents:
            ids = np.asarray(document, dtype=np.int32)
            assert ids.max(initial=0) < self.vocab_size, "a token outside the vocabulary"
            self._bin.write(ids.astype(self.dtype).data)
        self._lengths.write(lengths.astype("<i4").tobytes())
        self.n_tokens += int(lengths.sum())
        self.n_documents += len(documents)

    def _write_index(self) -> None:
        code = next(code for code, dtype in _CODES.items() if dtype == self.dtype)
        with self._index_path.open("wb") as index:
            index.write(_HEADER.pack(MAGIC, VERSION, code, self.n_documents, self.n_documents + 1))
            for lengths in self._stored_lengths():
                index.write(lengths.tobytes())
            start = 0
            for lengths in self._stored_lengths():
                ends = start + np.cumsum(lengths, dtype="<i8") * self.dtype.itemsize
                index.write((ends - lengths.astype("<i8") * self.dtype.itemsize).tobytes())
                start = int(ends[-1])
            for first in range(0, self.n_documents + 1, _CHUNK):
                index.write(
                    np.arange(first, min(first + _CHUNK, self.n_documents + 1), dtype="<i8").tobytes()
                )

    def _stored_lengths(self) -> Iterator[NDArray[np.int32]]:
        self._lengths.seek(0)
        while block := self._lengths.read(4 * _CHUNK):
            yield np.frombuffer(block, dtype="<i4")


@dataclass(frozen=True, kw_only=True)
class Indexed:
    """An opened pair of `.bin` and `.idx`; memory-mapped, nothing is loaded."""

    tokens: Tokens
    """All of them, in one dimension."""
    document_starts: NDArray[np.int64]
    """Token at which each document starts, then the number of tokens; n_documents + 1 values."""


def open_indexed(prefix: Path) -> Indexed:
    """Map `prefix`.bin and `prefix`.idx.

    Raises:
        SourceError: a file is missing, cut off, not of this format, or the two do not belong together.
    """
    index_path = prefix.with_name(prefix.name + ".idx")
    bin_path = prefix.with_name(prefix.name + ".bin")
    dtype, lengths, pointers, documents = _read_index(index_path)
    n_tokens = int(lengths.sum(dtype=np.int64))
    _check(bin_path.is_file(), bin_path, "no file", "the tokens that belong to the index")
    n_bytes = bin_path.stat().st_size
    wanted = n_tokens * dtype.itemsize
    _check(n_bytes == wanted, bin_path, f"{n_bytes} bytes", f"{wanted} bytes, as its index says")
    starts = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, dtype=np.int64, out=starts[1:])
    adjoining = np.array_equal(pointers, starts[:-1] * dtype.itemsize)
    _check(adjoining, index_path, "sequences that overlap or leave gaps", "each to start where the last ends")
    tokens = np.memmap(bin_path, dtype=dtype, mode="r") if n_tokens else np.zeros(0, dtype=dtype)
    return Indexed(tokens=tokens, document_starts=starts[documents])


def _read_index(
    path: Path,
) -> tuple[Dtype, NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
    _check(path.is_file(), path, "no file", "a Megatron index")
    n_bytes = path.stat().st_size
    with path.open("rb") as file:
        header = file.read(_HEADER.size)
    _check(len(header) == _HEADER.size, path, f"{n_bytes} bytes", f"at least {_HEADER.size}")
    magic, version, code, n_sequences, n_indices = _HEADER.unpack(header)
    _check(magic == MAGIC, path, f"a file that starts with {magic!r}", f"{MAGIC!r}")
    _check(version == VERSION, path, f"version {version}", f"version {VERSION}")
    _check(code in _CODES, path, f"dtype code {code}", "8 (uint16) or 4 (int32)")
    wanted = _HEADER.size + 12 * n_sequences + 8 * n_indices
    _check(n_bytes == wanted, path, f"{n_bytes} bytes", f"{wanted}, as its header says")
    lengths = np.fromfile(path, dtype="<i4", count=n_sequences, offset=_HEADER.size)
    pointers = np.fromfile(path, dtype="<i8", count=n_sequences, offset=_HEADER.size + 4 * n_sequences)
    documents = np.fromfile(path, dtype="<i8", count=n_indices, offset=_HEADER.size + 12 * n_sequences)
    _check(bool((lengths >= 0).all()), path, "a negative sequence length", "lengths from 0")
    bounded = n_indices > 0 and documents[0] == 0 and documents[-1] == n_sequences
    rising = bool(bounded) and bool((np.diff(documents) >= 0).all())
    _check(rising, path, "document indices out of order", f"rising from 0 to {n_sequences}")
    return _CODES[code], lengths, pointers, documents


def _check(holds: bool, path: Path, found: str, wanted: str) -> None:
    if not holds:
        remedy = "It is damaged or no shard; build the tokens stage again (`factory doctor` finds such)."
        raise SourceError(place=str(path), found=found, wanted=wanted, remedy=remedy)
