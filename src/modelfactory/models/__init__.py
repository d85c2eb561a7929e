"""Architectures: specs that can be counted and priced without torch, and built with it.

A `Decoder` is composed from small specs, each of which counts its parameters, prices its FLOPs and builds its
module. Families (`GPT2`, `Llama`) are short functions that return a `Decoder` in which every number is
written out. An architecture of your own is any spec that follows `Architecture`; a new mixer or feed-forward
is any spec that follows `Layer`. Nothing is registered, and nothing here imports torch before `build`.
"""

from modelfactory.models.architecture import (
    Architecture,
    BuildContext,
    LanguageModel,
    Layer,
    LossSums,
    Norm,
    Packing,
    Routed,
    Trained,
)
from modelfactory.models.attention import Attention, Rope
from modelfactory.models.decoder import Block, Decoder
from modelfactory.models.feed_forward import FeedForward, GatedFeedForward
from modelfactory.models.gpt2 import GPT2
from modelfactory.models.initial import Initial, gpt2_initial
from modelfactory.models.llama import Llama
from modelfactory.models.norms import LayerNorm, RMSNorm

__all__ = [
    "GPT2",
    "Architecture",
    "Attention",
    "Block",
    "BuildContext",
    "Decoder",
    "FeedForward",
    "GatedFeedForward",
    "Initial",
    "LanguageModel",
    "Layer",
    "LayerNorm",
    "Llama",
    "LossSums",
    "Norm",
    "Packing",
    "RMSNorm",
    "Rope",
    "Routed",
    "Trained",
    "gpt2_initial",
]
