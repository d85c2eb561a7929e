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
from modelfactory.models.attention import Attention, QKNorm, Rope
from modelfactory.models.bamba import Bamba
from modelfactory.models.decoder import Block, Decoder
from modelfactory.models.experts import AuxiliaryBalance, BiasBalance, CapacityFactor, Experts
from modelfactory.models.feed_forward import FeedForward, GatedFeedForward
from modelfactory.models.gated_delta import GatedDelta
from modelfactory.models.gemma import Gemma2
from modelfactory.models.gpt2 import GPT2
from modelfactory.models.initial import Initial, gpt2_initial
from modelfactory.models.latent_attention import LatentAttention
from modelfactory.models.llama import Llama
from modelfactory.models.lora import Adapted, LoRA
from modelfactory.models.mamba2 import Mamba2
from modelfactory.models.matrices import Matrix
from modelfactory.models.mixtral import Mixtral
from modelfactory.models.multi_token import MultiToken
from modelfactory.models.norms import LayerNorm, RMSNorm
from modelfactory.models.olmo import OLMo2
from modelfactory.models.qwen import Qwen2, Qwen3, Qwen3MoE
from modelfactory.models.rope import LinearScaling, Llama3Scaling, YaRN

__all__ = [
    "GPT2",
    "Adapted",
    "Architecture",
    "Attention",
    "AuxiliaryBalance",
    "Bamba",
    "BiasBalance",
    "Block",
    "BuildContext",
    "CapacityFactor",
    "Decoder",
    "Experts",
    "FeedForward",
    "GatedDelta",
    "GatedFeedForward",
    "Gemma2",
    "Initial",
    "LanguageModel",
    "LatentAttention",
    "Layer",
    "LayerNorm",
    "LinearScaling",
    "Llama",
    "Llama3Scaling",
    "LoRA",
    "LossSums",
    "Mamba2",
    "Matrix",
    "Mixtral",
    "MultiToken",
    "Norm",
    "OLMo2",
    "Packing",
    "QKNorm",
    "Qwen2",
    "Qwen3",
    "Qwen3MoE",
    "RMSNorm",
    "Rope",
    "Routed",
    "Trained",
    "YaRN",
    "gpt2_initial",
]
