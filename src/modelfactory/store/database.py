"""The SQLite file of a workspace: schema, transactions, and errors in words.

Write-ahead log, so that readers never wait for a writer. Every write is one short `BEGIN IMMEDIATE`
transaction: it takes the write lock first, so that what it reads cannot change before it writes. Directory
renames that belong to a record are made inside such a transaction; that lock is what puts them in order
between processes.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from typing import TYPE_CHECKING, Any

from modelfactory.errors import FactoryError, WorkspaceError
from modelfactory.store import files

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

SCHEMA = 1
"""`PRAGMA user_version` of the file."""

BUSY_TIMEOUT_S = 60.0
"""How long to wait for another writer; a write takes milliseconds, so only a stopped process reaches this."""


_TABLES = """
CREATE TABLE records (
    fingerprint TEXT NOT NULL, state TEXT NOT NULL, kind TEXT NOT NULL, label TEXT NOT NULL,
    spec_json TEXT NOT NULL, inputs TEXT NOT NULL, input_contents TEXT NOT NULL, resumed_from TEXT NOT NULL,
    code TEXT NOT NULL, libraries TEXT NOT NULL, content_sha256 TEXT NOT NULL, n_bytes INTEGER NOT NULL,
    error TEXT NOT NULL, log TEXT NOT NULL, started REAL NOT NULL, seconds REAL NOT NULL,
    attempt INTEGER NOT NULL, host TEXT NOT NULL, tokens INTEGER NOT NULL, flops TEXT NOT NULL,
    manifest_sha256 TEXT NOT NULL, signature TEXT NOT NULL, made_by TEXT NOT NULL,
    PRIMARY KEY (fingerprint, state)
);
CREATE INDEX records_of_kind ON records (kind, state);
CREATE TABLE texts (sha256 TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE edges (
    child TEXT NOT NULL, name TEXT NOT NULL, parent TEXT NOT NULL, PRIMARY KEY (child, name)
) WITHOUT ROWID;
CREATE INDEX edges_of_parent ON edges (parent);
CREATE TABLE holders (
    token TEXT PRIMARY KEY, host TEXT NOT NULL, boot_id TEXT NOT NULL, pid INTEGER NOT NULL,
    started_ticks INTEGER NOT NULL, heartbeat REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE claims (
    number INTEGER PRIMARY KEY AUTOINCREMENT, fingerprint TEXT NOT NULL UNIQUE, token TEXT NOT NULL,
    since REAL NOT NULL, progress TEXT NOT NULL
);
CREATE TABLE asides (name TEXT PRIMARY KEY, fingerprint TEXT NOT NULL, token TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE experiments (
    number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, file TEXT NOT NULL, spec_json TEXT NOT NULL,
    stages TEXT NOT NULL, named REAL NOT NULL
);
CREATE INDEX experiments_of_name ON experiments (name, number);
CREATE TABLE file_hashes (
    path TEXT PRIMARY KEY, size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, sha256 TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE cache (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""


class Database:
    """One connection, used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_closed = False
        self._lock = threading.RLock()
        self._connection = self._connect()

    def _connect(self) -> sqlite3.Connection:
        with self._errors():
            connection = sqlite3.connect(
                self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
        connection.row_factory = sqlite3.Row
        return connection

    def close(self) -> None:
        """Close the connection; the object cannot be used afterwards."""
        with self._lock:
            self.is_closed = True
            self._connection.close()

    def prepare(self) -> bool:
        """Bring the file to this schema; True when it was empty and its tables were just made.

        Raises:
            WorkspaceError: the file is of a newer schema (left untouched), damaged, or cannot have a
                write-ahead log where it lies.
        """
        found = self._version()
        if found > SCHEMA:
            raise self._fault(
                f"schema {found}, made by a newer version", f"schema {SCHEMA}", "Upgrade modelfactory."
            )
        with self._errors():
            mode = self._connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise self._fault(f"journal mode {mode}", "a file system that can hold a write-ahead log",
                              "Put the workspace on a local disk.")  # fmt: skip
        return found < SCHEMA and self._make_tables()

    def _version(self) -> int:
        with self._errors():
            return int(self._connection.execute("PRAGMA user_version").fetchone()[0])

    def _make_tables(self) -> bool:
        with self.write(durable=True) as connection:
            # Another process may have made them while this one waited for the lock.
            if self._version() == SCHEMA:
                return False
            for statement in _TABLES.split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {SCHEMA}")
        return True

    @contextlib.contextmanager
    def write(self, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
        """Hold the write lock for one transaction; undone as a whole when the body raises.

        Args:
            durable: fsync before returning. Without it a power cut (not a killed process) may undo the last
                transactions, in order, which costs work and never consistency.
        """
        with self._lock, self._errors():
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """Let all reads of the body see one state of the database."""
        with self._lock, self._errors():
            if self._connection.in_transaction:
                yield
                return
            self._connection.execute("BEGIN")
            try:
                yield
            finally:
                self._connection.execute("ROLLBACK")

    def rows(self, statement: str, parameters: Sequence[Any] = ()) -> list[sqlite3.Row]:
        """Read without a lock."""
        with self._lock, self._errors():
            return self._connection.execute(statement, parameters).fetchall()

    def check(self) -> list[str]:
        """Return what SQLite's own check finds wrong with the file; nothing when it is sound."""
        found = [str(row[0]) for row in self.rows("PRAGMA quick_check")]
        return [] if found == ["ok"] else found

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.ProgrammingError:
            raise  # our own mistake, not the file's
        except sqlite3.Error as error:
            raise self._in_words(error) from error

    def _in_words(self, error: sqlite3.Error) -> FactoryError:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code == sqlite3.SQLITE_FULL:
            return files.disk_full(self.path)
        if code in {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM}:
            return files.read_only(self.path)
        if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
            return self._fault(f"a damaged file ({error})", "an SQLite database",
                               f"Move {self.path.name}* away: the next command reads the records back "
                               "from the stages.")  # fmt: skip
        if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
            return self._fault(f"a lock held for {BUSY_TIMEOUT_S:.0f} s by another process",
                               "a lock free within that time",
                               "Look for a stopped `factory` process and end or continue it.")  # fmt: skip
        if code == sqlite3.SQLITE_IOERR and _is_full(self.path):
            return files.disk_full(self.path)
        return self._fault(str(error), "a database that can be read and written", "Run `factory doctor`.")

    def _fault(self, found: str, wanted: str, remedy: str) -> WorkspaceError:
        return WorkspaceError(place=f"workspace {self.path}", found=found, wanted=wanted, remedy=remedy)


def _is_full(path: Path) -> bool:
    # A failing write to the log's shared memory is reported as an input/output error, not as a full disk.
    import shutil

    return files.limited() or shutil.disk_usage(files.nearest_existing(path)).free < 1 << 16
