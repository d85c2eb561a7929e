"""Pinned files to documents, in order of file and position."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

import pyarrow as pa

from modelfactory.data.chats import canonical
from modelfactory.data.checks import too_large
from modelfactory.data.documents import NO_TEXT, NOT_UTF8, Document
from modelfactory.data.opening import not_utf8, require_utf8, verified
from modelfactory.data.sources import Chats, Files, Jsonl
from modelfactory.errors import SourceError, closest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from modelfactory.data.pins import Pin, PinnedFile
    from modelfactory.data.sources import Parquet, Source


def read_files(source: Source, pin: Pin, name: str) -> Iterator[tuple[PinnedFile, Iterator[Document]]]:
    """Yield every pinned file with its documents, read while they are asked for.

    Args:
        source: How to read the files.
        pin: Which files, with the bytes they must have.
        name: Goes into the column `source`.
    """
    for file in pin.files:
        yield file, _read_file(source, Path(pin.root) / file.path, file, name)


def _read_file(source: Source, path: Path, file: PinnedFile, name: str) -> Iterator[Document]:
    with verified(path, file.sha256) as stream:
        if isinstance(source, Files):
            yield _whole(_bounded(stream.read, source, str(path)), source, path, name, file.path)
        elif isinstance(source, Jsonl | Chats):
            yield from _lines(stream, source, path, name, file.path)
        else:
            yield from _rows(stream, source, path, name, file.path)


def _bounded(read: Callable[[int], bytes], source: Source, place: str) -> bytes:
    """Read one document; no more than one byte beyond its limit is ever held."""
    content = read(source.max_document_bytes + 1)
    if len(content) > source.max_document_bytes:
        most = source.max_document_bytes
        raise too_large(place, f"more than {most:,}", most)
    return content


def _whole(content: bytes, source: Files, path: Path, name: str, relative: str) -> Document:
    text, flaw = _decoded(content, source, path, 0)
    return Document(name, relative, text, flaw)


def _decoded(content: bytes, source: Files | Jsonl | Chats, path: Path, offset: int) -> tuple[str, str]:
    """Return text and flaw, by the policy of the source."""
    try:
        return content.decode("utf-8"), ""
    except UnicodeDecodeError:
        if source.not_utf8 == "refuse":
            require_utf8(content, path, offset)
        return content.decode("utf-8", errors="replace"), NOT_UTF8 if source.not_utf8 == "drop" else ""


def _lines(
    stream: IO[bytes], source: Jsonl | Chats, path: Path, name: str, relative: str
) -> Iterator[Document]:
    offset = 0
    for number in itertools.count(1):
        raw = _bounded(stream.readline, source, f"{path}, line {number:,}")
        if not raw:
            return
        content = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
        if content.strip():
            line = _Line(source=source, path=path, number=number, offset=offset + len(raw) - len(content))
            text, flaw = line.document(content)
            yield Document(name, f"{relative}#{number}", text, flaw)
        offset += len(raw)


class _Line(NamedTuple):
    """Where in a file of JSON lines we are, for errors."""

    source: Jsonl | Chats
    path: Path
    number: int
    offset: int
    """Of the first byte of the line in the decompressed file."""

    def document(self, content: bytes) -> tuple[str, str]:
        """Return text and flaw of one line."""
        decoded, flaw = _decoded(content, self.source, self.path, self.offset)
        try:
            text = self._text(decoded)
        except SourceError:
            if flaw:  # bytes that are no UTF-8 may have broken the JSON as well
                return decoded, flaw
            raise
        if text is None:
            return "", flaw or NO_TEXT
        return self._without_surrogates(text, flaw)

    def _text(self, decoded: str) -> str | None:
        try:
            value = json.loads(decoded)
        except (ValueError, RecursionError) as error:
            raise self._error(f"no JSON ({error})", "one JSON object on each line") from None
        if not isinstance(value, dict):
            raise self._error(f"a JSON {type(value).__name__}", "a JSON object")
        if isinstance(self.source, Chats):
            return canonical(value, self._error)
        field = self.source.text_field
        if field not in value:
            raise self._error("an object without it", f"the field {field!r}", closest(field, map(str, value)))
        text = value[field]
        if text is None or isinstance(text, str):
            return text
        raise self._error(f"a {type(text).__name__} in {field!r}", "a string")

    def _without_surrogates(self, text: str, flaw: str) -> tuple[str, str]:
        r"""Apply the policy to `\ud800` and its like: JSON can write them, UTF-8 cannot."""
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            if self.source.not_utf8 == "refuse":
                shown = f"a lone surrogate {error.object[error.start]!a} in the line"
                raise not_utf8(self.path, self.offset, shown) from None
            replaced = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            return replaced, flaw or (NOT_UTF8 if self.source.not_utf8 == "drop" else "")
        return text, flaw

    def _error(self, found: str, wanted: str, remedy: str = "") -> SourceError:
        place = f"{self.path}, line {self.number:,}"
        return SourceError(place=place, found=found, wanted=wanted, remedy=remedy or "Mend the file.")


def _rows(stream: IO[bytes], source: Parquet, path: Path, name: str, relative: str) -> Iterator[Document]:
    import pyarrow.parquet as pq

    text_field, most = source.text_field, source.max_document_bytes
    try:
        parquet = pq.ParquetFile(stream)
        _require_strings(parquet.schema_arrow, text_field, path)
        number = 0
        for batch in parquet.iter_batches(batch_size=1024, columns=[text_field]):
            for text in batch.column(0).to_pylist():
                number += 1
                if text is not None and len(text) * 4 > most and len(text.encode()) > most:
                    raise too_large(f"{path}, row {number:,}", f"{len(text.encode()):,}", most)
                yield Document(name, f"{relative}#{number}", text or "", NO_TEXT if text is None else "")
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        raise SourceError(
            place=str(path),
            found=f"no readable Parquet ({error})",
            wanted="a whole Parquet file with text in UTF-8",
            remedy="Write it again, or leave it out with `exclude`.",
        ) from error


def _require_strings(schema: pa.Schema, text_field: str, path: Path) -> None:
    if text_field not in schema.names:
        raise SourceError(
            place=str(path),
            found="no such column",
            wanted=f"the column {text_field!r}",
            remedy=closest(text_field, schema.names),
        )
    kind = schema.field(text_field).type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        raise SourceError(
            place=str(path),
            found=f"the column {text_field!r} of type {kind}",
            wanted="a column of strings",
            remedy="Name another column as text_field.",
        )
