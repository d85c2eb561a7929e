"""One holder a stage.

A claim is a row with a number that is never used again. Its holder may publish as long as that row stands. A
claim is taken over

- at once, when its holder was a process of this machine that is gone, a zombie, another process with the same
  number, or of an earlier boot;
- after `timeout_s` without a heartbeat, when its holder cannot be seen from here (another container);
- never, when its holder is a live process of this machine, however long it is silent: it may be stopped in a
  debugger or wait for a slow disk, and would go on afterwards.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from modelfactory.errors import ClaimLost
from modelfactory.store.holder import Holder, presence
from modelfactory.store.record import Record, compact
from modelfactory.store.settle import settle

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

    from modelfactory.store.database import Database
    from modelfactory.store.layout import Layout

HEARTBEAT_TIMEOUT_S = 120.0
"""Silence after which a holder that cannot be seen from here counts as dead."""

OUT_OF_SIGHT = "garbage."
"""How the names of directories begin that `gc` is about to remove."""

_HELD = "SELECT claims.*, holders.* FROM claims JOIN holders USING (token)"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The right to publish one stage."""

    fingerprint: str
    holder: Holder
    number: int
    """Never used again: a claim that was taken over and back is another claim."""
    stored: Record | None
    """What was published when the claim was given. Another process may have published between planning and
    claiming: who finds here what it wanted releases the claim and does no work."""


@dataclass(frozen=True, kw_only=True)
class Running:
    """A stage somebody holds."""

    fingerprint: str
    holder: Holder
    since: float
    """When it was claimed, seconds since 1970."""
    heartbeat: float
    """When its holder was last heard of."""
    progress: Mapping[str, Any]
    """As its holder last told; empty before that."""
    alive: bool
    """False when the claim may be taken over."""


class Claims:
    """Claims, holders and heartbeats of one workspace, as seen from one process."""

    def __init__(
        self, database: Database, layout: Layout, here: Holder, clock: Callable[[], float], timeout_s: float
    ) -> None:
        self._database = database
        self._layout = layout
        self._here = here
        self._clock = clock
        self._timeout_s = timeout_s

    def claim(self, fingerprint: str, holder: Holder) -> Claim | None:
        """Take a stage; None while somebody alive has it. A holder that has it already gets it again."""
        # Most refusals need no write lock, which a waiting process would else ask for again and again.
        rows = self._database.rows(f"{_HELD} WHERE fingerprint = ?", (fingerprint,))
        if rows and rows[0]["token"] != holder.token and self.is_alive(rows[0]):
            return None
        with self._database.write() as connection:
            row = connection.execute(f"{_HELD} WHERE fingerprint = ?", (fingerprint,)).fetchone()
            if row is not None and row["token"] != holder.token and self.is_alive(row):
                return None
            stored = settle(connection, self._layout, fingerprint)
            number = self._take(connection, fingerprint, holder, row)
        return Claim(fingerprint=fingerprint, holder=holder, number=number, stored=stored)

    def _take(
        self, connection: sqlite3.Connection, fingerprint: str, holder: Holder, row: sqlite3.Row | None
    ) -> int:
        self.enter(connection, holder)
        if row is not None and row["token"] == holder.token:
            return int(row["number"])
        connection.execute("DELETE FROM claims WHERE fingerprint = ?", (fingerprint,))
        cursor = connection.execute(
            "INSERT INTO claims (fingerprint, token, since, progress) VALUES (?, ?, ?, '{}')",
            (fingerprint, holder.token, self._clock()),
        )
        return int(cursor.lastrowid or 0)

    def enter(self, connection: sqlite3.Connection, holder: Holder) -> None:
        """Write down a holder, heard of now."""
        connection.execute(
            "INSERT INTO holders (token, host, boot_id, pid, started_ticks, heartbeat) "
            "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (token) DO UPDATE SET heartbeat = excluded.heartbeat",
            (holder.token, holder.host, holder.boot_id, holder.pid, holder.started_ticks, self._clock()),
        )

    def heartbeat(self, holder: Holder, running: Mapping[str, Mapping[str, Any] | str]) -> set[str]:
        """Say that a holder lives and how far its stages are; returns those it holds no more."""
        told = [(_text(progress), fingerprint, holder.token) for fingerprint, progress in running.items()]
        with self._database.write() as connection:
            self.enter(connection, holder)
            connection.executemany("UPDATE claims SET progress = ? WHERE fingerprint = ? AND token = ?", told)
            rows = connection.execute(
                "SELECT fingerprint FROM claims WHERE token = ?", (holder.token,)
            ).fetchall()
        return set(running) - {row[0] for row in rows}

    def running(self) -> list[Running]:
        """Return the stages that are held, the longest held first."""
        return [self._running(row) for row in self._database.rows(f"{_HELD} ORDER BY since, number")]

    def _running(self, row: sqlite3.Row) -> Running:
        return Running(
            fingerprint=row["fingerprint"],
            holder=_holder(row),
            since=row["since"],
            heartbeat=row["heartbeat"],
            progress=json.loads(row["progress"]),
            alive=self.is_alive(row),
        )

    def release(self, claim: Claim) -> None:
        """Give a stage back unbuilt, with what was written aside for it; nothing when it was lost already."""
        with self._database.write() as connection:
            connection.execute("DELETE FROM claims WHERE number = ?", (claim.number,))
            names = _asides_of(connection, claim)
        self.remove_asides(names)

    def leave(self, holder: Holder) -> None:
        """Give back all that a holder has; call it at the end of a run."""
        with self._database.write() as connection:
            connection.execute("DELETE FROM claims WHERE token = ?", (holder.token,))
            rows = connection.execute("SELECT name FROM asides WHERE token = ?", (holder.token,)).fetchall()
            connection.execute(
                "DELETE FROM holders WHERE token = ?1 AND NOT EXISTS (SELECT 1 FROM asides WHERE token = ?1)",
                (holder.token,),
            )
        self.remove_asides([row[0] for row in rows])

    def end(self, connection: sqlite3.Connection, claim: Claim) -> None:
        """Take a claim's row away in the transaction that uses it.

        Raises:
            ClaimLost: another process has taken the stage over.
        """
        if connection.execute("DELETE FROM claims WHERE number = ?", (claim.number,)).rowcount == 0:
            raise self.lost(claim)

    def lost(self, claim: Claim) -> ClaimLost:
        """Return the error for a claim that was taken over."""
        return ClaimLost(
            f"stage {claim.fingerprint[:12]}: the claim of process {claim.holder.pid} on {claim.holder.host} "
            "was given up or taken over by another process; what was made here is thrown away."
        )

    def reserve(self, beginning: str, fingerprint: str) -> str:
        """Return a new name under aside/ for a directory on its way out, owned by this process.

        Written down in a transaction of its own, before anything is renamed: a kill between rename and commit
        would else leave a directory that is nobody's.
        """
        name = f"{beginning}.{fingerprint}.{secrets.token_hex(6)}"
        with self._database.write() as connection:
            self.enter(connection, self._here)
            own(connection, name, fingerprint, self._here.token)
        return name

    def remove_asides(self, names: list[str]) -> None:
        """Remove directories under aside/ and forget those that are gone."""
        gone = []
        for name in names:
            shutil.rmtree(self._layout.aside / name, ignore_errors=True)
            if not (self._layout.aside / name).exists():
                gone.append((name,))
        if gone:
            with self._database.write() as connection:
                connection.executemany("DELETE FROM asides WHERE name = ?", gone)

    def is_alive(self, row: sqlite3.Row) -> bool:
        """Whether the holder in this row must be left alone."""
        seen = presence(_holder(row), self._here)
        if seen == "elsewhere":
            return bool(self._clock() - row["heartbeat"] <= self._timeout_s)
        return seen == "alive"

    def bury(self) -> None:
        """Clear up after dead holders: finish what they published, drop their claims and asides."""
        rows = self._database.rows("SELECT * FROM holders")
        dead = [row["token"] for row in rows if not self.is_alive(row)]
        if not dead:
            return
        marks = ", ".join("?" * len(dead))
        with self._database.write() as connection:
            held = connection.execute(f"SELECT fingerprint FROM claims WHERE token IN ({marks})", dead)  # noqa: S608
            for row in held.fetchall():
                settle(connection, self._layout, row[0])
            connection.execute(f"DELETE FROM claims WHERE token IN ({marks})", dead)  # noqa: S608
            asides = connection.execute(f"SELECT name FROM asides WHERE token IN ({marks})", dead)  # noqa: S608
            names = [row[0] for row in asides.fetchall() if not self._waits_for_gc(row[0])]
        self.remove_asides(names)
        with self._database.write() as connection:
            connection.execute(
                f"DELETE FROM holders WHERE token IN ({marks}) "  # noqa: S608
                "AND token NOT IN (SELECT token FROM asides) AND token NOT IN (SELECT token FROM claims)",
                dead,
            )

    def _waits_for_gc(self, name: str) -> bool:
        # What gc took out of sight and did not remove: its part of the lake must go with it.
        return name.startswith(OUT_OF_SIGHT) and (self._layout.aside / name).exists()

    def others(self) -> set[str]:
        """Return the tokens of the holders that must be left alone, this process's own store left out."""
        return self.living() - {self._here.token}

    def living(self) -> set[str]:
        """Return the tokens of the holders that must be left alone."""
        return {row["token"] for row in self._database.rows("SELECT * FROM holders") if self.is_alive(row)}


def own(connection: sqlite3.Connection, name: str, fingerprint: str, token: str) -> None:
    """Write down whose a directory under aside/ is."""
    connection.execute(
        "INSERT INTO asides (name, fingerprint, token) VALUES (?, ?, ?)", (name, fingerprint, token)
    )


def _asides_of(connection: sqlite3.Connection, claim: Claim) -> list[str]:
    rows = connection.execute(
        "SELECT name FROM asides WHERE fingerprint = ? AND token = ?", (claim.fingerprint, claim.holder.token)
    ).fetchall()
    return [row[0] for row in rows]


def _holder(row: sqlite3.Row) -> Holder:
    return Holder(
        host=row["host"],
        boot_id=row["boot_id"],
        pid=row["pid"],
        started_ticks=row["started_ticks"],
        token=row["token"],
    )


def _text(progress: Mapping[str, Any] | str) -> str:
    return progress if isinstance(progress, str) else compact(dict(progress))
