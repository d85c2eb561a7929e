"""One step: gradient of the batch, guards, update."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from modelfactory.errors import NonFiniteLoss, Stopped
from modelfactory.models.modules import named_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from modelfactory.tokens import Batch, Stream
    from modelfactory.train.learner import Learner

_DOCUMENTS_NAMED = 8


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What one step came to."""

    loss: float
    """Mean over valid labels, in nats, before the update."""
    grad_norm: float
    """Of all parameters together, before clipping."""


def gradient(
    learner: Learner,
    batch: Batch,
    *,
    seed: int,
    micro_batch_tokens: int,
    stopping: Callable[[], bool] = lambda: False,
) -> float:
    """Add the gradient of the batch's mean loss to the parameters and return that loss.

    The loss of each part is a sum, divided by the valid labels of the *whole* batch, so any split gives the
    same gradient but for the order of additions. Randomness inside the model, such as dropout, is seeded by
    (seed, step, first row of the part): it does follow the split.

    Raises:
        Stopped: the user asked to, between two parts.
    """
    total = torch.zeros(())
    n_valid = max(batch.n_valid, 1)
    tokens = torch.from_numpy(batch.tokens).long()
    valid = torch.from_numpy(batch.valid)
    for first, last in parts(len(valid), valid.shape[1], micro_batch_tokens):
        if stopping():
            raise Stopped(f"stopped within step {batch.step}, which is not kept")
        if not batch.valid[first:last].any():
            continue  # rows past the end of the run
        torch.manual_seed(named_seed(seed, batch.step, first))
        rows = tokens[first:last]
        loss = learner.loss_sum(rows[:, :-1], rows[:, 1:], valid[first:last]) / n_valid
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.detach()
    return float(total)


def parts(n_rows: int, seq_len: int, micro_batch_tokens: int) -> Iterator[tuple[int, int]]:
    """Yield first and last + 1 of rows that go through the model at once: few and equal parts."""
    n_parts = -(-n_rows // max(micro_batch_tokens // seq_len, 1))
    bounds = [n_rows * n // n_parts for n in range(n_parts + 1)]
    yield from pairwise(bounds)


def update(
    learner: Learner, stream: Stream, batch: Batch, loss: float, *, lr: float, grad_clip: float
) -> StepResult:
    """Clip the gradient and apply it.

    Raises:
        NonFiniteLoss: loss or gradient is not finite; nothing was changed.
    """
    norm = float(torch.nn.utils.clip_grad_norm_(learner.module.parameters(), grad_clip))
    if not (math.isfinite(loss) and math.isfinite(norm)):
        learner.optimizer.zero_grad(set_to_none=True)
        raise NonFiniteLoss(_non_finite(stream, batch.step, loss, norm))
    for group in learner.optimizer.param_groups:
        group["lr"] = lr
    learner.optimizer.step()
    learner.optimizer.zero_grad(set_to_none=True)
    learner.step = batch.step
    learner.n_tokens += batch.n_valid
    return StepResult(loss=loss, grad_norm=norm)


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
