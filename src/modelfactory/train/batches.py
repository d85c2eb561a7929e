"""Batch-size warm-up: small batches first."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from modelfactory.spec import check_types, require
from modelfactory.tokens.batch_sizes import BatchSizes

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, kw_only=True)
class BatchStage:
    """A stretch of steps with one batch size."""

    n_steps: int
    batch_tokens: int
    """Labels of one step; whole sequences of the model's max_seq_len."""

    def __post_init__(self) -> None:
        """Refuse a stretch of nothing."""
        check_types(self)
        for name in ("n_steps", "batch_tokens"):
            count = getattr(self, name)
            require(count >= 1, place=f"BatchStage.{name}", found=count, wanted="at least 1")


def batch_sizes(batch_tokens: int, warmup: Sequence[BatchStage]) -> BatchSizes:
    """Return the labels of each step."""
    return BatchSizes(batch_tokens, [(stage.n_steps, stage.batch_tokens) for stage in warmup])


def stages_to(
    batch_tokens: int, warmup: Sequence[BatchStage], step: int
) -> tuple[int, tuple[BatchStage, ...]]:
    """Return the batch size of `step`, and the stages that are over by then.

    So the same value comes of all runs whose batches up to `step` are equal, whatever follows.
    """
    over: list[BatchStage] = []
    left = step
    for stage in warmup:
        if left <= stage.n_steps:
            return stage.batch_tokens, tuple(over)
        over.append(stage)
        left -= stage.n_steps
    return batch_tokens, tuple(over)


def check_warmup(n_tokens: int, batch_tokens: int, warmup: Sequence[BatchStage]) -> None:
    """Raise SpecError unless batches grow from stage to stage, and the run gets past all of them."""
    sizes = [*(stage.batch_tokens for stage in warmup), batch_tokens]
    require(
        all(small < large for small, large in pairwise(sizes)),
        place="Training.batch_warmup",
        found=sizes,
        wanted="batch_tokens that grow from stage to stage, and then to those of Training",
        remedy="Merge stages of one size.",
    )
    taken = sum(stage.n_steps * stage.batch_tokens for stage in warmup)
    require(
        taken < n_tokens or not warmup,
        place="Training.batch_warmup",
        found=f"stages of {taken:,} tokens in a run of {n_tokens:,}",
        wanted="a run that gets past its warm-up",
        remedy="Shorten it, or train on more tokens.",
    )
