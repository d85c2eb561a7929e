"""Items of a task on which two runs differ."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from modelfactory.findings.leaderboard import evaluated

if TYPE_CHECKING:
    from modelfactory.findings.leaderboard import Evaluated
    from modelfactory.store import NamedExperiment, Store

OTHER_ITEMS = "other items, or asked otherwise"
NOT_BOTH = "not evaluated for both"


@dataclass(frozen=True, kw_only=True)
class ItemPair:
    """One item, and what two runs made of it."""

    task: str
    item_id: str
    values: tuple[float, float]
    """Of the first run and of the second."""
    details: tuple[Any, Any]
    """What the task kept of each answer, as JSON values."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class ItemDifferences:
    """Where two runs differ, and what could not be looked at."""

    pairs: tuple[ItemPair, ...]
    """By task, the largest difference first."""
    n_items: dict[str, int]
    """Task -> items looked at."""
    left_out: dict[str, str]
    """Task -> why it was not looked at."""


def differing_items(
    store: Store, a: NamedExperiment, b: NamedExperiment, *, step: int | None = None
) -> ItemDifferences:
    """Return every item of the tasks of both whose value differs.

    Args:
        store: of the workspace.
        a: the first run.
        b: the second run.
        step: of the checkpoints; by default the last one of each that was evaluated on the task.
    """
    of_a, of_b = ({e.measure.task: e for e in evaluated(store, [run], step=step)} for run in (a, b))
    pairs: list[ItemPair] = []
    n_items, left_out = {}, {}
    for task in dict.fromkeys([*of_a, *of_b]):
        if task not in of_a or task not in of_b:
            left_out[task] = NOT_BOTH
        elif of_a[task].asked != of_b[task].asked:
            left_out[task] = OTHER_ITEMS
        else:
            first, second = _items(store, of_a[task]), _items(store, of_b[task])
            n_items[task] = len(first)
            pairs += _differing(task, first, second)
    return ItemDifferences(pairs=tuple(pairs), n_items=n_items, left_out=left_out)


def _items(store: Store, each: Evaluated) -> dict[str, tuple[float, str]]:
    path = store.stage_dir(each.fingerprint) / "items.parquet"
    rows = pq.read_table(path, columns=["item_id", "value", "detail"]).to_pylist()
    return {row["item_id"]: (row["value"], row["detail"]) for row in rows}


def _differing(
    task: str, first: dict[str, tuple[float, str]], second: dict[str, tuple[float, str]]
) -> list[ItemPair]:
    found = [
        ItemPair(
            task=task,
            item_id=item,
            values=(value, second[item][0]),
            details=(json.loads(detail), json.loads(second[item][1])),
        )
        for item, (value, detail) in first.items()
        if value != second[item][0]
    ]
    return sorted(found, key=lambda pair: (-abs(pair.values[1] - pair.values[0]), pair.item_id))
