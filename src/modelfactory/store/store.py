"""The store of a workspace: one object over its parts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from modelfactory.store import files, layout
from modelfactory.store.caches import Notes, PinCache
from modelfactory.store.claims import HEARTBEAT_TIMEOUT_S, Claim, Claims, Running
from modelfactory.store.database import Database
from modelfactory.store.experiments import Experiments
from modelfactory.store.garbage import Collector, Garbage
from modelfactory.store.holder import Holder, this_process
from modelfactory.store.manifest import Manifest, seal
from modelfactory.store.names import Names
from modelfactory.store.publish import Publisher
from modelfactory.store.records import Records
from modelfactory.store.settle import settle_all
from modelfactory.store.verify import Damage, Verifier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import TracebackType

    from modelfactory.store.record import Edge, NamedExperiment, Record


class Store:
    """Stages, records, claims and caches of one workspace.

    Safe to use from several threads of a process and from several processes at once. Open it anew after a
    fork.
    """

    def __init__(
        self,
        place: layout.Layout,
        database: Database,
        here: Holder,
        clock: Callable[[], float],
        timeout_s: float,
    ) -> None:
        self._layout = place
        self._database = database
        self._here = here
        self._records = Records(database, place)
        self._experiments = Experiments(database, clock)
        self._claims = Claims(database, place, here, clock, timeout_s)
        self._publisher = Publisher(database, place, self._claims, here)
        self._verifier = Verifier(database, place)
        self._notes = Notes(database)
        self._collector = Collector(
            database,
            place,
            records=self._records,
            claims=self._claims,
            experiments=self._experiments,
            clock=clock,
        )
        self.pins = PinCache(database, clock)
        self.names = Names(database, place, clock)

    @classmethod
    def open(
        cls,
        root: Path,
        create: bool = True,
        *,
        here: Holder | None = None,
        clock: Callable[[], float] = time.time,
        heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S,
    ) -> Store:
        """Open a workspace, make it where there is none, and clear up after processes that died.

        Args:
            root: folder of the workspace.
            create: make it when it does not exist or is empty.
            here: this process, as others are to see it; found out when left out.
            clock: seconds since 1970.
            heartbeat_timeout_s: silence after which a holder that cannot be seen from here counts as dead.

        Raises:
            WorkspaceError: newer format (left untouched), read-only, damaged, or no workspace.
            DiskFull: no space to make it.
        """
        place = layout.Layout(Path(root).absolute())
        layout.check(place, create=create)
        place.make()
        layout.check_one_file_system(place)
        database = Database(place.database)
        if database.prepare():
            settle_all(database, place)
        store = cls(place, database, here or this_process(), clock, heartbeat_timeout_s)
        store._claims.bury()
        return store

    def close(self) -> None:
        """Give back what this object itself holds and close the database; again: nothing."""
        if self._database.is_closed:
            return
        if self._database.rows("SELECT 1 FROM holders WHERE token = ?", (self._here.token,)):
            self._claims.leave(self._here)
        self._database.close()

    def __enter__(self) -> Self:
        """Return the store."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    @property
    def root(self) -> Path:
        """Folder of the workspace."""
        return self._layout.root

    @property
    def lake(self) -> Path:
        """Folder of the Iceberg lake."""
        return self._layout.lake

    def stage_dir(self, fingerprint: str) -> Path:
        """Return the directory of a published stage, whether it exists or not."""
        return self._layout.stage(fingerprint)

    def log_path(self, fingerprint: str) -> Path:
        """Return the log file of a stage."""
        return self._layout.log(fingerprint)

    def pin_path(self, digest: str) -> Path:
        """Return the pin file of a digest, whether it exists or not."""
        return self._layout.pin(digest)

    def write_pin(self, digest: str, text: str) -> Path:
        """Write a pin file, whole or not at all; one that is there with this text is left alone."""
        path = self._layout.pin(digest)
        with files.workspace_errors(path):
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                files.write_durably(path, text)
        return path

    def states(self, fingerprints: Iterable[str]) -> dict[str, Record]:
        """Return the records of those that are published; a record without its directory does not count."""
        return self._records.states(fingerprints)

    def record(self, fingerprint: str) -> Record | None:
        """Return what is known: the published stage, else its last failure, else None."""
        return self._records.record(fingerprint)

    def records(self, kind: str | None = None) -> list[Record]:
        """Return all published stages, of one kind or of all, the oldest first."""
        return self._records.records(kind)

    def failures(self) -> list[Record]:
        """Return the last failure of each stage that has not been published since, the oldest first."""
        return self._records.failures()

    def find(self, beginning: str) -> list[str]:
        """Return the fingerprints with a record that begin so."""
        return self._records.find(beginning)

    def parents(self, fingerprint: str) -> list[Edge]:
        """Return what a stage was made from; includes the stage it resumed, under the name resumed_from."""
        return self._records.parents(fingerprint)

    def children(self, fingerprint: str) -> list[Edge]:
        """Return what was made from a stage or pin."""
        return self._records.children(fingerprint)

    def ancestors(self, fingerprints: Iterable[str]) -> set[str]:
        """Return all that went into these, at any distance, pins included."""
        return self._records.ancestors(fingerprints)

    def descendants(self, fingerprints: Iterable[str]) -> set[str]:
        """Return all that was made from these, at any distance."""
        return self._records.descendants(fingerprints)

    def claim(self, fingerprint: str, holder: Holder) -> Claim | None:
        """Take a stage to build it; None while somebody alive has it. See `Claim.stored`."""
        return self._claims.claim(fingerprint, holder)

    def heartbeat(self, holder: Holder, running: Mapping[str, Mapping[str, Any] | str]) -> set[str]:
        """Say that a holder lives and how far its stages are; returns those it holds no more."""
        return self._claims.heartbeat(holder, running)

    def release(self, claim: Claim) -> None:
        """Give a stage back unbuilt, with what was written aside for it."""
        self._claims.release(claim)

    def leave(self, holder: Holder) -> None:
        """Give back all that a holder has; call it at the end of a run."""
        self._claims.leave(holder)

    def running(self) -> list[Running]:
        """Return the stages that are held, the longest held first."""
        return self._claims.running()

    def new_aside(self, fingerprint: str) -> Path:
        """Make an empty directory for the stage to be written in; it belongs to whoever holds the claim."""
        return self._publisher.new_aside(fingerprint)

    def seal(self, aside: Path) -> Manifest:
        """Hash and fsync every file of a finished stage, then write its manifest."""
        return seal(aside)

    def publish(self, claim: Claim, aside: Path, record: Record) -> Record:
        """Make a sealed stage visible and end the claim; returns the record as written."""
        return self._publisher.publish(claim, aside, record)

    def fail(self, claim: Claim, record: Record) -> None:
        """Record a failure, end the claim, remove what was written aside."""
        self._publisher.fail(claim, record)

    def verify(self, fingerprint: str, deep: bool) -> list[Damage]:
        """Compare a stage with its manifest: names and sizes, and with `deep` the hash of every file."""
        return self._verifier.verify(fingerprint, deep=deep)

    def check_served(self, fingerprint: str) -> list[Damage]:
        """Check a stage before its bytes are used; cheap unless its files were written to."""
        return self._verifier.check_served(fingerprint)

    def inspect(self, deep: bool) -> Iterator[Damage]:
        """Check every stage with a record, those whose directory is gone included."""
        for row in self._database.rows("SELECT fingerprint FROM records WHERE state = 'stored' ORDER BY 1"):
            yield from self.verify(row[0], deep)

    def check_database(self) -> list[str]:
        """Return what SQLite's own check finds wrong with the database; nothing when it is sound."""
        return self._database.check()

    def discard(self, fingerprint: str) -> None:
        """Take a stage out of sight with its record, then remove its bytes."""
        self._publisher.discard(fingerprint)

    def name_experiment(self, name: str, file: str, spec_json: str, stages: Mapping[str, str]) -> None:
        """Let a name stand for these stages (role -> fingerprint) from now on; the history is kept.

        Call it before the work begins: from then on `gc` leaves these stages and their inputs alone.
        """
        self._experiments.name(name, file, spec_json, stages)

    def add_to_experiment(self, name: str, stages: Mapping[str, str]) -> None:
        """Let a name stand for these stages (role -> fingerprint) besides those that it has."""
        self._experiments.add(name, stages)

    def experiments(self) -> list[NamedExperiment]:
        """Return the latest meaning of each name, in the order of naming."""
        return self._experiments.latest()

    def history(self, name: str) -> list[NamedExperiment]:
        """Return all meanings of a name, the oldest first."""
        return self._experiments.history(name)

    def forget_experiment(self, name: str) -> bool:
        """Take a name away with its history, so that `gc` may collect its stages."""
        return self._experiments.forget(name)

    def gc(
        self,
        keep: set[str],
        dry_run: bool,
        dropping: Callable[[str, Path], None] | None = None,
        forgotten: Iterable[str] = (),
    ) -> list[Garbage]:
        """List what no name, kept stage or running process needs; unless `dry_run`, remove it.

        Experiments whose names are in `forgotten` count for nothing; their names stay.
        """
        names = frozenset(forgotten)
        keep = keep | {stage for each in self.names.current() for stage in (each.checkpoint, *each.stages)}
        return self._collector.gc(keep, dry_run=dry_run, dropping=dropping, forgotten=names)

    def cache_get(self, key: str) -> Any | None:
        """Return the JSON value kept under a key, else None."""
        return self._notes.cache_get(key)

    def cache_get_many(self, keys: Iterable[str]) -> dict[str, Any]:
        """Return the values of those keys that are kept; one query."""
        return self._notes.cache_get_many(keys)

    def cache_put(self, key: str, value: Any) -> None:
        """Keep a JSON value under a key; losing it must cost time only."""
        self._notes.cache_put(key, value)

    def cache_put_many(self, values: Mapping[str, Any]) -> None:
        """Keep many values in one transaction."""
        self._notes.cache_put_many(values)
