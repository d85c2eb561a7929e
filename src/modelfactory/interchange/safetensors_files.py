"""Weights in safetensors files: one, or several with an index."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

from modelfactory.errors import SourceError, listed
from modelfactory.interchange.config import read_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType

    import torch

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")
FLOATS = ("F32", "F16", "BF16")
MAX_SHARD_BYTES = 5_000_000_000
"""As transformers has it."""


class SafetensorsFolder:
    """The tensors of a folder by name; a tensor is read when it is asked for. Use it as a context."""

    def __init__(self, folder: Path) -> None:
        """Open the files.

        Raises:
            SourceError: none there, pickled ones in their place, one that is cut off, or an index that does
                not fit.
        """
        self._stack = ExitStack()
        self._files: dict[str, Any] = {}
        self._places: dict[str, Path] = {}
        try:
            for path in weight_files(folder):
                self._open(path)
            self._check_index(folder)
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Self:
        """Return the folder."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the files."""
        self._stack.close()

    def names(self) -> set[str]:
        """Return the names of all tensors."""
        return set(self._files)

    def place(self, name: str) -> Path:
        """Return the file a tensor lies in."""
        return self._places[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor."""
        return tuple(self._files[name].get_slice(name).get_shape())

    def dtype(self, name: str) -> str:
        """Return the type of a tensor as safetensors calls it, such as BF16."""
        return str(self._files[name].get_slice(name).get_dtype())

    def get(self, name: str) -> torch.Tensor:
        """Read a tensor.

        Raises:
            SourceError: it does not hold floating-point numbers that float32 can hold.
        """
        if self.dtype(name) not in FLOATS:
            raise SourceError(
                place=f"{self._places[name]}: {name}",
                found=f"numbers of type {self.dtype(name)}",
                wanted=f"one of {', '.join(FLOATS)}: float32 holds these exactly",
                remedy="Save the model unquantised.",
            )
        found: torch.Tensor = self._files[name].get_tensor(name)
        return found

    def _open(self, path: Path) -> None:
        from safetensors import SafetensorError, safe_open

        try:
            file = self._stack.enter_context(safe_open(path, framework="pt"))
        except (OSError, SafetensorError) as error:
            found = f"{path.stat().st_size:,} bytes" if path.exists() else "no file"
            raise SourceError(
                place=str(path),
                found=f"{found} ({error})",
                wanted="a whole safetensors file",
                remedy="It is missing, cut off or damaged: copy it again.",
            ) from error
        for name in file.keys():  # noqa: SIM118 - it is no dictionary
            self._files[name], self._places[name] = file, path

    def _check_index(self, folder: Path) -> None:
        if (folder / SINGLE).is_file():
            return
        for name, file in _weight_map(folder).items():
            if self._places.get(name) != folder / file:
                raise SourceError(
                    place=str(folder / INDEX),
                    found=f"the tensor {name} in {file}, which does not hold it",
                    wanted="an index of the files beside it",
                    remedy="Copy the whole folder again.",
                )


def weight_files(folder: Path) -> list[Path]:
    """Return the files of weights in a folder: one, or those its index names, all of them beside it.

    Raises:
        SourceError: none there, pickled ones in their place, or an index that is none.
    """
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    if (folder / INDEX).is_file():
        return [folder / name for name in sorted(set(_weight_map(folder).values()))]
    raise _no_weights(folder)


def _weight_map(folder: Path) -> dict[str, str]:
    """Return tensor -> file as the index has it; a file elsewhere would be read without being pinned."""
    place = folder / INDEX
    found = read_json(place).get("weight_map")
    if not isinstance(found, dict) or not found:
        told = "nothing" if found is None else "an empty object" if found == {} else type(found).__name__
        raise _bad_index(f"{place}: weight_map", told, "an object: the file of each tensor by its name")
    for tensor, name in found.items():
        wanted = "the name of a safetensors file beside the index"
        if not isinstance(name, str):
            raise _bad_index(f"{place}: weight_map.{tensor}", json.dumps(name), wanted)
        if not name.endswith(".safetensors") or "/" in name or "\\" in name or "\0" in name:
            raise _bad_index(f"{place}: weight_map.{tensor}", repr(name), wanted)
    return found


def _bad_index(place: str, found: str, wanted: str) -> SourceError:
    return SourceError(place=place, found=found, wanted=wanted, remedy="Copy the whole folder again.")


def _no_weights(folder: Path) -> SourceError:
    pickled = [name for name in PICKLED if (folder / name).exists()]
    if pickled:
        return SourceError(
            place=str(folder / pickled[0]),
            found="pickled weights, which can run any code when they are read",
            wanted=f"{SINGLE}, or several files with {INDEX}",
            remedy="Load it with transformers where you trust it, and save_pretrained writes safetensors.",
        )
    there = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    return SourceError(
        place=str(folder),
        found=f"no weights ({listed(there, most=10) or 'nothing'})",
        wanted=f"{SINGLE}, or several files with {INDEX}",
        remedy="Give the folder that save_pretrained wrote.",
    )


def write_safetensors(tensors: Mapping[str, torch.Tensor], folder: Path, max_shard_bytes: int) -> None:
    """Write tensors into one file, or, if they take more than `max_shard_bytes`, several with an index."""
    from safetensors.torch import save_file

    shards = _shards(tensors, max_shard_bytes)
    if len(shards) == 1:
        save_file(dict(tensors), folder / SINGLE, metadata={"format": "pt"})
        return
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_file({each: tensors[each] for each in shard}, folder / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(shard, name)
    total = {
        "total_size": sum(map(_n_bytes, tensors.values())),
        "total_parameters": sum(tensor.numel() for tensor in tensors.values()),
    }
    text = json.dumps({"metadata": total, "weight_map": dict(sorted(weight_map.items()))}, indent=2)
    (folder / INDEX).write_text(text + "\n", encoding="utf-8")


def _shards(tensors: Mapping[str, torch.Tensor], max_shard_bytes: int) -> list[list[str]]:
    """Fill one file after the other; a tensor larger than the limit gets a file of its own."""
    shards: list[list[str]] = [[]]
    held = 0
    for name, tensor in tensors.items():
        if shards[-1] and held + _n_bytes(tensor) > max_shard_bytes:
            shards.append([])
            held = 0
        shards[-1].append(name)
        held += _n_bytes(tensor)
    return shards


def _n_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
