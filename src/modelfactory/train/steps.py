"""One step: gradient of the batch, guards, update."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

from modelfactory.errors import NonFiniteLoss, Stopped
from modelfactory.models.modules import named_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from modelfactory.models import LossSums
    from modelfactory.tokens import Batch, Stream
    from modelfactory.train.learner import Learner
    from modelfactory.train.processes import Processes

_DOCUMENTS_NAMED = 8


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What one step came to."""

    loss: float | None
    """Mean over valid labels, in nats, before the update; None for a step without any."""
    grad_norm: float
    """Of all parameters together, before clipping."""
    observed: dict[str, torch.Tensor] = field(default_factory=dict)
    """What the model tells besides, summed over the batch, such as the tokens of each expert."""
    n_valid: int = 0
    """Labels of the whole batch that counted."""


@dataclass(frozen=True, kw_only=True)
class Gradient:
    """What the parts of a batch came to, their gradients being added to the parameters."""

    loss: torch.Tensor
    """Mean over valid labels of all processes, in nats; where the model is, so that nothing waits for it."""
    observed: dict[str, torch.Tensor]
    n_valid: int
    """Labels of the whole batch."""


def gradient(
    learner: Learner,
    batch: Batch,
    *,
    seed: int,
    micro_batch_tokens: int,
    n_valid: int | None = None,
    stopping: Callable[[], bool] = lambda: False,
) -> Gradient:
    """Add the gradient of the batch's mean loss to the parameters and return that loss.

    Of many processes each has its own rows, equally many; gradients are exchanged once, in the last part.

    The loss of each part is a sum, divided by the valid labels of the *whole* batch, so any split gives the
    same gradient but for the order of additions. Randomness inside the model, such as dropout, is seeded by
    (seed, step, first row of the part, piece of the row): it does follow the split.

    Args:
        learner: whose parameters' gradients are added to.
        batch: the rows of this process.
        seed: of the run.
        micro_batch_tokens: go through the model at once.
        n_valid: labels of the whole batch that count; by default those of `batch`, which then is the whole.
        stopping: see Raises.

    Raises:
        Stopped: the user asked to, between two parts.
    """
    n_valid = batch.n_valid if n_valid is None else n_valid
    tokens, valid = (_moved(each, learner.device) for each in (batch.tokens, batch.valid))
    documents = None if batch.documents is None else _moved(batch.documents, learner.device).long()
    sums = _Sums(learner.device)
    processes = learner.processes
    bounds = _bounds(batch, micro_batch_tokens, skips=processes.n_row_ranks == 1)
    first_row = processes.row_rank * len(valid)
    piece = (processes.column_rank,) if processes.column_rank else ()  # the first draws what a whole row does
    for n, (first, last) in enumerate(bounds, start=1):
        if stopping():
            raise Stopped(f"stopped within step {batch.step}, which is not kept")
        counts = bool(batch.valid[first:last].any())
        torch.manual_seed(named_seed(seed, batch.step, first_row + first, *piece))
        rows = tokens[first:last].long()
        with processes.adding(learner.module, is_last=n == len(bounds)):
            apart = None if documents is None else documents[first:last]
            found = learner.sums(rows[:, :-1], rows[:, 1:], valid[first:last], apart)
            mean = (found.loss + found.extra) / max(n_valid, 1)
            # All ranks compute, since they exchange on the way.
            (mean if counts else 0.0 * mean).backward()  # type: ignore[no-untyped-call]
        sums.add(found, max(n_valid, 1), counts=counts)
    return sums.gradient(processes, n_valid)


def _bounds(batch: Batch, micro_batch_tokens: int, *, skips: bool) -> list[tuple[int, int]]:
    """Return the parts of the batch.

    Args:
        batch: of this process.
        micro_batch_tokens: see `gradient`.
        skips: whether parts without a label that counts are left out: no other process waits for them. One
            is kept where none has any, so that every parameter has a gradient.
    """
    bounds = list(parts(len(batch.valid), batch.valid.shape[1], micro_batch_tokens))
    counted = [(first, last) for first, last in bounds if not skips or batch.valid[first:last].any()]
    return counted or bounds[:1]


def _moved(array: NDArray[Any], device: str) -> torch.Tensor:
    """Return the array where the model is, without waiting until it is there."""
    tensor = torch.from_numpy(array)
    return tensor if device == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


class _Sums:
    """What the parts of a batch add up to."""

    def __init__(self, device: str) -> None:
        self._loss = torch.zeros((), device=device)
        self._observed: dict[str, torch.Tensor] = {}

    def add(self, found: LossSums, n_valid: int, *, counts: bool) -> None:
        """Add what a part came to; one that does not count tells others which sums there are."""
        self._loss += found.loss.detach() / n_valid if counts else 0.0
        for name, part in found.observed.items():
            value = part if counts else torch.zeros_like(part)
            before = self._observed.get(name)
            self._observed[name] = value if before is None else before + value

    def gradient(self, processes: Processes, n_valid: int) -> Gradient:
        """Return the sums over all parts and processes."""
        names = sorted(self._observed)
        loss, *observed = processes.total([self._loss, *(self._observed[name] for name in names)])
        return Gradient(loss=loss, observed=dict(zip(names, observed, strict=True)), n_valid=n_valid)


def parts(n_rows: int, seq_len: int, micro_batch_tokens: int) -> Iterator[tuple[int, int]]:
    """Yield first and last + 1 of rows that go through the model at once: few and equal parts."""
    n_parts = -(-n_rows // max(micro_batch_tokens // seq_len, 1))
    bounds = [n_rows * n // n_parts for n in range(n_parts + 1)]
    yield from pairwise(bounds)


def update(
    learner: Learner, stream: Stream, batch: Batch, found: Gradient, *, lr: float, grad_clip: float
) -> StepResult:
    """Clip the gradient and apply it.

    Raises:
        NonFiniteLoss: loss or gradient is not finite; nothing was changed.
    """
    norm_tensor = learner.processes.clip(learner.module, grad_clip)
    loss, norm = torch.stack((found.loss, norm_tensor)).tolist()  # the only wait for the device in a step
    observed = {name: value.cpu() for name, value in found.observed.items()}
    if not (math.isfinite(loss) and math.isfinite(norm)):
        learner.optimizer.zero_grad(set_to_none=True)
        raise NonFiniteLoss(_non_finite(stream, batch.step, loss, norm))
    for group in learner.optimizer.param_groups:
        group["lr"] = lr * group.get("lr_scale", 1.0)
    with learner.own_parts_named():
        learner.optimizer.step()
    learner.optimizer.zero_grad(set_to_none=True)
    learner.after_step(found.observed)
    learner.step = batch.step
    learner.n_tokens = stream.n_tokens_to(batch.step)
    mean = loss if found.n_valid else None
    return StepResult(loss=mean, grad_norm=norm, observed=observed, n_valid=found.n_valid)


def _non_finite(stream: Stream, step: int, loss: float, norm: float) -> str:
    return (
        f"step {step}: loss {loss}, gradient norm {norm}. Nothing was updated, and the last checkpoint "
        f"stands. Documents of the batch: {_documents(stream, step)}. Lower the learning rate, lengthen the "
        "warm-up, or look at these documents."
    )


def _documents(stream: Stream, step: int) -> str:
    """Name the documents of a batch by path and id, the first few of them."""
    seen = dict.fromkeys((span.source, span.document) for span in stream.documents(step))
    named = [
        f"{document.path} ({document.document_id[:12]})"
        for document in (stream.shards[source].document(row) for source, row in list(seen)[:_DOCUMENTS_NAMED])
    ]
    more = len(seen) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")
