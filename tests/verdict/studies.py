"""Small studies with known noise."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from modelfactory.verdict import Measure, Outcomes

SCORE = Measure(task="task", metric="score", higher_is_better=True, margin=0.05)


class Against(NamedTuple):
    baseline: str
    variant: str


def table(values: dict[tuple[str, int], np.ndarray | list[float]], **columns: object) -> Outcomes:
    """Outcomes of (variant, seed) -> one value per item; each item its own cluster unless given."""
    parts = []
    for (variant, seed), column in values.items():
        items = [f"i{n}" for n in range(len(column))]
        given = {"step": 10, "task": "task", "metric": "score", "item_id": items, "cluster": items, **columns}
        parts.append(Outcomes.of_checkpoint(variant=variant, seed=seed, value=column, **given))
    return Outcomes.concatenate(parts)


def simulated(
    random: np.random.Generator,
    *,
    gains: dict[str, float],
    n_seeds: int,
    n_items: int,
    seed_sd: float,
    item_sd: float = 0.3,
    rest_sd: float = 0.1,
    shared_sd: float = 0.0,
) -> Outcomes:
    """Scores = gain + item + seed (partly shared by variants) + item by variant + rest."""
    hardness = random.normal(0, 1, n_items)
    luck = random.normal(0, shared_sd, n_seeds) if shared_sd else np.zeros(n_seeds)
    values = {}
    for name, gain in gains.items():
        taste = random.normal(0, item_sd / np.sqrt(2), n_items)
        for seed in range(n_seeds):
            own = random.normal(0, seed_sd / np.sqrt(2))
            rest = random.normal(0, rest_sd / np.sqrt(2), n_items)
            values[name, seed] = gain + hardness + taste + luck[seed] + own + rest
    return table(values)
