"""How a model is trained, as its author says it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from modelfactory.spec import check_types, require
from modelfactory.train.batches import BatchStage, batch_sizes, check_warmup
from modelfactory.train.optimizers import Optimizer
from modelfactory.train.own_parts import is_own, own_parts_named
from modelfactory.train.schedules import Schedule
from modelfactory.train.start import FromRun, Pretrained

Precision = Literal["bf16", "fp32"]
"""bf16: products in bfloat16 by autocast; weights, gradients and optimizer state stay float32.
fp32: all in float32, but for the step of Muon, which torch works out in bfloat16."""


MOST_STEPS = 10_000_000
"""Of a run: the rate of each step is worked out when it is planned, which takes 2 s for a million."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """One run: so many tokens, in batches, by an optimizer."""

    n_tokens: int
    """Labels that are delivered, exactly; the last step is smaller when batches do not divide them. All are
    trained on, but for those that `document_masks` or the loss mask of conversations take out: these are
    counted here all the same, so that n_tokens, steps and schedule do not depend on what lies in a batch."""
    batch_tokens: int
    """Labels of one step; whole sequences of the model's max_seq_len."""
    optimizer: Optimizer
    schedule: Schedule
    seed: int
    """Of initial weights, unless there is a start, order of the data, and dropout where a model has it."""
    precision: Precision = "bf16"
    grad_clip: float = 1.0
    """Largest norm of the gradient of all parameters together; one that is never met clips nothing."""
    n_checkpoints: int = 4
    """Spread evenly over the steps; the last one is the end of the run. Each is evaluated."""
    batch_warmup: tuple[BatchStage, ...] = ()
    """Smaller batches of the first steps; those after them hold batch_tokens."""
    document_masks: bool = False
    """Whether documents that share a row are kept apart: none sees another, positions start anew, and the
    first token of a document is no label of the last token before it. False: a row is one text."""
    start: Pretrained | FromRun | None = None
    """Weights to begin with; None for random ones. Optimizer, steps and schedule begin anew."""

    def __post_init__(self) -> None:
        """Refuse counts below 1 and a schedule that does not fit into the run."""
        if not check_types(self):
            return  # the faults are collected
        for name in ("n_tokens", "batch_tokens", "n_checkpoints"):
            count = getattr(self, name)
            require(count >= 1, place=f"Training.{name}", found=count, wanted="at least 1")
        place = "Training.seed"
        require(0 <= self.seed < 2**63, place=place, found=self.seed, wanted="between 0 and 2**63 - 1")
        clip = self.grad_clip
        require(
            clip > 0,
            place="Training.grad_clip",
            found=clip,
            wanted="a number above 0",
            remedy="1e9 clips nothing.",
        )
        check_warmup(self.n_tokens, self.batch_tokens, self.batch_warmup)
        require(
            self.n_steps <= MOST_STEPS,
            place="Training.n_tokens",
            found=f"{self.n_tokens:,}, in batches of {self.batch_tokens:,} tokens {self.n_steps:,} steps",
            wanted=f"at most {MOST_STEPS:,} steps",
            remedy="Use larger batches, or fewer tokens.",
        )
        self._check_optimizer()
        self._check_schedule()

    def _check_optimizer(self) -> None:
        """Refuse one of the user's own make without a rate for the schedule to multiply."""
        if not is_own(type(self.optimizer)):
            return
        with own_parts_named(optimizer=self.optimizer):
            lr: object = getattr(self.optimizer, "lr", None)
        require(
            isinstance(lr, int | float) and math.isfinite(lr) and lr > 0,
            place=f"{type(self.optimizer).__name__}.lr",
            found=lr,
            wanted="a finite number above 0",
        )

    def _check_schedule(self) -> None:
        with own_parts_named(schedule=self.schedule):
            least = self.schedule.min_steps()
        require(
            isinstance(least, int),
            place=f"{type(self.schedule).__name__}.min_steps()",
            found=least,
            wanted="a number of steps",
        )
        require(
            self.n_steps >= least,
            place="Training.schedule",
            found=f"{least} steps of warm-up and decay in a run of {self.n_steps}",
            wanted="a schedule that fits into n_tokens / batch_tokens steps",
            remedy="Shorten it, train on more tokens, or use smaller batches.",
        )

    @property
    def n_steps(self) -> int:
        """Steps of the run."""
        return batch_sizes(self.batch_tokens, self.batch_warmup).n_steps(self.n_tokens)

    @property
    def checkpoint_steps(self) -> tuple[int, ...]:
        """Steps after which a checkpoint is kept, in order; fewer than asked where steps are fewer."""
        n_steps, n_checkpoints = self.n_steps, max(self.n_checkpoints, 1)
        marks = (-(-n_steps * n // n_checkpoints) for n in range(1, n_checkpoints + 1))
        return tuple(dict.fromkeys(marks))
