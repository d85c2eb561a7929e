"""The fields and tensors of a GGUF file, each of the kind it has to be, or refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from modelfactory.errors import SourceError
from modelfactory.interchange.gguf_library import the_library

if TYPE_CHECKING:
    from pathlib import Path

_KINDS: dict[type, str] = {str: "a text", bool: "true or false", int: "a whole number", float: "a number"}
_REMEDY = "It is cut off or damaged: copy it again."


class GgufFile:
    """A file, its header read.

    Raises:
        SourceError: no GGUF file, cut off, or damaged.
        CommandError: the package `gguf` is not installed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            reader = _strict_reader(path)
            self.fields = {name: field.contents() for name, field in reader.fields.items()}
            self.tensors = list(reader.tensors)
        except Exception as error:  # it raises ValueError, IndexError, KeyError, ... as the bytes have it
            n_bytes = path.stat().st_size if path.exists() else 0
            raise SourceError(
                place=str(path),
                found=f"{n_bytes:,} bytes that cannot be read ({type(error).__name__}: {error})",
                wanted="a whole GGUF file",
                remedy=_REMEDY,
            ) from error

    def get(self, name: str, kind: type, default: Any = None) -> Any:
        """Return a field that is a str, bool, int or float; `default` where it is missing."""
        found = self.fields.get(name)
        if found is None:
            return default
        if not _is(found, kind):
            raise self.fault(name, _shown(found), _KINDS[kind])
        return found

    def need(self, name: str, kind: type) -> Any:
        """Return a field that must be there."""
        found = self.get(name, kind)
        if found is None:
            raise self.fault(name, "nothing", f"{_KINDS[kind]}: the model does not follow without it")
        return found

    def listed(self, name: str, kind: type, n: int | None = None) -> list[Any]:
        """Return a field that is a list, which must be there, of `n` items if that is given."""
        found = self.fields.get(name)
        if not isinstance(found, list) or not all(_is(item, kind) for item in found):
            shown = "nothing" if found is None else _shown(found)
            raise self.fault(name, shown, f"a list, each {_KINDS[kind]}")
        if n is not None and len(found) != n:
            raise self.fault(name, f"{len(found):,} items", f"{n:,}, one for each token")
        return found

    def fault(self, name: str, found: str, wanted: str, remedy: str = _REMEDY) -> SourceError:
        """Return the error of a field or tensor."""
        return SourceError(place=f"{self.path}: {name}", found=found, wanted=wanted, remedy=remedy)

    def numbers(self, tensor: Any) -> np.ndarray[Any, Any]:
        """Return the numbers that a tensor stands for, float32, whether it is quantised or not."""
        kind = tensor.tensor_type
        try:
            with np.errstate(all="ignore"):  # numbers that are not finite are refused by name
                values = the_library().quants.dequantize(tensor.data, kind)
        except NotImplementedError as error:
            wanted = "F32, F16, BF16 or a quantised type that the package `gguf` can undo"
            remedy = "Convert it to F16, or take the original folder of safetensors."
            raise self.fault(str(tensor.name), f"the type {kind.name}", wanted, remedy) from error
        return np.array(values, dtype=np.float32)


def _strict_reader(path: Path) -> Any:
    """Return the library's reader, which would else count on beyond the end of a file."""
    gguf = the_library()

    class Strict(gguf.GGUFReader):  # type: ignore[misc, name-defined]
        def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
            end = int(offset) + np.dtype(dtype).itemsize * int(count)
            if not 0 <= int(offset) <= end <= len(self.data):
                message = f"something at byte {int(offset):,}, beyond the end"
                raise ValueError(message)
            return super()._get(offset, dtype, count, override_order)

    with np.errstate(all="ignore"):  # sizes that are too large lie beyond the end
        return Strict(path)


def _is(value: Any, kind: type) -> bool:
    if kind is float:
        return type(value) in (int, float)
    return type(value) is kind


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
