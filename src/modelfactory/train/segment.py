"""The training stage's spec: the state of a run at one step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from modelfactory.models import Architecture
from modelfactory.spec import check_types, not_identity, require
from modelfactory.train.batches import BatchStage, batch_sizes, stages_to
from modelfactory.train.optimizers import Optimizer
from modelfactory.train.schedules import Schedule, learning_rates, sha256_of
from modelfactory.train.training import Precision

if TYPE_CHECKING:
    import numpy as np

    from modelfactory.tokens import Mixture
    from modelfactory.tokens.batch_sizes import BatchSizes
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
    """Of the step `to_step`."""
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
    batch_warmup: tuple[BatchStage, ...] = ()
    """Smaller batches that are over by `to_step`."""
    run_batch_tokens: int | None = not_identity(default=None)
    """What the whole run grows to, where `to_step` is within its warm-up; None where that is over."""
    run_batch_warmup: tuple[BatchStage, ...] = not_identity(default=())
    """The whole warm-up, where `run_batch_tokens` is given."""
    document_masks: bool = False
    """Whether documents that share a row are kept apart."""

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
        for n_tokens in (self.batch_tokens, *(stage.batch_tokens for stage in self.batch_warmup)):
            require(
                self.seq_len >= 1 and n_tokens % self.seq_len == 0,
                place="TrainSegment.batch_tokens",
                found=n_tokens,
                wanted=f"a multiple of seq_len {self.seq_len}",
            )

    @property
    def n_steps(self) -> int:
        """Steps of the whole run."""
        return self._batch_sizes().n_steps(self.n_tokens)

    @property
    def n_tokens_before(self) -> int:
        """Labels of the steps 1 to `from_step`."""
        return self._batch_sizes().up_to(self.from_step)

    @property
    def batch_sequences(self) -> int:
        """Sequences of one step of the run, once its warm-up is over."""
        return self._of_run()[0] // self.seq_len

    @property
    def batch_warmup_sequences(self) -> tuple[tuple[int, int], ...]:
        """Steps and sequences of each of them, by stage of the run's warm-up."""
        return tuple((stage.n_steps, stage.batch_tokens // self.seq_len) for stage in self._of_run()[1])

    def _of_run(self) -> tuple[int, tuple[BatchStage, ...]]:
        if self.run_batch_tokens is None:
            return self.batch_tokens, self.batch_warmup
        return self.run_batch_tokens, self.run_batch_warmup

    def _batch_sizes(self) -> BatchSizes:
        return batch_sizes(*self._of_run())

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
    batch_tokens, over = stages_to(training.batch_tokens, training.batch_warmup, to_step)
    is_over = over == training.batch_warmup
    sizes = batch_sizes(training.batch_tokens, training.batch_warmup)
    return TrainSegment(
        model=model,
        optimizer=training.optimizer,
        seed=training.seed,
        batch_tokens=batch_tokens,
        batch_warmup=over,
        run_batch_tokens=None if is_over else training.batch_tokens,
        run_batch_warmup=() if is_over else training.batch_warmup,
        seq_len=model.max_seq_len,
        precision=training.precision,
        grad_clip=training.grad_clip,
        weights=mixture.weights,
        max_epochs=mixture.max_epochs,
        lrs_sha256=sha256_of(lrs),
        to_step=to_step,
        n_tokens_to_step=min(training.n_tokens, sizes.up_to(to_step)),
        schedule=training.schedule,
        n_tokens=training.n_tokens,
        from_step=from_step,
        document_masks=training.document_masks,
    )
