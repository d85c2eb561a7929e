"""The training stage's spec: the state of a run at one step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from modelfactory.models import Architecture
from modelfactory.spec import check_types, not_identity, require
from modelfactory.train.optimizers import Optimizer
from modelfactory.train.schedules import Schedule, learning_rates, sha256_of
from modelfactory.train.training import Precision

if TYPE_CHECKING:
    import numpy as np

    from modelfactory.tokens import Mixture
    from modelfactory.train.training import Training


@dataclass(frozen=True, kw_only=True)
class TrainSegment:
    """A run from one checkpoint to the next.

    Its identity is *the state at `to_step`*: all that the steps 1 to `to_step` follow from, and nothing
    that only later steps or the place of earlier checkpoints follow from. So runs that agree up to a step
    share the segments up to it, whatever their length and schedule after it.
    """

    model: Architecture
    optimizer: Optimizer
    seed: int
    batch_tokens: int
    seq_len: int
    precision: Precision
    grad_clip: float
    weights: tuple[float, ...]
    """Of the mixture's parts, in the order of the inputs tokens0, tokens1, ..."""
    max_epochs: tuple[float, ...]
    lrs_sha256: str
    """Of the learning rates of the steps 1 to `to_step`."""
    to_step: int
    n_tokens_to_step: int
    """Labels of the steps 1 to `to_step`: fewer than full batches hold when a run ends within a step."""
    schedule: Schedule = not_identity()  # noqa: RUF009 - declares a field
    n_tokens: int = not_identity()
    """Labels of the whole run."""
    from_step: int = not_identity()
    """Where it continues; 0 for the start."""

    def __post_init__(self) -> None:
        """Refuse a segment without steps, steps past the run, and batches of broken sequences."""
        check_types(self)
        within = 0 <= self.from_step < self.to_step <= self.n_steps
        require(
            within,
            place="TrainSegment.to_step",
            found=f"{self.from_step} to {self.to_step}",
            wanted=f"steps upwards from 0 to at most {self.n_steps}",
        )
        whole = self.seq_len >= 1 and self.batch_tokens % self.seq_len == 0
        require(
            whole,
            place="TrainSegment.batch_tokens",
            found=self.batch_tokens,
            wanted=f"a multiple of seq_len {self.seq_len}",
        )

    @property
    def n_steps(self) -> int:
        """Steps of the whole run."""
        return -(-self.n_tokens // max(self.batch_tokens, 1))

    @property
    def batch_sequences(self) -> int:
        """Sequences of one step."""
        return self.batch_tokens // self.seq_len

    def lrs(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Return the learning rate of the steps 1 to `to_step`.

        Raises:
            SpecError: they are not those that `lrs_sha256` names.
        """
        lrs = learning_rates(self.schedule, self.optimizer.lr, self.n_steps)[: self.to_step]
        require(
            sha256_of(lrs) == self.lrs_sha256,
            place="TrainSegment.lrs_sha256",
            found=self.lrs_sha256,
            wanted=f"{sha256_of(lrs)}, which schedule and optimizer give",
            remedy="Build segments with modelfactory.train.segment, by the code that runs them.",
        )
        return lrs


def segment(
    training: Training, model: Architecture, mixture: Mixture, *, from_step: int, to_step: int
) -> TrainSegment:
    """Return the segment of a run that goes from `from_step` to `to_step`; steps count from 1."""
    lrs = learning_rates(training.schedule, training.optimizer.lr, training.n_steps)[:to_step]
    return TrainSegment(
        model=model,
        optimizer=training.optimizer,
        seed=training.seed,
        batch_tokens=training.batch_tokens,
        seq_len=model.max_seq_len,
        precision=training.precision,
        grad_clip=training.grad_clip,
        weights=mixture.weights,
        max_epochs=mixture.max_epochs,
        lrs_sha256=sha256_of(lrs),
        to_step=to_step,
        n_tokens_to_step=min(training.n_tokens, to_step * training.batch_tokens),
        schedule=training.schedule,
        n_tokens=training.n_tokens,
        from_step=from_step,
    )
