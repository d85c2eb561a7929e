"""Reading and writing of records, and lineage both ways."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from modelfactory.store import files
from modelfactory.store.record import NAMES, Edge, Record, compact

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from modelfactory.store.database import Database
    from modelfactory.store.layout import Layout

RESUMED_FROM = "resumed_from"
"""Name of the edge to the stage whose state was continued."""

_COLUMNS = f"SELECT {', '.join(NAMES)}, manifest_sha256 FROM records"  # noqa: S608
_STORED = f"{_COLUMNS} WHERE state = 'stored'"

# A set, not a tree: UNION stops at a node seen before, so that shared ancestors are walked once.
_CLOSURE = """
WITH RECURSIVE reached(fingerprint) AS (
    SELECT {ahead} FROM edges WHERE {behind} IN (SELECT value FROM json_each(?))
    UNION SELECT edges.{ahead} FROM edges JOIN reached ON edges.{behind} = reached.fingerprint
) SELECT fingerprint FROM reached
"""


class Records:
    """Questions about what was made."""

    def __init__(self, database: Database, layout: Layout) -> None:
        self._database = database
        self._layout = layout

    def states(self, fingerprints: Iterable[str]) -> dict[str, Record]:
        """Return the records of those that are published; a record without its directory does not count."""
        asked = json.dumps(list(fingerprints))
        known = self._read(f"{_STORED} AND fingerprint IN (SELECT value FROM json_each(?))", (asked,))  # noqa: S608
        return {record.fingerprint: record for record in self._present(known)}

    def record(self, fingerprint: str) -> Record | None:
        """Return what is known: the published stage, else its last failure, else None."""
        known = self._read(f"{_COLUMNS} WHERE fingerprint = ?", (fingerprint,))
        stored = self._present(record for record in known if record.state == "stored")
        return next(iter(stored or [record for record in known if record.state == "failed"]), None)

    def records(self, kind: str | None = None) -> list[Record]:
        """Return all published stages, of one kind or of all, the oldest first."""
        order = "AND (?1 IS NULL OR kind = ?1) ORDER BY started, fingerprint"
        return self._present(self._read(f"{_STORED} {order}", (kind,)))

    def failures(self) -> list[Record]:
        """Return the last failure of each stage that has not been published since, the oldest first."""
        return self._read(f"{_COLUMNS} WHERE state = 'failed' ORDER BY started, fingerprint")

    def find(self, beginning: str) -> list[str]:
        """Return the fingerprints with a record that begin so."""
        rows = self._database.rows(
            "SELECT DISTINCT fingerprint FROM records WHERE substr(fingerprint, 1, ?) = ? ORDER BY 1",
            (len(beginning), beginning),
        )
        return [row[0] for row in rows]

    def parents(self, fingerprint: str) -> list[Edge]:
        """Return what a stage was made from."""
        return self._edges("child", fingerprint)

    def children(self, fingerprint: str) -> list[Edge]:
        """Return what was made from a stage or pin."""
        return self._edges("parent", fingerprint)

    def ancestors(self, fingerprints: Iterable[str]) -> set[str]:
        """Return all that went into these, at any distance, pins included."""
        return self._closure(fingerprints, ahead="parent", behind="child")

    def descendants(self, fingerprints: Iterable[str]) -> set[str]:
        """Return all that was made from these, at any distance."""
        return self._closure(fingerprints, ahead="child", behind="parent")

    def _read(self, statement: str, parameters: Sequence[Any] = ()) -> list[Record]:
        with self._database.snapshot():
            return _from_rows(self._database.rows(statement, parameters), self._database.rows)

    def _edges(self, column: str, fingerprint: str) -> list[Edge]:
        rows = self._database.rows(
            f"SELECT child, name, parent FROM edges WHERE {column} = ? ORDER BY child, name, parent",  # noqa: S608
            (fingerprint,),
        )
        return [Edge(child=row["child"], name=row["name"], parent=row["parent"]) for row in rows]

    def _closure(self, fingerprints: Iterable[str], *, ahead: str, behind: str) -> set[str]:
        statement = _CLOSURE.format(ahead=ahead, behind=behind)
        return {row[0] for row in self._database.rows(statement, (json.dumps(list(fingerprints)),))}

    def _present(self, records: Iterable[Record]) -> list[Record]:
        known = list(records)
        # A listing of at most 256 folders, not a question for each of 5,000 stages.
        folders = {record.fingerprint[:2] for record in known}
        there = {name for folder in folders for name in files.names(self._layout.stages / folder)}
        return [record for record in known if record.fingerprint in there]


def put(
    connection: sqlite3.Connection,
    record: Record,
    *,
    manifest_sha256: str = "",
    signature: str = "",
    made_by: str = "",
) -> None:
    """Write a record and its edges in the transaction of the caller; a stored one ends a failure."""
    row = _to_row(connection, record) | {
        "manifest_sha256": manifest_sha256,
        "signature": signature,
        "made_by": made_by,
    }
    names, marks = ", ".join(row), ", ".join(f":{name}" for name in row)
    connection.execute(f"INSERT OR REPLACE INTO records ({names}) VALUES ({marks})", row)  # noqa: S608
    if record.state == "stored":
        connection.execute(
            "DELETE FROM records WHERE fingerprint = ? AND state = 'failed'", (record.fingerprint,)
        )
    _put_edges(connection, record)


def remove(connection: sqlite3.Connection, fingerprint: str, state: str) -> None:
    """Forget one record; its edges go with the last record of the stage."""
    connection.execute("DELETE FROM records WHERE fingerprint = ? AND state = ?", (fingerprint, state))
    connection.execute(
        "DELETE FROM edges WHERE child = ?1 AND NOT EXISTS (SELECT 1 FROM records WHERE fingerprint = ?1)",
        (fingerprint,),
    )


def forget_texts(connection: sqlite3.Connection) -> None:
    """Forget texts that no record has any more."""
    connection.execute(
        "DELETE FROM texts WHERE sha256 NOT IN (SELECT code FROM records UNION SELECT libraries FROM records)"
    )


def stored_in(connection: sqlite3.Connection, fingerprint: str) -> tuple[Record, str] | None:
    """Return the stored record and the hash of its manifest, as seen by the transaction of the caller."""

    def query(statement: str, parameters: Sequence[Any]) -> list[sqlite3.Row]:
        return connection.execute(statement, parameters).fetchall()

    rows = query(f"{_STORED} AND fingerprint = ?", (fingerprint,))
    return (_from_rows(rows, query)[0], rows[0]["manifest_sha256"]) if rows else None


def _put_edges(connection: sqlite3.Connection, record: Record) -> None:
    parents = dict(record.inputs) | ({RESUMED_FROM: record.resumed_from} if record.resumed_from else {})
    connection.execute("DELETE FROM edges WHERE child = ?", (record.fingerprint,))
    connection.executemany(
        "INSERT INTO edges (child, name, parent) VALUES (?, ?, ?)",
        [(record.fingerprint, name, parent) for name, parent in parents.items()],
    )


def _to_row(connection: sqlite3.Connection, record: Record) -> dict[str, Any]:
    row = record.to_json()
    return row | {
        "inputs": compact(row["inputs"]),
        "input_contents": compact(row["input_contents"]),
        # Equal for most stages of a kind, and much the largest part of a record: kept and parsed once.
        "code": _put_text(connection, compact(row["code"])),
        "libraries": _put_text(connection, compact(row["libraries"])),
        # The operations of a long run do not fit the 64 bits of SQLite's integers.
        "flops": str(int(record.flops)),
    }


def _put_text(connection: sqlite3.Connection, text: str) -> str:
    digest = hashlib.sha256(text.encode()).hexdigest()
    connection.execute("INSERT OR IGNORE INTO texts (sha256, text) VALUES (?, ?)", (digest, text))
    return digest


def _from_rows(
    rows: list[sqlite3.Row], query: Callable[[str, Sequence[Any]], list[sqlite3.Row]]
) -> list[Record]:
    # Read and parsed once each, not once a record: joined to 5,000 records they took 0.28 s.
    digests = list({row[column] for row in rows for column in ("code", "libraries")})
    found = query(
        "SELECT * FROM texts WHERE sha256 IN (SELECT value FROM json_each(?))", (json.dumps(digests),)
    )
    texts = {row["sha256"]: json.loads(row["text"]) for row in found}
    inputs, contents = _parse_all(rows, "inputs"), _parse_all(rows, "input_contents")
    return [_from_row(row, texts) for row in zip(rows, inputs, contents, strict=True)]


def _parse_all(rows: list[sqlite3.Row], column: str) -> list[Any]:
    # One call for all: 10,000 calls of json.loads cost as much as the query.
    parsed: list[Any] = json.loads(f"[{','.join(row[column] for row in rows)}]")
    return parsed


def _from_row(parts: tuple[sqlite3.Row, Any, Any], texts: Mapping[str, Any]) -> Record:
    row, inputs, contents = parts
    # Past the constructor, which sets each field of a frozen dataclass by a call: half the time of `states`.
    record = object.__new__(Record)
    record.__dict__.update(
        zip(NAMES, row, strict=False),
        inputs=inputs,
        input_contents=contents,
        code=texts[row["code"]],
        libraries=texts[row["libraries"]],
        flops=int(row["flops"]),
    )
    return record
