"""What an evaluate stage leaves behind."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from modelfactory.errors import StageFailed
from modelfactory.evaluate.estimate import estimate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from modelfactory.evaluate.task import Answers, ItemOutcome, Task

ITEMS = "items.parquet"
RESULT = "result.json"


def write_results(task: Task, answers: Answers, skipped: Mapping[str, int], output_dir: Path) -> None:
    """Write `items.parquet`, sorted by item, and `result.json`.

    Raises:
        StageFailed: an item has no finite value.
    """
    outcomes = sorted(answers.outcomes, key=lambda outcome: outcome.item_id)
    _refuse_not_finite(task, outcomes)
    _write_items(outcomes, output_dir / ITEMS)
    text = json.dumps(summary(task, answers, skipped), sort_keys=True, indent=1, ensure_ascii=False)
    (output_dir / RESULT).write_text(text + "\n", encoding="utf-8")


def summary(task: Task, answers: Answers, skipped: Mapping[str, int]) -> dict[str, Any]:
    """Return the content of `result.json`."""
    columns = zip(*((o.value, o.weight, o.cluster) for o in answers.outcomes), strict=True)
    found = estimate(*columns)
    metric = {
        "value": found.value,
        "stderr": found.stderr,
        "n_items": found.n_items,
        "n_clusters": found.n_clusters,
        "higher_is_better": task.higher_is_better,
        "unit": task.unit,
    }
    return {
        "task": task.name,
        "primary_metric": task.primary_metric,
        "metrics": {task.primary_metric: metric},
        "n_items": found.n_items,
        "facts": dict(answers.facts),
        "skipped_documents": dict(skipped),
    }


def _refuse_not_finite(task: Task, outcomes: Sequence[ItemOutcome]) -> None:
    bad = [outcome for outcome in outcomes if not math.isfinite(outcome.value)]
    if bad:
        raise StageFailed(
            f"{task.name}: {len(bad)} of {len(outcomes)} items have no finite {task.primary_metric}, "
            f"the first of them {bad[0].item_id} ({bad[0].value}). The checkpoint's logits are not finite: "
            "look at its loss, and evaluate an earlier one."
        )


def _write_items(outcomes: Sequence[ItemOutcome], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    details = [json.dumps(o.detail, sort_keys=True, ensure_ascii=False) for o in outcomes]
    columns = {
        "item_id": pa.array([o.item_id for o in outcomes], pa.string()),
        "cluster": pa.array([o.cluster for o in outcomes], pa.string()),
        "value": pa.array([o.value for o in outcomes], pa.float64()),
        "weight": pa.array([o.weight for o in outcomes], pa.float64()),
        "detail": pa.array(details, pa.string()),
    }
    pq.write_table(pa.table(columns), path, compression="zstd")
