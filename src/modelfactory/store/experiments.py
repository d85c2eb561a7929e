"""Named experiments: what a name stands for now, and what it stood for before."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from modelfactory.store.record import NamedExperiment, compact

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Mapping

    from modelfactory.store.database import Database


class Experiments:
    """Names and the stages they stand for; only the latest meaning of a name keeps stages from `gc`."""

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock

    def name(self, name: str, file: str, spec_json: str, stages: Mapping[str, str]) -> None:
        """Let a name stand for these stages from now on; nothing when it does already."""
        with self._database.write() as connection:
            self._keep(connection, (name, file, spec_json, compact(dict(stages))))

    def add(self, name: str, stages: Mapping[str, str]) -> None:
        """Let a name stand for these stages besides; nothing where there is no such name."""
        with self._database.write() as connection:
            last = _last(connection, name)
            if last is not None:
                self._keep(connection, (*last[:3], compact(json.loads(last[3]) | dict(stages))))

    def _keep(self, connection: sqlite3.Connection, row: tuple[str, str, str, str]) -> None:
        if _last(connection, row[0]) != row:
            connection.execute(
                "INSERT INTO experiments (name, file, spec_json, stages, named) VALUES (?, ?, ?, ?, ?)",
                (*row, self._clock()),
            )

    def latest(self) -> list[NamedExperiment]:
        """Return the latest meaning of each name, in the order of naming."""
        return _from_rows(
            self._database.rows(
                "SELECT * FROM experiments "
                "WHERE number IN (SELECT max(number) FROM experiments GROUP BY name) ORDER BY number"
            )
        )

    def history(self, name: str) -> list[NamedExperiment]:
        """Return all meanings of a name, the oldest first."""
        return _from_rows(
            self._database.rows("SELECT * FROM experiments WHERE name = ? ORDER BY number", (name,))
        )

    def forget(self, name: str) -> bool:
        """Take a name away with its history, so that `gc` may collect its stages; False without one."""
        with self._database.write() as connection:
            return connection.execute("DELETE FROM experiments WHERE name = ?", (name,)).rowcount > 0


def _last(connection: sqlite3.Connection, name: str) -> tuple[str, str, str, str] | None:
    """Return name, file, spec and stages of the latest meaning of a name."""
    found = connection.execute(
        "SELECT name, file, spec_json, stages FROM experiments WHERE name = ? ORDER BY number DESC LIMIT 1",
        (name,),
    ).fetchone()
    return None if found is None else (found[0], found[1], found[2], found[3])


def _from_rows(rows: list[sqlite3.Row]) -> list[NamedExperiment]:
    return [
        NamedExperiment(
            name=row["name"],
            file=row["file"],
            spec_json=row["spec_json"],
            stages=json.loads(row["stages"]),
            named=row["named"],
        )
        for row in rows
    ]
