"""Ways to stretch rotary positions over a context that is longer than the one they were trained on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from modelfactory.models.checks import require_positive
from modelfactory.spec import check_types, require


def _require_stretch(place: str, factor: float) -> None:
    remedy = "Leave Rope.scaling out (None) for positions as they are."
    require(
        factor > 1, place=f"{place}.factor", found=factor, wanted="a number above 1: 1 is none", remedy=remedy
    )


@dataclass(frozen=True, kw_only=True)
class LinearScaling:
    """Every position divided by `factor` (Chen et al. 2023, arXiv 2306.15595, equation 4)."""

    factor: float

    def __post_init__(self) -> None:
        """Refuse a factor that stretches nothing."""
        check_types(self)
        _require_stretch("LinearScaling", self.factor)


@dataclass(frozen=True, kw_only=True)
class YaRN:
    """Slow pairs of dimensions divided by `factor`, fast ones left alone (Peng et al. 2023).

    arXiv 2309.00071, section 3.2: a pair that turns more than `beta_fast` times over the original context
    keeps its frequency, one that turns less than `beta_slow` times is stretched, those between are blended.
    As in the authors' code and in transformers, the blend is linear in the number of the pair, not in its
    turns as in the paper's equation.
    """

    factor: float
    original_max_seq_len: int
    """Context that the model was trained on before."""
    beta_fast: float = 32.0
    """Turns over the original context."""
    beta_slow: float = 1.0
    """Turns over the original context."""
    attention_factor: float | Literal["0.1 * ln(factor) + 1"] = "0.1 * ln(factor) + 1"
    """Multiplies rotated queries and keys, so the scores by its square (equation 22)."""
    whole_pairs: bool = True
    """Whether the ends of the blend are rounded outward to whole pairs; gpt-oss does not."""

    def __post_init__(self) -> None:
        """Refuse a factor that stretches nothing and bounds in the wrong order."""
        check_types(self)
        _require_stretch("YaRN", self.factor)
        require_positive("YaRN", original_max_seq_len=self.original_max_seq_len)
        require(
            0 < self.beta_slow < self.beta_fast,
            place="YaRN.beta_slow",
            found=self.beta_slow,
            wanted=f"above 0 and below beta_fast {self.beta_fast}",
        )
        require(
            isinstance(self.attention_factor, str) or self.attention_factor > 0,
            place="YaRN.attention_factor",
            found=self.attention_factor,
            wanted="a number above 0",
        )


@dataclass(frozen=True, kw_only=True)
class Llama3Scaling:
    """Long waves divided by `factor`, short ones left alone, as in Llama 3.1 (arXiv 2407.21783, its code).

    A wave that fits more than `high_freq_factor` times into the original context is short, one that fits
    less than `low_freq_factor` times is long; those between are blended.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_seq_len: int
    """Context that the model was trained on before."""

    def __post_init__(self) -> None:
        """Refuse a factor that stretches nothing and bounds in the wrong order."""
        check_types(self)
        _require_stretch("Llama3Scaling", self.factor)
        require_positive("Llama3Scaling", original_max_seq_len=self.original_max_seq_len)
        require(
            0 < self.low_freq_factor < self.high_freq_factor,
            place="Llama3Scaling.low_freq_factor",
            found=self.low_freq_factor,
            wanted=f"above 0 and below high_freq_factor {self.high_freq_factor}",
        )


def require_stretched(
    scaling: LinearScaling | YaRN | Llama3Scaling | None, theta: float, n_turned: int
) -> None:
    """Raise SpecError if the original context is so long that no pair of dimensions is stretched.

    Args:
        scaling: of the positions.
        theta: base of the wavelengths.
        n_turned: dimensions of a head that turn, two in each pair.
    """
    if scaling is None or isinstance(scaling, LinearScaling) or theta <= 1:  # the last is refused by Rope
        return
    n_turns = scaling.beta_fast if isinstance(scaling, YaRN) else scaling.high_freq_factor
    longest = n_turns * 2 * math.pi * theta ** ((n_turned - 2) / n_turned)
    require(
        scaling.original_max_seq_len < longest,
        place=f"{type(scaling).__name__}.original_max_seq_len",
        found=scaling.original_max_seq_len,
        wanted=f"below {longest:,.0f}: in a longer context every pair of {n_turned} dimensions turns "
        f"{n_turns:g} times or more at Rope.theta {theta:g}, and none is stretched",
        remedy="Give the context that the model was trained on before, or leave Rope.scaling out (None).",
    )
