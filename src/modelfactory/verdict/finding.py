"""What a comparison found, with everything a referee would ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from modelfactory.verdict.correction import Correction
from modelfactory.verdict.mcnemar import McNemar
from modelfactory.verdict.measure import Measure

Conclusion = Literal["better", "worse", "no difference", "cannot tell"]
Covers = Literal["seeds and items", "items only", "nothing"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The comparison of a variant with its baseline on one measure."""

    baseline: str
    """What the difference is taken against."""
    variant: str
    """What is judged."""
    measure: Measure
    """Task, metric, direction, margin and unit."""
    baseline_value: float
    """Metric of the baseline: mean over the paired seeds, on the shared items."""
    variant_value: float
    """The same of the variant."""
    difference: float
    """`variant_value - baseline_value`."""
    interval: tuple[float, float] | None
    """Of the difference, at confidence 1 - `alpha`, not corrected; None where no noise is known."""
    interval_corrected: tuple[float, float] | None
    """The same at confidence 1 - `alpha` / `n_comparisons`: all of these hold together."""
    covers: Covers
    """The noise that the interval covers; "items only" is no ground for a verdict on training."""
    stderr: float | None
    """Standard error of the difference, of the same noise."""
    p_value: float | None
    """Of no difference, two-sided; None where seed noise is not known."""
    p_corrected: float | None
    """By `correction` over the comparisons made."""
    p_equivalence: float | None
    """That the difference is as large as the margin (two one-sided tests), corrected alike."""
    alpha: float
    """Level of the test."""
    power: float
    """Power that `seeds_needed` is for."""
    n_comparisons: int
    """Comparisons corrected for."""
    n_seeds: int
    """Seeds that both sides have."""
    n_items: int
    """Items that both sides have for all those seeds."""
    n_clusters: int
    """Clusters of those items."""
    conclusion: Conclusion
    """The verdict, without the margin."""
    seeds_needed: int | None
    """Further seeds that would settle it; 0 where it is settled, None where seeds alone cannot."""
    items_needed: int | None
    """Independent items in all that would settle it, where seeds alone cannot and the number is known."""
    sentence: str
    """The verdict in words, complete."""
    model: str
    """The statistical model, in words."""
    notes: tuple[str, ...] = ()
    """What was left out of the comparison, and why."""
    correction: Correction = "holm"
    """How p-values are corrected for the number of comparisons."""
    mcnemar: McNemar | None = None
    """Exact test of two single-seed runs, right or wrong by item: item noise only, no verdict on training."""

    @property
    def verdict(self) -> str:
        """Return the verdict in words: better, worse, no difference larger than ..., cannot tell."""
        if self.conclusion == "no difference":
            return f"no difference larger than {self.measure.margin:g}"
        return self.conclusion

    def to_json(self) -> dict[str, Any]:
        """Return the finding as JSON values, as `factory compare --json` prints it."""
        return {
            "baseline": self.baseline,
            "variant": self.variant,
            "task": self.measure.task,
            "metric": self.measure.metric,
            "unit": self.measure.unit,
            "higher_is_better": self.measure.higher_is_better,
            "margin": self.measure.margin,
            "baseline_value": self.baseline_value,
            "variant_value": self.variant_value,
            "difference": self.difference,
            "interval": None if self.interval is None else list(self.interval),
            "interval_corrected": None if self.interval_corrected is None else list(self.interval_corrected),
            "interval_covers": self.covers,
            "p_value": self.p_value,
            "p_corrected": self.p_corrected,
            "p_equivalence": self.p_equivalence,
            "p_items_only": None if self.mcnemar is None else self.mcnemar.p_value,
            "correction": self.correction,
            "n_comparisons": self.n_comparisons,
            "n_seeds": self.n_seeds,
            "n_items": self.n_items,
            "n_clusters": self.n_clusters,
            "verdict": self.verdict,
            "conclusion": self.conclusion,
            "seeds_needed": self.seeds_needed,
            "items_needed": self.items_needed,
            "sentence": self.sentence,
            "model": self.model,
            "notes": list(self.notes),
        }
