"""The catalog of the lake, opened by one process at a time."""

from __future__ import annotations

import fcntl
import shutil
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any

from modelfactory.data.documents import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from pyiceberg.catalog.sql import SqlCatalog

NAMESPACE = "documents"
BUSY_TIMEOUT_S = 60
"""How long SQLite waits for another program that has the catalog open without our lock."""


@contextmanager
def opened(lake: Path) -> Iterator[SqlCatalog]:
    """Hold the lake's lock and yield its catalog, made on first use."""
    from pyiceberg.catalog.sql import SqlCatalog
    from sqlalchemy import URL

    database = str((lake / "catalog.db").resolve())
    uri = URL.create("sqlite", database=database, query={"timeout": str(BUSY_TIMEOUT_S)})
    with locked(lake):
        warehouse = str((lake / "warehouse").resolve())
        catalog = SqlCatalog("lake", uri=uri.render_as_string(), warehouse=warehouse)
        try:
            yield catalog
        finally:
            catalog.close()


@contextmanager
def locked(lake: Path) -> Iterator[None]:
    """Hold the lake's lock; SQLite alone would leave two processes racing to create the same tables."""
    lake.mkdir(parents=True, exist_ok=True)
    with lock(lake / "lock"):
        yield


def lock(path: Path) -> IO[Any]:
    """Wait for the lock on a file and return it open; the system frees it when the process dies."""
    held = path.open("a")
    fcntl.flock(held, fcntl.LOCK_EX)
    return held


def enter(
    catalog: SqlCatalog, location: Path, name: str, parts: Iterable[str], summary: Mapping[str, str]
) -> int:
    """Create the table with its one snapshot in a single transaction, and return the snapshot's id."""
    catalog.create_namespace_if_not_exists(NAMESPACE)
    paths = [str(location.resolve() / "data" / part) for part in parts]
    with catalog.create_table_transaction(
        (NAMESPACE, name), schema=SCHEMA, location=str(location.resolve())
    ) as table:
        table.add_files(paths, snapshot_properties=dict(summary), check_duplicate_files=False)
    made = snapshot_id(catalog, name)
    assert made is not None
    return made


def snapshot_id(catalog: SqlCatalog, name: str) -> int | None:
    """Return the snapshot of a table, or None where the catalog or Iceberg's own files lack it."""
    from pyiceberg.exceptions import NoSuchTableError

    try:
        snapshot = catalog.load_table((NAMESPACE, name)).current_snapshot()
    except (NoSuchTableError, FileNotFoundError, ValueError):  # no entry; no metadata file; half of one
        return None
    return None if snapshot is None else int(snapshot.snapshot_id)


def remove(catalog: SqlCatalog, lake: Path, name: str) -> None:
    """Remove a table: its entry, and its folder also where there is no entry."""
    from pyiceberg.exceptions import NoSuchTableError

    with suppress(NoSuchTableError):  # a killed process put the files in place and entered nothing
        catalog.drop_table((NAMESPACE, name))
    if location_of(lake, name).exists():
        shutil.rmtree(location_of(lake, name))


def location_of(lake: Path, name: str) -> Path:
    """Return the folder of a table."""
    return lake / "warehouse" / NAMESPACE / name
