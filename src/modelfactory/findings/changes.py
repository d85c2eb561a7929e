"""In what variants differ from the baselines they are compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelfactory.report import SpecChange
from modelfactory.spec import difference

if TYPE_CHECKING:
    from collections.abc import Iterator

    from modelfactory.experiment import Experiment
    from modelfactory.loading import Study

NO_CHANGE = ("name", "training.seed")
"""Replicates differ in these; variants do not."""


def changes(study: Study) -> Iterator[SpecChange]:
    """Name each field in which the variant of a comparison differs from its baseline.

    Without comparisons every variant is set against the first.
    """
    first: dict[str, Experiment] = {}
    for experiment in study.experiments:
        first.setdefault(experiment.variant, experiment)
    pairs = [(pair.baseline, pair.variant) for pair in study.comparisons]
    for baseline, variant in dict.fromkeys(pairs or [(next(iter(first)), other) for other in first]):
        for change in difference(first[baseline], first[variant]):
            if change.path not in NO_CHANGE:
                yield SpecChange(
                    baseline=baseline,
                    variant=variant,
                    path=change.path,
                    before=change.before,
                    after=change.after,
                )
