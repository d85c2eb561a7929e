"""How a stage becomes visible: all of it or none, whenever the process dies.

1. The worker writes below `aside/<unique>/`, then seals: every file hashed and fsynced, then
   `manifest.json` written.
2. `publish` checks the directory against its manifest, writes `record.json` beside it, fsyncs.
3. In one transaction, under the write lock of the database: the claim is looked at (none: refused), an older
   directory of the stage is renamed to `aside/`, the new one is renamed to its place, both parents are
   fsynced, the record is written, the claim removed; commit.

What a kill leaves behind, and who mends it (`settle.py`, called when a claim is given and when a workspace
is opened):

- before the rename: a directory below `aside/` of a dead holder; removed when the workspace is opened.
- between an older directory's rename and the new one's: no directory; the old record without a directory
  counts as nothing (`states`), and the stage is built again.
- between the rename and the commit: a complete directory with manifest and record, unknown to the database.
  The claim of the dead holder still stands, so `settle` looks there: it takes the record from `record.json`
  when that belongs to this manifest and every file has its size. No work is lost.
- after the commit: complete. An older directory left below `aside/` is removed at the next opening.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING

from modelfactory.errors import ClaimLost, StageDamaged, StageFailed
from modelfactory.store import files, records
from modelfactory.store.claims import own
from modelfactory.store.manifest import Manifest, load
from modelfactory.store.settle import write_copy
from modelfactory.store.verify import compare, sign

if TYPE_CHECKING:
    from pathlib import Path

    from modelfactory.store.claims import Claim, Claims
    from modelfactory.store.database import Database
    from modelfactory.store.holder import Holder
    from modelfactory.store.layout import Layout
    from modelfactory.store.record import Record


class Publisher:
    """Writes stages and failures into a workspace."""

    def __init__(self, database: Database, layout: Layout, claims: Claims, here: Holder) -> None:
        self._database = database
        self._layout = layout
        self._claims = claims
        self._here = here

    def new_aside(self, fingerprint: str) -> Path:
        """Make an empty directory for the stage to be written in; it belongs to whoever holds the claim."""
        name = f"{fingerprint[:16]}-{secrets.token_hex(8)}"
        with self._database.write() as connection:
            row = connection.execute(
                "SELECT token FROM claims WHERE fingerprint = ?", (fingerprint,)
            ).fetchone()
            # Written down before it exists: a directory without a row would be nobody's.
            if row is None:
                self._claims.enter(connection, self._here)
            own(connection, name, fingerprint, self._here.token if row is None else row["token"])
        with files.workspace_errors(self._layout.aside):
            (self._layout.aside / name).mkdir()
        return self._layout.aside / name

    def publish(self, claim: Claim, aside: Path, record: Record) -> Record:
        """Make a sealed stage visible and end the claim.

        Raises:
            ClaimLost: another process has the stage now; the directory aside is removed.
            StageFailed: the directory was not sealed, or changed afterwards.
            DiskFull: no space is left; the claim stands, nothing is visible.
        """
        try:
            self._check_claim(claim)
            with files.workspace_errors(aside):
                manifest, manifest_sha256 = _sealed(aside)
                made = _complete(record, claim, manifest)
                write_copy(aside, made, manifest_sha256)
                replaced = self._exchange(claim, aside, made, manifest_sha256)
        except ClaimLost:
            self._claims.remove_asides([aside.name])
            raise
        self._claims.remove_asides(replaced)
        return made

    def _exchange(self, claim: Claim, aside: Path, record: Record, manifest_sha256: str) -> list[str]:
        replaced = self._claims.reserve("replaced", claim.fingerprint)
        signature = sign(aside)
        place = self._layout.stage(claim.fingerprint)
        if not place.parent.exists():
            place.parent.mkdir(exist_ok=True)
            files.sync_directory(self._layout.stages)
        with self._database.write(durable=True) as connection:
            self._claims.end(connection, claim)
            self._move_away(claim.fingerprint, replaced)
            aside.rename(place)
            files.sync_directory(place.parent)
            files.sync_directory(self._layout.aside)
            records.put(connection, record, manifest_sha256=manifest_sha256, signature=signature,
                        made_by=claim.holder.token)  # fmt: skip
            connection.execute("DELETE FROM asides WHERE name = ?", (aside.name,))
        return [replaced]

    def fail(self, claim: Claim, record: Record) -> None:
        """Record a failure, end the claim, remove what was written aside.

        Raises:
            ClaimLost: another process has the stage now; nothing is recorded.
        """
        with self._database.write() as connection:
            self._claims.end(connection, claim)
            records.put(connection, replace(record, fingerprint=claim.fingerprint, state="failed"),
                        made_by=claim.holder.token)  # fmt: skip
        self._claims.release(claim)

    def discard(self, fingerprint: str) -> None:
        """Take a stage out of sight with its record, then remove its bytes."""
        name = self._claims.reserve("discarded", fingerprint)
        with files.workspace_errors(self._layout.stages), self._database.write(durable=True) as connection:
            self._move_away(fingerprint, name)
            records.remove(connection, fingerprint, "stored")
        self._claims.remove_asides([name])

    def _check_claim(self, claim: Claim) -> None:
        if not self._database.rows("SELECT 1 FROM claims WHERE number = ?", (claim.number,)):
            raise self._claims.lost(claim)

    def _move_away(self, fingerprint: str, name: str) -> None:
        place = self._layout.stage(fingerprint)
        if place.exists():
            place.rename(self._layout.aside / name)
            files.sync_directory(place.parent)


def _sealed(aside: Path) -> tuple[Manifest, str]:
    try:
        manifest, digest = load(aside)
    except StageDamaged as error:
        raise StageFailed(f"{aside}: not sealed: {error}") from error
    changed = compare(aside, digest, deep=False)
    if changed:
        raise StageFailed(f"{aside}: changed after it was sealed: {'; '.join(map(str, changed))}")
    return manifest, digest


def _complete(record: Record, claim: Claim, manifest: Manifest) -> Record:
    return replace(
        record,
        fingerprint=claim.fingerprint,
        state="stored",
        error="",
        content_sha256=manifest.content_sha256,
        n_bytes=manifest.n_bytes,
    )
