"""Training: a run is a chain of segments, each from one checkpoint to the next.

Specs are here and import no torch. `train.stage.run` carries out a segment, `load_model` gives the model of
a segment that was carried out, `train.speed.measure` says what this machine can do.
"""

from modelfactory.train.loading import load_model, model_facts
from modelfactory.train.optimizers import AdamW, Optimizer
from modelfactory.train.schedules import WSD, Cosine, Schedule, learning_rates
from modelfactory.train.segment import TrainSegment, segment
from modelfactory.train.training import Training

__all__ = [
    "WSD",
    "AdamW",
    "Cosine",
    "Optimizer",
    "Schedule",
    "TrainSegment",
    "Training",
    "learning_rates",
    "load_model",
    "model_facts",
    "segment",
]
