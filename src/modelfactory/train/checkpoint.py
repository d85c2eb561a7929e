"""Checkpoints: the state of a run in torch.distributed.checkpoint's format, and its hashes.

One flat dictionary: `model/NAME` and `optimizer/NAME/STATE` by the parameter's name, `step`, `n_tokens`, and
`rng`, the state of torch's generator. Hyperparameters of the optimizer are in the spec, not here. Beside
torch's files lies `sha256.json`; a file that is cut off or changed is found before anything is loaded.
Equal states give equal bytes, which torch's own writer does not promise: it stores a random id and the path.

Of many processes each writes the pieces it holds, into a file of its own in the same folder, and reads those
it needs: the state that N processes wrote is loaded by any other number.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from modelfactory.errors import CheckpointDamaged, StageFailed
from modelfactory.train.loading import REMEDY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.distributed.checkpoint.metadata import Metadata
    from torch.distributed.checkpoint.storage import WriteResult

SUMS = "sha256.json"
_METADATA = ".metadata"

State = dict[str, Any]
"""Flat: key -> tensor."""


class _Writer(FileSystemWriter):
    """Writes bytes that follow from the state alone."""

    def storage_meta(self) -> StorageMeta:
        """Leave out the path and the random id of this write."""
        return StorageMeta(checkpoint_id="", save_id="")

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write the metadata without references between equal objects.

        Which equal strings are one object differs between a trainer that was resumed and one that was not.
        """
        super().finish(metadata, results)
        with Path(self.path, _METADATA).open("wb") as file:
            pickler = pickle.Pickler(file, protocol=4)
            pickler.fast = True
            pickler.dump(metadata)
            file.flush()
            os.fsync(file.fileno())


def save(state: State, folder: Path) -> None:
    """Write a checkpoint into `folder`, which does not exist yet, and wait until it is on disk.

    Of many processes all call it, each with the pieces of the state that it holds.
    """
    ordered = {key: state[key] for key in sorted(state)}
    with _failures(folder):
        dcp_save(ordered, storage_writer=_Writer(folder), no_dist=not dist.is_initialized())
    if _is_first():
        _write_sums(folder)
    if dist.is_initialized():
        dist.barrier()


def _is_first() -> bool:
    return not dist.is_initialized() or dist.get_rank() == 0


def _write_sums(folder: Path) -> None:
    sums = {path.name: _facts(path) for path in sorted(folder.iterdir())}
    with (folder / SUMS).open("w", encoding="utf-8") as file:
        file.write(json.dumps(sums, indent=1, sort_keys=True) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _whole(key: str, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    del key
    return torch.empty(shape, dtype=dtype)


def load(
    folder: Path,
    prefix: str = "",
    like: Callable[[str, torch.Size, torch.dtype], torch.Tensor] = _whole,
) -> State:
    """Return the part of the state whose keys start with `prefix`.

    Args:
        folder: that `save` wrote.
        prefix: of keys.
        like: from key, shape and type to the tensor that is filled, by default a whole one on the CPU. Of
            many processes, each gets what it asks for.

    Raises:
        CheckpointDamaged: a file is missing, cut off, or changed; the message names it.
    """
    if _is_first():
        verify(folder)
    try:
        reader = FileSystemReader(folder)
        entries = reader.read_metadata().state_dict_metadata
        state = {key: _empty(key, entry, like) for key, entry in entries.items() if key.startswith(prefix)}
        with _failures(folder):
            dcp_load(state, storage_reader=reader, no_dist=not dist.is_initialized())
    except Exception as error:  # the hashes agree, so the file was written so, or by another torch
        message = f"{folder}: cannot be read by torch {torch.__version__} ({type(error).__name__}: {error})"
        raise CheckpointDamaged(message) from error
    return state


def verify(folder: Path) -> None:
    """Raise CheckpointDamaged unless every file has the bytes that were written."""
    path = folder / SUMS
    try:
        sums = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        message = f"{path}: found no readable hashes ({error}), wanted {SUMS} of a checkpoint. {REMEDY}"
        raise CheckpointDamaged(message) from error
    for name, wanted in sums.items():
        found = _facts(folder / name) if (folder / name).is_file() else {"n_bytes": 0, "sha256": "no file"}
        if found != wanted:
            message = (
                f"{folder / name}: found {found['n_bytes']:,} bytes with SHA-256 {found['sha256']}, "
                f"wanted {wanted['n_bytes']:,} bytes with {wanted['sha256']}. {REMEDY}"
            )
            raise CheckpointDamaged(message)


@contextmanager
def _failures(folder: Path) -> Iterator[None]:
    """Silence torch, which warns where it is alone, and raise StageFailed from what went wrong.

    Torch's CheckpointException is no Exception, and keeps what it wraps in a dictionary by rank.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable")
        try:
            yield
        except CheckpointException as error:
            cause, _ = next(iter(error.failures.values()))
            message = f"{folder}: the checkpoint failed ({type(cause).__name__}: {cause})"
            raise StageFailed(message) from cause


def _empty(key: str, entry: Any, like: Callable[[str, torch.Size, torch.dtype], torch.Tensor]) -> Any:
    if isinstance(entry, TensorStorageMetadata):
        return like(key, entry.size, entry.properties.dtype)
    return None


def _facts(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"n_bytes": path.stat().st_size, "sha256": digest}
