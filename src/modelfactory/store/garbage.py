"""What a workspace holds that nobody needs.

Needed is: what the latest meaning of a named experiment stands for, what the caller keeps, what is claimed,
what a living process published, and all that went into any of these. The rest is garbage. A stage is taken
out of sight in one transaction that looks once more whether it was claimed or named meanwhile; its bytes go
afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from modelfactory.store import files, records
from modelfactory.store.claims import OUT_OF_SIGHT
from modelfactory.store.settle import settle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from modelfactory.store.claims import Claims
    from modelfactory.store.database import Database
    from modelfactory.store.experiments import Experiments
    from modelfactory.store.layout import Layout
    from modelfactory.store.records import Records

    Dropping = Callable[[str, Path], None]

YOUNG_S = 3600.0
"""Files that no row speaks of are left alone for this long: another process may be about to speak of them."""


@dataclass(frozen=True, kw_only=True)
class Garbage:
    """One thing that can go."""

    kind: Literal["stage", "aside", "log", "pin", "failure", "record"]
    name: str
    """Fingerprint, digest or directory name."""
    path: Path
    n_bytes: int
    reason: str


class Collector:
    """Finds and removes garbage."""

    def __init__(
        self,
        database: Database,
        layout: Layout,
        *,
        records: Records,
        claims: Claims,
        experiments: Experiments,
        clock: Callable[[], float],
    ) -> None:
        self._database = database
        self._layout = layout
        self._records = records
        self._claims = claims
        self._experiments = experiments
        self._clock = clock

    def gc(
        self,
        keep: set[str],
        *,
        dry_run: bool,
        dropping: Dropping | None,
        forgotten: frozenset[str] = frozenset(),
    ) -> list[Garbage]:
        """List garbage, and unless `dry_run` remove it; what could not be removed is not in the list.

        Args:
            keep: fingerprints of stages and digests of pins to keep, with all that went into them.
            dry_run: only list.
            dropping: called with the kind and the directory of each stage before its bytes go, for what the
                stage owns elsewhere (its table in the lake).
            forgotten: names of experiments that count for nothing, so that a dry run can say what forgetting
                them would free.
        """
        if not dry_run:
            self._claims.bury()
            self._settle_orphans()
        last_named = self._last_named()
        found = self._find(keep, forgotten)
        if dry_run:
            return found
        removed = [each for each in found if self._remove(each, last_named, dropping)]
        with self._database.write() as connection:
            records.forget_texts(connection)
        return removed

    def _find(self, keep: set[str], forgotten: frozenset[str]) -> list[Garbage]:
        living = self._claims.living()
        needed = self._needed(keep, living, forgotten)
        # A run writes its pins before anything names them: while one goes on, all are left alone.
        pins = [] if self._claims.others() else self._pins(needed)
        found = [*self._stages(needed), *self._lost_records(needed), *self._failures(needed)]
        return [*found, *self._logs(needed), *self._asides(living), *pins]

    def _needed(self, keep: set[str], living: set[str], forgotten: frozenset[str]) -> set[str]:
        roots = set(keep)
        for experiment in self._experiments.latest():
            if experiment.name not in forgotten:
                roots.update(experiment.stages.values())
        roots.update(row[0] for row in self._database.rows("SELECT fingerprint FROM claims"))
        made = self._database.rows("SELECT fingerprint, made_by FROM records WHERE made_by != ''")
        roots.update(row["fingerprint"] for row in made if row["made_by"] in living)
        return roots | self._records.ancestors(roots)

    def _stages(self, needed: set[str]) -> Iterator[Garbage]:
        known = {
            row[0] for row in self._database.rows("SELECT fingerprint FROM records WHERE state = 'stored'")
        }
        for path in sorted(self._layout.stages.glob("*/*")):
            if path.name not in needed:
                reason = "needed by no named experiment" if path.name in known else "has no record"
                yield _garbage("stage", path.name, path, reason)

    def _lost_records(self, needed: set[str]) -> Iterator[Garbage]:
        for row in self._database.rows("SELECT fingerprint FROM records WHERE state = 'stored'"):
            path = self._layout.stage(row[0])
            if row[0] not in needed and not path.exists():
                yield _garbage("record", row[0], path, "its directory is gone")

    def _failures(self, needed: set[str]) -> Iterator[Garbage]:
        for row in self._database.rows("SELECT fingerprint FROM records WHERE state = 'failed'"):
            if row[0] not in needed:
                place = self._layout.database
                yield Garbage(kind="failure", name=row[0], path=place, n_bytes=0,
                              reason="needed by no named experiment")  # fmt: skip

    def _logs(self, needed: set[str]) -> Iterator[Garbage]:
        for path in sorted(self._layout.logs.iterdir()):
            if path.name.split(".")[0] not in needed:
                yield _garbage("log", path.name, path, "of a stage that is not needed")

    def _asides(self, living: set[str]) -> Iterator[Garbage]:
        owners = {row["name"]: row["token"] for row in self._database.rows("SELECT name, token FROM asides")}
        for path in sorted(self._layout.aside.iterdir()):
            owner = owners.get(path.name)
            if owner is None and not self._is_young(path):
                yield _garbage("aside", path.name, path, "nobody's")
            elif owner is not None and owner not in living:
                yield _garbage("aside", path.name, path, "of a process that is gone")

    def _pins(self, needed: set[str]) -> Iterator[Garbage]:
        for path in sorted(self._layout.pins.iterdir()):
            if path.name.removesuffix(".json") not in needed and not self._is_young(path):
                yield _garbage("pin", path.name, path, "of stages that are not needed")

    def _is_young(self, path: Path) -> bool:
        try:
            return self._clock() - path.lstat().st_mtime < YOUNG_S
        except FileNotFoundError:
            return True

    def _remove(self, garbage: Garbage, last_named: int, dropping: Dropping | None) -> bool:
        if garbage.kind in {"stage", "record", "failure"}:
            return self._remove_stage(garbage, last_named, dropping)
        if garbage.kind == "aside":
            return self._remove_aside(garbage.path, dropping)
        if self._is_claimed(garbage.path.name.split(".")[0]):
            return False
        garbage.path.unlink(missing_ok=True)
        return True

    def _remove_stage(self, garbage: Garbage, last_named: int, dropping: Dropping | None) -> bool:
        aside = self._layout.aside / self._reserve(garbage.name)
        with files.workspace_errors(garbage.path), self._database.write(durable=True) as connection:
            if self._is_claimed(garbage.name) or self._last_named() != last_named:
                return False
            state = "failed" if garbage.kind == "failure" else "stored"
            records.remove(connection, garbage.name, state)
            if garbage.kind == "stage" and garbage.path.exists():
                garbage.path.rename(aside)
                files.sync_directory(garbage.path.parent)
        return self._remove_aside(aside, dropping)

    def _reserve(self, fingerprint: str) -> str:
        rows = self._database.rows("SELECT kind FROM records WHERE fingerprint = ?", (fingerprint,))
        # Kind and fingerprint stay readable: should this process die here, the next gc knows what to drop.
        return self._claims.reserve(f"{OUT_OF_SIGHT}{rows[0][0] if rows else ''}", fingerprint)

    def _remove_aside(self, path: Path, dropping: Dropping | None) -> bool:
        if dropping is not None and path.name.startswith(OUT_OF_SIGHT) and path.exists():
            _, kind, fingerprint, _ = path.name.split(".")
            # A stage built again since then owns what would be dropped.
            if kind and not self._layout.stage(fingerprint).exists() and not self._is_claimed(fingerprint):
                dropping(kind, path)
        self._claims.remove_asides([path.name])
        return not path.exists()

    def _settle_orphans(self) -> None:
        known = {
            row[0] for row in self._database.rows("SELECT fingerprint FROM records WHERE state = 'stored'")
        }
        orphans = [path.name for path in self._layout.stages.glob("*/*") if path.name not in known]
        if orphans:
            with self._database.write() as connection:
                for fingerprint in orphans:
                    settle(connection, self._layout, fingerprint)

    def _is_claimed(self, fingerprint: str) -> bool:
        return bool(self._database.rows("SELECT 1 FROM claims WHERE fingerprint = ?", (fingerprint,)))

    def _last_named(self) -> int:
        return int(self._database.rows("SELECT coalesce(max(number), 0) FROM experiments")[0][0])


def _garbage(
    kind: Literal["stage", "aside", "log", "pin", "record"], name: str, path: Path, reason: str
) -> Garbage:
    return Garbage(kind=kind, name=name, path=path, n_bytes=files.tree_bytes(path), reason=reason)
