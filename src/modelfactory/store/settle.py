"""Taking into the database a stage whose directory is in place and whose record is not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from modelfactory.errors import StageDamaged
from modelfactory.store import files, records
from modelfactory.store.manifest import MANIFEST, RECORD, load
from modelfactory.store.record import Record
from modelfactory.store.verify import compare

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

    from modelfactory.store.database import Database
    from modelfactory.store.layout import Layout


def write_copy(directory: Path, record: Record, manifest_sha256: str) -> None:
    """Write the record beside the manifest, so that the directory can speak for itself."""
    copy = {"manifest_sha256": manifest_sha256, "record": record.to_json()}
    files.write_synced(directory / RECORD, json.dumps(copy, indent=1) + "\n")
    files.sync_directory(directory)


def settle(connection: sqlite3.Connection, layout: Layout, fingerprint: str) -> Record | None:
    """Bring the record of a stage in line with its directory; None when there is no whole stage.

    Runs in the transaction of the caller, so that no publication of the same stage is half done meanwhile.
    """
    directory = layout.stage(fingerprint)
    if not (directory / MANIFEST).exists():
        return None
    known = records.stored_in(connection, fingerprint)
    try:
        _, found = load(directory)
    except StageDamaged:
        return None
    if known is not None and known[1] == found:
        return known[0]
    return _adopt(connection, directory, found)


def settle_all(database: Database, layout: Layout) -> int:
    """Read the records back from all directories; returns how many stages are known now."""
    fingerprints = [path.name for path in layout.stages.glob("*/*") if path.is_dir()]
    with database.write() as connection:
        return sum(settle(connection, layout, fingerprint) is not None for fingerprint in fingerprints)


def _adopt(connection: sqlite3.Connection, directory: Path, manifest_sha256: str) -> Record | None:
    record = _read_copy(directory, manifest_sha256)
    if record is None or compare(directory, manifest_sha256, deep=False):
        return None
    # Without a signature the files are hashed the first time the stage is served.
    records.put(connection, record, manifest_sha256=manifest_sha256)
    return record


def _read_copy(directory: Path, manifest_sha256: str) -> Record | None:
    try:
        copy = json.loads((directory / RECORD).read_bytes())
        record = Record.from_json(copy["record"])
        belongs = copy["manifest_sha256"] == manifest_sha256 and record.fingerprint == directory.name
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return record if belongs else None
