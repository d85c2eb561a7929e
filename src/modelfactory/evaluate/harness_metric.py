"""Which metric of a task of lm-evaluation-harness is the primary one."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from modelfactory.errors import SpecError

DEFAULTS = {
    "loglikelihood": ("perplexity", "acc"),
    "loglikelihood_rolling": ("word_perplexity", "byte_perplexity", "bits_per_byte"),
    "multiple_choice": ("acc", "acc_norm"),
    "generate_until": ("exact_match",),
}
"""Metrics of tasks that list none: lm-eval's `DEFAULT_METRIC_REGISTRY`."""
SHARES = ("acc", "acc_norm", "acc_bytes", "acc_mutual_info", "exact_match")
"""Metrics that are a mean of 0 and 1, also where a task does not say how they are aggregated."""


class Metric(NamedTuple):
    """The metric that a task is judged by."""

    name: str
    unit: str
    higher_is_better: bool


def primary_metric(task: str, config: dict[str, Any]) -> Metric:
    """Return the first metric of a task that is a mean over its items, or bits per byte.

    A perplexity is no mean of items, nor is F1 over a corpus: comparisons paired by item need one that is.

    Raises:
        SpecError: it has none.
    """
    kind = config.get("output_type", "generate_until")
    listed = config.get("metric_list") or [{"metric": name} for name in DEFAULTS.get(kind, ())]
    for each in listed:
        name, aggregation = str(each.get("metric", "")), each.get("aggregation")
        better = str(each.get("higher_is_better", True)).lower() == "true"
        if name == "bits_per_byte":
            return Metric(name, "bits/byte", False)
        if name in SHARES and aggregation in (None, "mean"):
            return Metric(name, "share", better)
        if aggregation == "mean" and not name.startswith("!function"):
            return Metric(name, name, better)
    raise SpecError(
        place=f"Harness.task {task!r}",
        found=f"metrics {', '.join(str(each.get('metric')) for each in listed) or 'none'}",
        wanted="one that is a mean over items, or bits_per_byte",
        remedy="Write a YAML of your own that includes the task and lists such a metric.",
    )


def value_and_weight(metric: str, found: Any) -> tuple[float, float]:
    """Return what an item counts for in the metric, from what `process_results` gave."""
    if metric == "bits_per_byte":
        nats, n_bytes = found
        return -nats / (n_bytes * math.log(2)), float(n_bytes)
    return float(found), 1.0
