"""The loss of a large vocabulary, without the logits of a whole batch.

Shapes: N positions, C positions of one chunk, D d_model, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Iterator

UNCOUNTED = -100
"""Label of a position that gives no loss."""
CHUNK_LOGITS = 2**23
"""Logits worked on at once, 32 MiB in float32. On a CPU, chunks of 1,024 at a vocabulary of 8,192 took
0.77 of the time of one piece, chunks of 512 as long as one piece."""


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
            logits_CV = _logits(x_CD, products_VD, scale, softcap)
            losses.append(_losses(logits_CV, labels_C).sum())
            grad_CV = _gradient(logits_CV, labels_C, scale, softcap).to(kind)
            grads_CD.append(grad_CV @ products_VD)
            if grad_head_VD is not None:
                grad_head_VD += grad_CV.T @ x_CD
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
    """Cut into equal parts whose logits are not more than CHUNK_LOGITS, where one position's are not."""
    n_parts = -(-x_ND.shape[0] * head_VD.shape[0] // CHUNK_LOGITS)
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


def _gradient(
    logits_CV: torch.Tensor, labels_C: torch.Tensor, scale: float, softcap: float | None
) -> torch.Tensor:
    """Return the losses' gradient for the bare products: softmax minus the label, 0 if uncounted."""
    is_label_CV = torch.arange(logits_CV.shape[1], device=logits_CV.device) == labels_C[:, None]
    grad_CV = logits_CV.softmax(dim=1) - is_label_CV.to(logits_CV.dtype)
    if softcap is not None:
        grad_CV = grad_CV * (1 - (logits_CV / softcap) ** 2)  # of c * tanh(z / c)
    if scale != 1.0:
        grad_CV = grad_CV * scale
    return torch.where((labels_C >= 0)[:, None], grad_CV, 0)


def scaled(logits: torch.Tensor, *, scale: float, softcap: float | None) -> torch.Tensor:
    """Return logits times `scale`, bounded to -softcap .. softcap (Gemma 2, arXiv 2408.00118)."""
    if scale != 1.0:
        logits = logits * scale
    return logits if softcap is None else softcap * torch.tanh(logits / softcap)
