"""The loss of a large vocabulary, without the logits of a whole batch.

Shapes: N positions, C positions of one chunk, D d_model, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch.nn import functional

from modelfactory.models.loss_chunks import n_chunks

if TYPE_CHECKING:
    from collections.abc import Iterator

UNCOUNTED = -100
"""Label of a position that gives no loss."""


def cross_entropy_sum(
    x_ND: torch.Tensor,
    head_VD: torch.Tensor,
    labels_N: torch.Tensor,
    *,
    scale: float = 1.0,
    softcap: float | None = None,
) -> torch.Tensor:
    """Return the sum of -log p(label) in nats, float32, over positions whose label is not UNCOUNTED.

    Where a gradient is wanted it is worked out beside the loss, chunk by chunk, since it is linear in the
    gradient of the sum: no logits are kept, and none are worked out twice (Hsu et al. 2024, arXiv 2410.10989,
    section 3.2). Products are in autocast's type where that is on; softmax and sums are in float32.

    Args:
        x_ND: hidden states.
        head_VD: one row for each token.
        labels_N: int64.
        scale: multiplies the logits.
        softcap: bounds them, see `scaled`.
    """
    kind = _product_type(x_ND)
    if torch.is_grad_enabled() and (x_ND.requires_grad or head_VD.requires_grad):
        options = (labels_N, kind, scale, softcap)
        return cast("torch.Tensor", _Sum.apply(x_ND, head_VD, *options))  # type: ignore[no-untyped-call]
    x_ND, head_VD = x_ND.to(kind), head_VD.to(kind)
    parts = [
        _losses(_logits(x_CD, head_VD, scale, softcap), labels_C).sum()
        for x_CD, labels_C in _chunks(x_ND, labels_N, head_VD)
    ]
    return torch.stack(parts).sum()


def _product_type(x_ND: torch.Tensor) -> torch.dtype:
    """Return the type of matrix products: autocast's where that is on."""
    device = x_ND.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x_ND.dtype


class _Sum(torch.autograd.Function):
    """The sum of losses; its gradients are worked out in the forward pass."""

    @staticmethod
    def forward(  # noqa: PLR0917 - apply takes no keywords
        ctx: Any,
        x_ND: torch.Tensor,
        head_VD: torch.Tensor,
        labels_N: torch.Tensor,
        kind: torch.dtype,
        scale: float,
        softcap: float | None,
    ) -> torch.Tensor:
        products_VD = head_VD.to(kind)
        losses, grads_CD = [], []
        is_frozen = not head_VD.requires_grad
        grad_head_VD = None if is_frozen else torch.zeros_like(head_VD)
        for x_CD, labels_C in _chunks(x_ND.to(kind), labels_N, head_VD):
            wide_CV = _logits(x_CD, products_VD, scale, softcap)
            losses_C, wide_CV = _with_gradient(wide_CV, labels_C, scale, softcap)
            losses.append(losses_C.sum())
            grad_CV = wide_CV.to(kind)
            del wide_CV  # of the largest tensors one is freed before the next is made
            grads_CD.append(grad_CV @ products_VD)
            if grad_head_VD is not None:
                grad_head_VD += grad_CV.T @ x_CD
            del grad_CV
        ctx.save_for_backward(torch.cat(grads_CD).to(x_ND.dtype), grad_head_VD)
        return torch.stack(losses).sum()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        grad_ND, grad_VD = ctx.saved_tensors
        to_head = None if grad_VD is None else grad_VD * grad.to(grad_VD.dtype)
        return grad_ND * grad.to(grad_ND.dtype), to_head, None, None, None, None


def _chunks(
    x_ND: torch.Tensor, labels_N: torch.Tensor, head_VD: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Cut into equal parts of not more than `loss_chunks.rows_per_chunk`."""
    n_parts = n_chunks(x_ND.shape[0], head_VD.shape[0])
    return zip(x_ND.tensor_split(n_parts), labels_N.tensor_split(n_parts), strict=True)


def _logits(x_CD: torch.Tensor, head_VD: torch.Tensor, scale: float, softcap: float | None) -> torch.Tensor:
    """Return logits_CV in float32 or wider."""
    product = functional.linear(x_CD, head_VD)
    wide = product.to(torch.promote_types(product.dtype, torch.float32))
    return scaled(wide, scale=scale, softcap=softcap)


def _losses(logits_CV: torch.Tensor, labels_C: torch.Tensor) -> torch.Tensor:
    """Return the loss of each position, 0 where it is not counted."""
    chosen_C = logits_CV.gather(1, labels_C.clamp(min=0)[:, None])[:, 0]
    return torch.where(labels_C >= 0, logits_CV.logsumexp(dim=1) - chosen_C, 0)


def _with_gradient(
    logits_CV: torch.Tensor, labels_C: torch.Tensor, scale: float, softcap: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return losses and their gradient for the bare products, both 0 where a label is not counted.

    The gradient, softmax minus label, is written over the logits.
    """
    is_counted_C, labels_C1 = labels_C >= 0, labels_C.clamp(min=0)[:, None]
    slope_CV = None if softcap is None else 1 - (logits_CV / softcap) ** 2  # of c * tanh(z / c)
    chosen_C1, largest_C1 = logits_CV.gather(1, labels_C1), logits_CV.amax(dim=1, keepdim=True)
    total_C1 = logits_CV.sub_(largest_C1).exp_().sum(dim=1, keepdim=True)
    losses_C = (total_C1.log() + largest_C1 - chosen_C1)[:, 0].where(is_counted_C, 0)
    _subtract_one_at(labels_C1, logits_CV.div_(total_C1))
    if slope_CV is not None:
        logits_CV.mul_(slope_CV)
    if scale != 1.0:
        logits_CV.mul_(scale)
    return losses_C, logits_CV.masked_fill_(~is_counted_C[:, None], 0)


def _subtract_one_at(labels_C1: torch.Tensor, wide_CV: torch.Tensor) -> None:
    """Subtract 1 from the number of each row that its label names, in place."""
    if torch.compiler.is_compiling():  # fuses with what stands around it, as a scatter would not
        wide_CV.sub_((torch.arange(wide_CV.shape[1], device=wide_CV.device) == labels_C1).to(wide_CV))
    else:
        wide_CV.scatter_add_(1, labels_C1, torch.full_like(labels_C1, -1, dtype=wide_CV.dtype))


def scaled(logits: torch.Tensor, *, scale: float, softcap: float | None) -> torch.Tensor:
    """Return logits times `scale`, bounded to -softcap .. softcap (Gemma 2, arXiv 2408.00118)."""
    if scale != 1.0:
        logits = logits * scale
    return logits if softcap is None else softcap * torch.tanh(logits / softcap)
