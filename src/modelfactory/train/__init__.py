"""Training: a run is a chain of segments, each from one checkpoint to the next.

Specs are here and import no torch. `train.stage.run` carries out a segment, `load_model` gives the model of
a segment that was carried out, `train.speed.measure` says what this machine can do.
"""

from modelfactory.train.batches import BatchStage
from modelfactory.train.eight_bit import AdamW8bit
from modelfactory.train.loading import load_model, model_facts
from modelfactory.train.muon import Muon
from modelfactory.train.optimizers import AdamW, Optimizer
from modelfactory.train.schedules import WSD, Constant, Cosine, InverseSqrt, Schedule, learning_rates
from modelfactory.train.segment import TrainSegment, segment
from modelfactory.train.soap import SOAP
from modelfactory.train.start import FromRun, Pretrained
from modelfactory.train.training import Training

__all__ = [
    "SOAP",
    "WSD",
    "AdamW",
    "AdamW8bit",
    "BatchStage",
    "Constant",
    "Cosine",
    "FromRun",
    "InverseSqrt",
    "Muon",
    "Optimizer",
    "Pretrained",
    "Schedule",
    "TrainSegment",
    "Training",
    "learning_rates",
    "load_model",
    "model_facts",
    "segment",
]
