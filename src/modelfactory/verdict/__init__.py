"""Verdicts: paired, clustered, multi-seed comparisons of what came out.

Works on tables of outcomes, not on the store; imports no torch.
"""

from modelfactory.verdict.compare import compare
from modelfactory.verdict.correction import Correction, benjamini_hochberg, holm
from modelfactory.verdict.early_signal import EarlySignal, early_signal
from modelfactory.verdict.estimate import Estimate, estimate
from modelfactory.verdict.finding import Conclusion, Finding
from modelfactory.verdict.looks import level_of_look, spent
from modelfactory.verdict.mcnemar import McNemar, mcnemar
from modelfactory.verdict.measure import Measure, Pair
from modelfactory.verdict.outcomes import Outcome, Outcomes
from modelfactory.verdict.power import detectable_difference
from modelfactory.verdict.replicates import ReplicateNoise, planned_difference, replicate_noise
from modelfactory.verdict.sentences import headlines
from modelfactory.verdict.variance import MeanSquares, Noise, mean_squares

__all__ = [
    "Conclusion",
    "Correction",
    "EarlySignal",
    "Estimate",
    "Finding",
    "McNemar",
    "MeanSquares",
    "Measure",
    "Noise",
    "Outcome",
    "Outcomes",
    "Pair",
    "ReplicateNoise",
    "benjamini_hochberg",
    "compare",
    "detectable_difference",
    "early_signal",
    "estimate",
    "headlines",
    "holm",
    "level_of_look",
    "mcnemar",
    "mean_squares",
    "planned_difference",
    "replicate_noise",
    "spent",
]
