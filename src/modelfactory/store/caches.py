"""What is dear to compute and cheap to keep: file hashes, digests of code, speeds of this machine.

Losing any of it costs time only.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from modelfactory.store.record import compact

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from modelfactory.store.database import Database

FileState = tuple[str, int, int]
"""Path, size in bytes, time of modification in nanoseconds."""

SETTLED_NS = 2_000_000_000
"""A file younger than this when it was hashed may be written again within the same tick of its file system's
clock, at the same size, and look unchanged; its hash is not kept. 2 s is the coarsest clock in use (FAT)."""


class PinCache:
    """Hashes of outside files, kept by path, size and time of modification."""

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock

    def get(self, path: str, size: int, mtime_ns: int) -> str | None:
        """Return the sha256 of a file that has not changed since it was put, else None."""
        return self.get_many([(path, size, mtime_ns)]).get(path)

    def put(self, path: str, size: int, mtime_ns: int, sha256: str) -> None:
        """Keep the hash of a file, unless the file is too young for its time to prove anything."""
        self.put_many({(path, size, mtime_ns): sha256})

    def get_many(self, states: Iterable[FileState]) -> dict[str, str]:
        """Return path -> sha256 for those that have not changed; one query, whatever the number."""
        wanted = {path: (size, mtime_ns) for path, size, mtime_ns in states if _is_unicode(path)}
        rows = self._database.rows(
            "SELECT * FROM file_hashes WHERE path IN (SELECT value FROM json_each(?))",
            (json.dumps(list(wanted)),),
        )
        return {
            row["path"]: row["sha256"]
            for row in rows
            if wanted[row["path"]] == (row["size"], row["mtime_ns"])
        }

    def put_many(self, hashes: Mapping[FileState, str]) -> None:
        """Keep many hashes in one transaction."""
        youngest = self._clock() * 1e9 - SETTLED_NS
        rows = [
            (*state, sha256)
            for state, sha256 in hashes.items()
            if state[2] <= youngest and _is_unicode(state[0])
        ]
        if rows:
            with self._database.write() as connection:
                connection.executemany(
                    "INSERT OR REPLACE INTO file_hashes (path, size, mtime_ns, sha256) VALUES (?, ?, ?, ?)",
                    rows,
                )


def _is_unicode(path: str) -> bool:
    # A name that is no UTF-8 has no text of its own in SQLite; such a file is hashed each time.
    return path.encode("utf-8", "ignore").decode() == path


class Notes:
    """A table of JSON values by key."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def cache_get(self, key: str) -> Any | None:
        """Return the JSON value kept under a key, else None."""
        return self.cache_get_many([key]).get(key)

    def cache_get_many(self, keys: Iterable[str]) -> dict[str, Any]:
        """Return the values of those keys that are kept; one query."""
        rows = self._database.rows(
            "SELECT key, value FROM cache WHERE key IN (SELECT value FROM json_each(?))",
            (json.dumps(list(keys)),),
        )
        return {row["key"]: json.loads(row["value"]) for row in rows}

    def cache_put(self, key: str, value: Any) -> None:
        """Keep a JSON value under a key."""
        self.cache_put_many({key: value})

    def cache_put_many(self, values: Mapping[str, Any]) -> None:
        """Keep many values in one transaction."""
        rows = [(key, compact(value)) for key, value in values.items()]
        with self._database.write() as connection:
            connection.executemany("INSERT OR REPLACE INTO cache (key, value) VALUES (?, ?)", rows)
