"""Learning rates over a run.

Steps count from 1. All schedules rise linearly: step s of a warm-up of w steps has the share s / w of the
peak, so the first step is never wasted on 0 and the last step of the warm-up has the peak. WSD and Cosine
fall towards `final_share`, which the step *after* the last one would have: so a fall to 0 wastes no step
either.

| step         | 1    | 2    | 3    | 4    | 5    | 6    | 7    | 8    | 9    | 10   |
|--------------|------|------|------|------|------|------|------|------|------|------|
| WSD, linear  | 0.25 | 0.50 | 0.75 | 1.00 | 1.00 | 1.00 | 0.80 | 0.60 | 0.40 | 0.20 |
| WSD, sqrt    | 0.25 | 0.50 | 0.75 | 1.00 | 1.00 | 1.00 | 0.89 | 0.77 | 0.63 | 0.45 |
| WSD, 1-sqrt  | 0.25 | 0.50 | 0.75 | 1.00 | 1.00 | 1.00 | 0.55 | 0.37 | 0.23 | 0.11 |
| Cosine       | 0.25 | 0.50 | 0.75 | 1.00 | 0.95 | 0.81 | 0.61 | 0.39 | 0.19 | 0.05 |
| Constant     | 0.25 | 0.50 | 0.75 | 1.00 | 1.00 | 1.00 | 1.00 | 1.00 | 1.00 | 1.00 |
| InverseSqrt  | 0.25 | 0.50 | 0.75 | 1.00 | 0.89 | 0.82 | 0.76 | 0.71 | 0.67 | 0.63 |

for 10 steps with warmup_steps=4, decay_steps=4 and final_share=0.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Protocol

import numpy as np

from modelfactory.errors import SpecError
from modelfactory.spec import check_types, require


class Schedule(Protocol):
    """A share of the peak learning rate for each step."""

    def lr_share(self, step: int, n_steps: int) -> float:
        """Return the share of step `step`, from 1 to `n_steps`."""

    def min_steps(self) -> int:
        """Return the fewest steps a run with this schedule can have."""

    def __hash__(self) -> int:
        """Return the hash of its values, as frozen dataclasses have it."""


def _check(name: str, warmup_steps: int, final_share: float = 0.0) -> None:
    place = f"{name}.warmup_steps"
    require(warmup_steps >= 0, place=place, found=warmup_steps, wanted="0 or more")
    wanted, remedy = "0 or more and below 1: at 1 nothing falls", "Use Constant, which does not fall."
    is_share = 0 <= final_share < 1
    require(is_share, place=f"{name}.final_share", found=final_share, wanted=wanted, remedy=remedy)


@dataclass(frozen=True, kw_only=True)
class Cosine:
    """Linear warm-up, then half a cosine down (Loshchilov and Hutter 2016, arXiv 1608.03983)."""

    warmup_steps: int
    final_share: float = 0.1

    def __post_init__(self) -> None:
        """Refuse a negative warm-up and shares outside 0 to 1."""
        check_types(self)
        _check("Cosine", self.warmup_steps, self.final_share)

    def lr_share(self, step: int, n_steps: int) -> float:
        """Return the share of the peak at `step`."""
        if step <= self.warmup_steps:
            return step / self.warmup_steps
        progress = (step - self.warmup_steps) / (n_steps - self.warmup_steps + 1)
        return self.final_share + (1 - self.final_share) * 0.5 * (1 + math.cos(math.pi * progress))

    def min_steps(self) -> int:
        """Return the fewest steps a run can have."""
        return max(self.warmup_steps, 1)


@dataclass(frozen=True, kw_only=True)
class WSD:
    """Linear warm-up, a stable stretch, a decay at the end (Hu et al. 2024, arXiv 2404.06395).

    Runs of different length are equal until the shorter one starts its decay, so they share that trunk.
    """

    warmup_steps: int
    decay_steps: int
    final_share: float = 0.0
    shape: Literal["linear", "sqrt", "1-sqrt"] = "linear"
    """Of what is left at share p of the decay: 1 - p; sqrt(1 - p), which falls fast at the end; or
    1 - sqrt(p), which falls fast at first (Hägele et al. 2024, arXiv 2405.18392)."""

    def __post_init__(self) -> None:
        """Refuse negative stretches and shares outside 0 to 1."""
        check_types(self)
        _check("WSD", self.warmup_steps, self.final_share)
        require(self.decay_steps >= 0, place="WSD.decay_steps", found=self.decay_steps, wanted="0 or more")
        for name, default in (("final_share", 0.0), ("shape", "linear")):
            value = getattr(self, name)
            require(
                self.decay_steps > 0 or value == default,
                place=f"WSD.{name}",
                found=value,
                wanted="nothing where decay_steps is 0: it would have no effect",
                remedy="Leave it out, or give decay_steps.",
            )

    def lr_share(self, step: int, n_steps: int) -> float:
        """Return the share of the peak at `step`."""
        if step <= self.warmup_steps:
            return step / self.warmup_steps
        decayed = step - (n_steps - self.decay_steps)
        if decayed <= 0:
            return 1.0
        left = _left(self.shape, decayed / (self.decay_steps + 1))
        return self.final_share + (1 - self.final_share) * left

    def min_steps(self) -> int:
        """Return the fewest steps a run can have."""
        return max(self.warmup_steps + self.decay_steps, 1)


def _left(shape: Literal["linear", "sqrt", "1-sqrt"], progress: float) -> float:
    if shape == "sqrt":
        return math.sqrt(1 - progress)
    return 1 - (progress if shape == "linear" else math.sqrt(progress))


@dataclass(frozen=True, kw_only=True)
class Constant:
    """Linear warm-up, then the peak to the end.

    A run of any length is the beginning of a longer one.
    """

    warmup_steps: int

    def __post_init__(self) -> None:
        """Refuse a negative warm-up."""
        check_types(self)
        _check("Constant", self.warmup_steps)

    def lr_share(self, step: int, n_steps: int) -> float:
        """Return the share of the peak at `step`."""
        del n_steps
        return step / self.warmup_steps if step < self.warmup_steps else 1.0

    def min_steps(self) -> int:
        """Return the fewest steps a run can have."""
        return max(self.warmup_steps, 1)


@dataclass(frozen=True, kw_only=True)
class InverseSqrt:
    """Linear warm-up of w steps, then sqrt(w / step) (Vaswani et al. 2017, arXiv 1706.03762, equation 3).

    The paper's peak follows from d_model; here it is the optimizer's lr. A run of any length is the beginning
    of a longer one.
    """

    warmup_steps: int
    """At least 1: the longer, the slower the rate falls after it."""

    def __post_init__(self) -> None:
        """Refuse a warm-up of no step, which would leave the fall without a scale."""
        check_types(self)
        place = "InverseSqrt.warmup_steps"
        require(self.warmup_steps >= 1, place=place, found=self.warmup_steps, wanted="at least 1")

    def lr_share(self, step: int, n_steps: int) -> float:
        """Return the share of the peak at `step`."""
        del n_steps
        return min(step / self.warmup_steps, math.sqrt(self.warmup_steps / step))

    def min_steps(self) -> int:
        """Return the fewest steps a run can have."""
        return self.warmup_steps


def learning_rates(
    schedule: Schedule, lr: float, n_steps: int
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the learning rate of the steps 1 to `n_steps`.

    Raises:
        SpecError: the schedule raises, or gives what is no share.
    """
    return lr * _shares(schedule, n_steps)


@lru_cache(maxsize=64)
def _shares(schedule: Schedule, n_steps: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Kept, since a sweep asks for the same few; computed by `math`: numpy's cosine differs by processor."""
    steps = range(1, n_steps + 1)
    shares = np.fromiter((_share(schedule, step, n_steps) for step in steps), np.float64, n_steps)
    shares.flags.writeable = False
    return shares


def _share(schedule: Schedule, step: int, n_steps: int) -> float:
    """Return what the schedule says, if it can be used: it may be of the user's own make."""
    place = f"{type(schedule).__name__}.lr_share({step}, {n_steps})"
    wanted, remedy = "a finite number, 0 or more", "Mend the schedule."
    try:
        share: object = schedule.lr_share(step, n_steps)
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
        raise SpecError(place=place, found=found, wanted=wanted, remedy=remedy) from error
    if isinstance(share, int | float | np.number) and math.isfinite(share) and share >= 0:
        return float(share)
    raise SpecError(place=place, found=repr(share), wanted=wanted, remedy=remedy)


def sha256_of(lrs: np.ndarray[tuple[int], np.dtype[np.float64]]) -> str:
    """Return the SHA-256 of the rates as little-endian float64."""
    return hashlib.sha256(lrs.astype("<f8").tobytes()).hexdigest()
