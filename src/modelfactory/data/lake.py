"""The Iceberg lake: one immutable table for each content of a documents stage.

A lake is a folder:

    catalog.db                        pyiceberg's SqlCatalog
    lock                              held while the catalog is open, and while a table is put in place
    incoming/                         tables being written, each with a lock that its process holds
    warehouse/documents/NAME/data     the Parquet files of a table, in order by name
    warehouse/documents/NAME/metadata Iceberg's own

A table is written in `incoming`, then renamed and entered in the catalog in one transaction that also
creates it: a table in the catalog is always whole. What a killed process leaves, in `incoming` or renamed
but never entered, is removed by the next one. `observed/lake.json` of a stage names table, snapshot and
files with their hashes; the snapshot id is random, so it is kept apart from what the stage is.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from modelfactory.data.catalog import NAMESPACE, enter, location_of, lock, locked, opened, remove, snapshot_id
from modelfactory.errors import StageDamaged
from modelfactory.stage import OBSERVED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


@dataclass(frozen=True, kw_only=True)
class LakeFile:
    """One Parquet file of a table."""

    path: str
    """Relative to the lake, so that a workspace can be moved."""
    sha256: str
    n_bytes: int


@dataclass(frozen=True, kw_only=True)
class LakeTable:
    """Where the documents of a stage lie."""

    table: str
    snapshot_id: int
    files: tuple[LakeFile, ...]

    def write(self, documents_dir: Path) -> None:
        """Write `observed/lake.json`."""
        folder = documents_dir / OBSERVED
        folder.mkdir(exist_ok=True)
        (folder / "lake.json").write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, documents_dir: Path) -> LakeTable:
        """Read `observed/lake.json` of a documents stage.

        Raises:
            StageDamaged: it is missing or no longer what was written.
        """
        path = documents_dir / OBSERVED / "lake.json"
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            files = tuple(LakeFile(**file) for file in data["files"])
            return cls(table=data["table"], snapshot_id=data["snapshot_id"], files=files)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StageDamaged(f"{path}: cannot be read ({error}). Run `factory doctor`.") from error


@contextmanager
def workbench(lake: Path) -> Iterator[Path]:
    """Yield a new folder inside the lake to write a table in; gone afterwards, also what others left."""
    with locked(lake):
        incoming = lake / "incoming"
        incoming.mkdir(exist_ok=True)
        _remove_abandoned(incoming)
        folder = Path(tempfile.mkdtemp(dir=incoming))
        held = lock(folder / "lock")
    try:
        with held:
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def commit(lake: Path, name: str, parts: Sequence[Path], summary: Mapping[str, str]) -> LakeTable:
    """Put written files in place as table `name`; a whole table of the same files is used as it is.

    Args:
        lake: Folder of the lake.
        name: Of the table, in the namespace `documents`.
        parts: Parquet files in one folder inside a workbench.
        summary: Goes into the summary of the snapshot.
    """
    location = location_of(lake, name)
    files = tuple(_described(part, location / "data", lake) for part in parts)
    for path in (*parts, parts[0].parent):
        _sync(path)
    with opened(lake) as catalog:
        known = snapshot_id(catalog, name)
        if known is None or _file_faults(files, lake):
            remove(catalog, lake, name)
            location.mkdir(parents=True)
            parts[0].parent.rename(location / "data")
            known = enter(catalog, location, name, [part.name for part in parts], summary)
            _sync_metadata(location)
    return LakeTable(table=f"{NAMESPACE}.{name}", snapshot_id=known, files=files)


def damaged(documents_dir: Path, lake: Path) -> list[str]:
    """Say what is wrong with the documents of a stage: files missing or changed, table or snapshot gone."""
    try:
        table = LakeTable.read(documents_dir)
    except StageDamaged as error:
        return [str(error)]
    faults = _file_faults(table.files, lake)
    if not (lake / "catalog.db").exists():
        return [*faults, f"{lake / 'catalog.db'}: missing"]
    return [*faults, *_catalog_faults(table, lake)]


def _catalog_faults(table: LakeTable, lake: Path) -> list[str]:
    from sqlalchemy.exc import DatabaseError

    try:
        with opened(lake) as catalog:
            known = snapshot_id(catalog, _name(table))
    except DatabaseError as error:
        return [f"{lake / 'catalog.db'}: cannot be read ({error.orig})"]
    wanted = table.snapshot_id
    return [] if known == wanted else [f"{table.table}: the catalog holds snapshot {known}, wanted {wanted}"]


def drop(documents_dir: Path, lake: Path) -> None:
    """Remove the table of a stage, its files and its entry; nothing happens when it is gone already."""
    drop_table(LakeTable.read(documents_dir).table, lake)


def drop_table(table: str, lake: Path) -> None:
    """Remove a table by name; for tables that `unreferenced` returned."""
    with opened(lake) as catalog:
        remove(catalog, lake, table.removeprefix(f"{NAMESPACE}."))


def unreferenced(documents_dirs: Iterable[Path], lake: Path) -> dict[str, int]:
    """Return tables that none of the given stages needs, with their bytes; ask while no stage is running."""
    needed = {LakeTable.read(folder).table for folder in documents_dirs}
    warehouse = lake / "warehouse" / NAMESPACE
    folders = sorted(warehouse.iterdir()) if warehouse.is_dir() else []
    found = {f"{NAMESPACE}.{folder.name}": folder for folder in folders}
    return {
        table: sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        for table, folder in found.items()
        if table not in needed
    }


def _file_faults(files: Iterable[LakeFile], lake: Path) -> list[str]:
    return [fault for file in files if (fault := _fault(file, lake / file.path))]


def _fault(file: LakeFile, path: Path) -> str:
    if not path.is_file():
        return f"{path}: missing"
    size = path.stat().st_size
    if size != file.n_bytes:
        return f"{path}: {size:,} bytes, wanted {file.n_bytes:,}"
    with path.open("rb") as stream:
        now = hashlib.file_digest(stream, "sha256").hexdigest()
    return "" if now == file.sha256 else f"{path}: SHA-256 {now[:12]}..., wanted {file.sha256[:12]}..."


def _described(part: Path, folder: Path, lake: Path) -> LakeFile:
    with part.open("rb") as stream:
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
    path = (folder / part.name).relative_to(lake).as_posix()
    return LakeFile(path=path, sha256=sha256, n_bytes=part.stat().st_size)


def _remove_abandoned(incoming: Path) -> None:
    for folder in incoming.iterdir():
        # Gone meanwhile: its process has just let go of it and removes it itself.
        with suppress(FileNotFoundError), (folder / "lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue  # its process lives
            shutil.rmtree(folder)


def _name(table: LakeTable) -> str:
    return table.table.removeprefix(f"{NAMESPACE}.")


def _sync_metadata(location: Path) -> None:
    for path in (*(location / "metadata").iterdir(), location / "metadata", location, location.parent):
        _sync(path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
