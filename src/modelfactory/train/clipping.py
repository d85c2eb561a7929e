"""The norm of a gradient, and scaling the gradient down to a norm."""

from __future__ import annotations

import torch

_EPS = 1e-6
"""As in torch.nn.utils.clip_grads_with_norm_, whose numbers these are to the bit."""


def norms_of(gradients: list[torch.Tensor]) -> torch.Tensor:
    """Return the Euclidean norm of each, of shape (n,).

    On a CPU by rows: torch adds squares up in so few sums that 25 million of them come out 0.07 % too small,
    and otherwise for every way to divide a tensor between processes.

    Args:
        gradients: at least one, on one device.
    """
    if gradients[0].device.type != "cpu":
        return torch.stack(torch._foreach_norm(gradients))  # noqa: SLF001 - what torch.nn.utils.get_total_norm calls
    norm = torch.linalg.vector_norm
    return torch.stack([norm(norm(each, dim=-1)) for each in gradients])


def scale_down(gradients: list[torch.Tensor], norm: torch.Tensor, limit: float) -> None:
    """Multiply all gradients by limit / norm if their common norm is above `limit`.

    On a CPU those of a smaller norm are left alone; elsewhere they are multiplied by 1, since looking at the
    norm would make the host wait for the device.

    Args:
        gradients: of any shape, changed in place.
        norm: of all together, a scalar; one that is not finite spreads to all.
        limit: above 0.
    """
    factor = torch.clamp(limit / (norm + _EPS), max=1.0)
    if factor.device.type == "cpu" and bool(factor == 1.0):
        return
    torch._foreach_mul_(gradients, factor)
