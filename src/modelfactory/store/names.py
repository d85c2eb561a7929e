"""Names of promoted checkpoints: one file each, with what the name stood for before.

A file is written aside and renamed, so that whoever reads it, after a kill or while another process writes,
finds the old content or the new one. Writers exclude each other by the write lock of the database. The files
are no part of the database: they survive its loss.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from modelfactory.errors import CommandError, WorkspaceError
from modelfactory.store import files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from modelfactory.store.database import Database
    from modelfactory.store.layout import Layout

NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,63}")
HEX = re.compile(r"[0-9a-fA-F]+")


@dataclass(frozen=True, kw_only=True)
class Promotion:
    """What a name stands for, and on what evidence."""

    name: str
    number: int
    """Counted from 1 for each name."""
    checkpoint: str
    """Fingerprint of the training or import stage."""
    stages: tuple[str, ...]
    """Fingerprints that `gc` keeps for it: checkpoints and evaluations."""
    evidence: Mapping[str, Any]
    """JSON values: rule, findings, counts of contamination."""
    promoted: float
    """Seconds since 1970."""


class Names:
    """Moves names and reads them."""

    def __init__(self, database: Database, place: Layout, clock: Callable[[], float]) -> None:
        self._database = database
        self._folder = place.root / "names"
        self._clock = clock

    def move(
        self,
        name: str,
        *,
        checkpoint: str,
        stages: tuple[str, ...],
        evidence: Mapping[str, Any],
        after: int,
    ) -> Promotion:
        """Let a name stand for a checkpoint from now on; the history is kept.

        Args:
            name: a letter, then letters, digits, dots, underscores or hyphens.
            checkpoint: fingerprint.
            stages: what `gc` is to keep as well.
            evidence: JSON values.
            after: number of the promotion that the evidence was gathered against; 0 for none.

        Raises:
            CommandError: not such a name, or the name was moved since.
        """
        check_name(name)
        with self._database.write():
            history = self.history(name)
            if len(history) != after:
                raise CommandError(
                    place=name,
                    found=f"promotion {len(history)}, made by another process meanwhile",
                    wanted=f"promotion {after}, which the evidence was gathered against",
                    remedy="Promote again: it is judged against what the name stands for now.",
                )
            made = Promotion(
                name=name,
                number=after + 1,
                checkpoint=checkpoint,
                stages=stages,
                evidence=evidence,
                promoted=self._clock(),
            )
            self._write(name, [*history, made])
        return made

    def _write(self, name: str, history: list[Promotion]) -> None:
        path = self._path(name)
        with files.workspace_errors(path):
            path.parent.mkdir(exist_ok=True)
            whole = [asdict(each) for each in history]
            files.write_durably(path, json.dumps(whole, indent=1, allow_nan=False) + "\n")

    def history(self, name: str) -> list[Promotion]:
        """Return all that a name stood for, the oldest first; the last is what it stands for now.

        Raises:
            WorkspaceError: its file is damaged.
        """
        if not NAME.fullmatch(name):
            return []
        path = self._path(name)
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            return [Promotion(**(each | {"stages": tuple(each["stages"])})) for each in found]
        except FileNotFoundError:
            return []
        except (ValueError, TypeError, KeyError) as error:
            raise WorkspaceError(
                place=str(path),
                found=f"a damaged file ({error})",
                wanted="the history of a name",
                remedy="Move it away; the name is then free.",
            ) from error

    def current(self) -> list[Promotion]:
        """Return what each name stands for, in the order of names."""
        known = sorted(n.removesuffix(".json") for n in files.names(self._folder) if not n.startswith("."))
        return [self.history(name)[-1] for name in known]

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"


def check_name(name: str) -> None:
    """Refuse what cannot be told from the beginning of a fingerprint, or is no file name.

    Raises:
        CommandError: it is one of these.
    """
    if not NAME.fullmatch(name) or HEX.fullmatch(name):
        raise CommandError(
            place=f"name {name!r}",
            found="no such name",
            wanted="a letter, then up to 63 letters, digits, dots, underscores or hyphens, "
            "and not hexadecimal digits alone, which are fingerprints",
            remedy="For example: best.",
        )
