"""Rotary positions: frequencies and the turning itself.

Shapes: B batch, T time (position), H heads, Q head_dim, P pairs of dimensions that turn together.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

import torch
from torch import nn

from modelfactory.models.rope import LinearScaling, Llama3Scaling, YaRN

if TYPE_CHECKING:
    from modelfactory.models.architecture import BuildContext, Packing
    from modelfactory.models.attention import Rope


class Rotation(nn.Module):
    """Turns the first dimensions of each head, and leaves the others."""

    def __init__(self, rope: Rope, head_dim: int, context: BuildContext) -> None:
        super().__init__()
        cos_TP, sin_TP = _shared_rotations(rope, head_dim, context)
        self.n_turned = rope.n_turned(head_dim)
        self.turns_all = self.n_turned == head_dim
        self.register_buffer("cos_TP", cos_TP, persistent=False)
        self.register_buffer("sin_TP", sin_TP, persistent=False)

    def forward(self, x_BTHQ: torch.Tensor, start: int, packing: Packing | None) -> torch.Tensor:
        """Turn each pair by its angle, in float32 as the tables are.

        Args:
            x_BTHQ: queries or keys.
            start: position of the first of them, where `packing` does not tell.
            packing: positions within documents.
        """
        places = slice(start, start + x_BTHQ.shape[1]) if packing is None else packing.positions_BT
        cos = cast("torch.Tensor", self.cos_TP)[places].unsqueeze(-2)
        sin = cast("torch.Tensor", self.sin_TP)[places].unsqueeze(-2)
        first, second = x_BTHQ[..., : self.n_turned].chunk(2, dim=-1)
        turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
        turned = turned.to(x_BTHQ.dtype)
        return turned if self.turns_all else torch.cat((turned, x_BTHQ[..., self.n_turned :]), dim=-1)


def _shared_rotations(rope: Rope, head_dim: int, context: BuildContext) -> tuple[torch.Tensor, torch.Tensor]:
    key = (rope, head_dim)
    if key not in context.shared:
        context.shared[key] = rotations(rope, head_dim, context.max_seq_len)
    return cast("tuple[torch.Tensor, torch.Tensor]", context.shared[key])


def rotations(rope: Rope, head_dim: int, max_seq_len: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cos_TP and sin_TP in float32, both times the attention factor."""
    frequencies_P = frequencies(rope, head_dim)
    angles_TP = torch.outer(torch.arange(max_seq_len, dtype=torch.float32), frequencies_P)
    factor = attention_factor(rope)
    return angles_TP.cos() * factor, angles_TP.sin() * factor


def frequencies(rope: Rope, head_dim: int) -> torch.Tensor:
    """Return the angle, in radians, by which each pair turns from one position to the next; P, float32."""
    n_turned = rope.n_turned(head_dim)
    exponents_P = torch.arange(0, n_turned, 2, dtype=torch.float32) / n_turned
    plain_P = 1.0 / rope.theta**exponents_P
    if isinstance(rope.scaling, LinearScaling):
        return plain_P / rope.scaling.factor
    if isinstance(rope.scaling, YaRN):
        return _blended(plain_P, rope.scaling.factor, _yarn_share(rope.scaling, rope.theta, n_turned))
    if isinstance(rope.scaling, Llama3Scaling):
        return _blended(plain_P, rope.scaling.factor, _llama3_share(rope.scaling, plain_P))
    return plain_P


def attention_factor(rope: Rope) -> float:
    """Return what rotated queries and keys are multiplied by."""
    scaling = rope.scaling
    if not isinstance(scaling, YaRN):
        return 1.0
    if isinstance(scaling.attention_factor, str):
        return 0.1 * math.log(scaling.factor) + 1.0
    return scaling.attention_factor


def _blended(plain_P: torch.Tensor, factor: float, share_P: torch.Tensor) -> torch.Tensor:
    """Stretch each frequency by as much of the factor as its share says."""
    return plain_P * (1 - share_P) + plain_P / factor * share_P


def _yarn_share(scaling: YaRN, theta: float, n_turned: int) -> torch.Tensor:
    def pair_of(n_turns: float) -> float:
        """Return the pair, counted as a real number, that turns so often over the original context."""
        wavelength = scaling.original_max_seq_len / n_turns
        return n_turned * math.log(wavelength / (2 * math.pi)) / (2 * math.log(theta))

    low, high = pair_of(scaling.beta_fast), pair_of(scaling.beta_slow)
    if scaling.whole_pairs:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, n_turned - 1)
    width = (high - low) or 1e-3  # a step
    return ((torch.arange(n_turned // 2, dtype=torch.float32) - low) / width).clamp(0, 1)


def _llama3_share(scaling: Llama3Scaling, plain_P: torch.Tensor) -> torch.Tensor:
    fits_P = scaling.original_max_seq_len * plain_P / (2 * math.pi)
    width = scaling.high_freq_factor - scaling.low_freq_factor
    return 1 - ((fits_P - scaling.low_freq_factor) / width).clamp(0, 1)
