"""Products of rows with the matrix of their group: the rows of each group lie together.

Shapes: A rows in all, E groups (experts), I numbers in, O numbers out.

On CUDA in bfloat16 it is one kernel (grouped_mm). Elsewhere each group is one product. What is here are
operators of their own to torch.compile, which could not follow sizes that depend on the data.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch.nn import functional


def grouped_product(x_AI: torch.Tensor, w_EOI: torch.Tensor, count_E: torch.Tensor) -> torch.Tensor:
    """Return y_AO: the first count_E[0] rows times w_EOI[0] transposed, the next count_E[1] ..."""
    if x_AI.is_cuda and x_AI.dtype == torch.bfloat16:
        ends_E = count_E.cumsum(0).to(torch.int32)
        return functional.grouped_mm(x_AI, w_EOI.transpose(1, 2), offs=ends_E)
    return cast("torch.Tensor", _product(x_AI, w_EOI, count_E))


@torch.library.custom_op("modelfactory::grouped_product", mutates_args=())
def _product(x_AI: torch.Tensor, w_EOI: torch.Tensor, count_E: torch.Tensor) -> torch.Tensor:
    y_AO = x_AI.new_empty(x_AI.shape[0], w_EOI.shape[1])
    sizes = count_E.tolist()
    for x, y, w_OI in zip(torch.split(x_AI, sizes), torch.split(y_AO, sizes), w_EOI, strict=True):
        torch.mm(x, w_OI.T, out=y)
    return y_AO


@torch.library.custom_op("modelfactory::grouped_outer", mutates_args=())
def _outer(y_AO: torch.Tensor, x_AI: torch.Tensor, count_E: torch.Tensor) -> torch.Tensor:
    """Return w_EOI: in each group, the sum over its rows of y times x; 0 where it has none."""
    w_EOI = x_AI.new_empty(count_E.shape[0], y_AO.shape[1], x_AI.shape[1])
    sizes = count_E.tolist()
    for y, x, w_OI in zip(torch.split(y_AO, sizes), torch.split(x_AI, sizes), w_EOI, strict=True):
        torch.mm(y.T, x, out=w_OI)
    return w_EOI


def _product_shape(x_AI: torch.Tensor, w_EOI: torch.Tensor, count_E: torch.Tensor) -> torch.Tensor:
    del count_E
    return x_AI.new_empty(x_AI.shape[0], w_EOI.shape[1])


def _outer_shape(y_AO: torch.Tensor, x_AI: torch.Tensor, count_E: torch.Tensor) -> torch.Tensor:
    return x_AI.new_empty(count_E.shape[0], y_AO.shape[1], x_AI.shape[1])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    del output
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad_AO: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
    x_AI, w_EOI, count_E = ctx.saved_tensors
    needs_x, needs_w, _ = ctx.needs_input_grad
    grad_x = _product(grad_AO, w_EOI.transpose(1, 2), count_E) if needs_x else None
    return grad_x, _outer(grad_AO, x_AI, count_E) if needs_w else None, None


_product.register_fake(_product_shape)
_outer.register_fake(_outer_shape)
_product.register_autograd(_backward, setup_context=_keep)


def taken(x_ND: torch.Tensor, taken_A: torch.Tensor, places_NK: torch.Tensor) -> torch.Tensor:
    """Return x_ND[taken_A], of which places_NK says where each row of x stands in the result.

    So the gradient is a gather too, and no scatter, whose additions would come in any order on a GPU and one
    after the other on a CPU.
    """
    return cast("torch.Tensor", _taken(x_ND, taken_A, places_NK))


@torch.library.custom_op("modelfactory::taken", mutates_args=())
def _taken(x_ND: torch.Tensor, taken_A: torch.Tensor, places_NK: torch.Tensor) -> torch.Tensor:
    del places_NK
    return x_ND.index_select(0, taken_A)


def _taken_shape(x_ND: torch.Tensor, taken_A: torch.Tensor, places_NK: torch.Tensor) -> torch.Tensor:
    del places_NK
    return x_ND.new_empty(taken_A.shape[0], x_ND.shape[1])


def _keep_places(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    del output
    ctx.save_for_backward(inputs[2])


def _taken_backward(ctx: Any, grad_AD: torch.Tensor) -> tuple[torch.Tensor, None, None]:
    (places_NK,) = ctx.saved_tensors
    grad_AD = grad_AD.index_select(0, places_NK.flatten())
    # The width is given, since none can be inferred where there are no rows.
    return grad_AD.view(*places_NK.shape, grad_AD.shape[1]).sum(1), None, None


_taken.register_fake(_taken_shape)
_taken.register_autograd(_taken_backward, setup_context=_keep_places)
