"""Answered questions that come before a question."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from modelfactory.errors import SourceError
from modelfactory.evaluate.documents import order

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from modelfactory.evaluate.item_files import ItemFile, Row


class HasShots(Protocol):
    """A task with shots."""

    @property
    def items(self) -> ItemFile:
        """What is asked."""

    @property
    def n_shot(self) -> int:
        """Answered questions before each."""

    @property
    def shots(self) -> ItemFile | None:
        """Where they are taken from; None: from the other items."""

    @property
    def seed(self) -> int:
        """Draws them from the other items."""


def files_of(task: HasShots) -> dict[str, ItemFile]:
    """Return the files that a task with shots reads, by input of its stage."""
    given = {"items": task.items}
    return given if task.shots is None else given | {"shots": task.shots}


class Shots:
    """Which answered questions come before each item: the same for every model."""

    def __init__(self, task: HasShots, files: Mapping[str, Sequence[Row]]) -> None:
        """Hold the rows of `files["shots"]`, else those of `files["items"]`, each question once."""
        self._n, self._seed = task.n_shot, task.seed
        self._given = tuple(files["shots"][: task.n_shot]) if task.shots is not None else None
        self._others = sorted({row.identity: row for row in files["items"]}.items())

    def before(self, row: Row) -> tuple[Row, ...]:
        """Return the first `n_shot` rows of a file of shots; else other items, drawn for this one."""
        if self._given is not None:
            return self._given
        found: dict[str, Row] = {}
        number = 0
        while len(found) < self._n:
            place = int(order(self._seed, row.identity, number), 16) % len(self._others)
            identity, other = self._others[place]
            if identity != row.identity:
                found[identity] = other
            number += 1
        return tuple(found.values())


def require_shots(task: HasShots, name: str, rows: Sequence[Row]) -> None:
    """Raise SourceError where file `name` of a task gives too few shots for some item."""
    if task.n_shot == 0 or name != ("items" if task.shots is None else "shots"):
        return
    n_there = len({row.identity for row in rows}) - 1 if task.shots is None else len(rows)
    if task.n_shot > n_there:
        raise SourceError(
            place=rows[0].path,
            found=f"{n_there} lines to take shots from",
            wanted=f"at least n_shot = {task.n_shot}",
            remedy="Give more lines, or ask for fewer shots.",
        )
