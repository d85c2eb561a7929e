"""One step: gradient of the batch, guards, update."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
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
    observed: dict[str, torch.Tensor] = field(default_factory=dict)
    """What the model tells besides, summed over the batch, such as the tokens of each expert."""


@dataclass(frozen=True, kw_only=True)
class Gradient:
    """What the parts of a batch came to, their gradients being added to the parameters."""

    loss: float
    """Mean over valid labels, in nats."""
    observed: dict[str, torch.Tensor]


def gradient(
    learner: Learner,
    batch: Batch,
    *,
    seed: int,
    micro_batch_tokens: int,
    stopping: Callable[[], bool] = lambda: False,
) -> Gradient:
    """Add the gradient of the batch's mean loss to the parameters and return that loss.

    The loss of each part is a sum, divided by the valid labels of the *whole* batch, so any split gives the
    same gradient but for the order of additions. Randomness inside the model, such as dropout, is seeded by
    (seed, step, first row of the part): it does follow the split.

    Raises:
        Stopped: the user asked to, between two parts.
    """
    total, observed = torch.zeros(()), dict[str, torch.Tensor]()
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
        sums = learner.sums(rows[:, :-1], rows[:, 1:], valid[first:last])
        ((sums.loss + sums.extra) / n_valid).backward()  # type: ignore[no-untyped-call]
        total += sums.loss.detach() / n_valid
        for name, value in sums.observed.items():
            observed[name] = observed[name] + value if name in observed else value
    return Gradient(loss=float(total), observed=observed)


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
    norm = float(torch.nn.utils.clip_grad_norm_(learner.module.parameters(), grad_clip))
    loss = found.loss
    if not (math.isfinite(loss) and math.isfinite(norm)):
        learner.optimizer.zero_grad(set_to_none=True)
        raise NonFiniteLoss(_non_finite(stream, batch.step, loss, norm))
    for group in learner.optimizer.param_groups:
        group["lr"] = lr * group.get("lr_scale", 1.0)
    learner.optimizer.step()
    learner.optimizer.zero_grad(set_to_none=True)
    learner.after_step(found.observed)
    learner.step = batch.step
    learner.n_tokens += batch.n_valid
    return StepResult(loss=loss, grad_norm=norm, observed=found.observed)


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
