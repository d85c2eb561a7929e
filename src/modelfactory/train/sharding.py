"""Data parallelism in its three forms, and the gradient of a divided module as one vector.

Gradients are *summed* over ranks, never averaged: each rank's loss is divided by the labels of the whole
batch already.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from modelfactory.models.attention_module import CausalAttention
from modelfactory.models.experts_module import Experts, StackedFeedForward
from modelfactory.models.modules import FeedForward, GatedFeedForward
from modelfactory.train.clipping import norms_of, scale_down

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from modelfactory.train.processes import Sums

METHOD = "training_sums"


class Summing(torch.nn.Module):
    """A module whose forward pass is another one's sums, which is what DDP wraps."""

    def __init__(self, module: nn.Module, sums: Sums) -> None:
        super().__init__()
        self.module, self._sums = module, sums

    def forward(self, *batch: torch.Tensor | None) -> Any:
        """Return the sums."""
        return self._sums(*batch)


def replicate(module: nn.Module, sums: Sums, group: dist.ProcessGroup) -> DistributedDataParallel:
    """Return the sums with gradients exchanged in the backward pass; the module stays as it is (DDP)."""
    wrapped = DistributedDataParallel(
        Summing(module, sums),
        process_group=group,
        init_sync=False,  # weights follow from the seed or a checkpoint: equal everywhere
        forward_sync_buffers=False,
        gradient_as_bucket_view=True,
    )
    # Torch reads a hook's annotations, which are text here; a lambda has none.
    wrapped.register_comm_hook(group, lambda state, bucket: _summed(state, bucket))  # noqa: PLW0108
    return wrapped


def _summed(group: dist.ProcessGroup, bucket: Any) -> Any:
    work: Any = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


def shard(
    module: nn.Module, sums: Sums, mesh: DeviceMesh, expert_mesh: DeviceMesh | None = None, *, is_bf16: bool
) -> Sums:
    """Divide parameters, gradients and optimizer state in place, block by block; return the sums (FSDP2).

    Args:
        module: each of its `blocks` is gathered as a whole when it is used.
        sums: a method of the module, or what stands for it.
        mesh: of two dimensions: copies, and pieces of each.
        expert_mesh: whose last two dimensions are those of experts, if they are divided by themselves.
        is_bf16: whether matrices of blocks are gathered in bfloat16, where autocast would round them anyway,
            so that nothing else is rounded than in one process. Weights as they are kept, what else is
            gathered, and sums of gradients are float32.
    """
    exact, rounded = (
        MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
        for dtype in (None, torch.bfloat16 if is_bf16 else None)
    )
    if expert_mesh is not None:
        for experts in [part for part in module.modules() if isinstance(part, StackedFeedForward)]:
            fully_shard(experts, mesh=expert_mesh["copy", "shard"], mp_policy=rounded)
    for block in getattr(module, "blocks", ()):
        if is_bf16 and (parts := _rounded_anyway(block)):
            fully_shard(parts, mesh=mesh, mp_policy=rounded)
        fully_shard(block, mesh=mesh, mp_policy=exact)
    fully_shard(module, mesh=mesh, mp_policy=exact)
    if not hasattr(module, METHOD):
        setattr(module, METHOD, sums)
    register_fsdp_forward_method(module, METHOD)
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)
    return cast("Sums", getattr(module, METHOD))


def _rounded_anyway(block: nn.Module) -> list[nn.Module]:
    """Return the parts whose weights meet nothing but products that autocast does in bfloat16."""
    found: list[nn.Module] = []
    for layer in block.modules():
        if isinstance(layer, FeedForward | GatedFeedForward):
            found += layer.children()
        elif isinstance(layer, Experts) and layer.capacity is None:
            found += [] if isinstance(layer.experts, FSDPModule) else layer.experts.children()
        elif isinstance(layer, CausalAttention):
            # The norms of queries and keys take the type of `qkv` for that in which weights are kept.
            found += [layer.out] if layer.norm_over else [layer.qkv, layer.out]
    return found


def split_groups(optimizer: torch.optim.Optimizer) -> None:
    """Divide groups by how their parameters are divided: torch's fused kernels take one kind at a time."""
    groups = []
    for group in optimizer.param_groups:
        alike: dict[Any, list[torch.Tensor]] = defaultdict(list)
        for parameter in group["params"]:
            kind = parameter.device_mesh if isinstance(parameter, DTensor) else None
            alike[kind].append(parameter)
        groups += [{**group, "params": parameters} for parameters in alike.values()]
    optimizer.param_groups[:] = groups


def clip(n_pieces: Mapping[torch.nn.Parameter, int], limit: float) -> torch.Tensor:
    """Scale the gradient to a norm of at most `limit`; return the norm it had, over all ranks, float32.

    Each rank adds the squares of what it holds, divided by how many ranks hold the same: one exchange,
    whatever the parameters are divided by.

    Args:
        n_pieces: of each parameter beside those that it is a DTensor of.
        limit: above 0.
    """
    held = [(each.grad, times) for each, times in n_pieces.items() if each.grad is not None]
    locals_ = [each.to_local() if isinstance(each, DTensor) else each for each, _ in held]
    shares = [times * _n_pieces(each) / dist.get_world_size() for each, times in held]
    norms = norms_of(locals_)
    square = (norms.square() * torch.tensor(shares, device=norms.device)).sum()
    dist.all_reduce(square)
    norm = square.sqrt()
    scale_down(locals_, norm, limit)
    return norm


def _n_pieces(gradient: torch.Tensor) -> int:
    """Return in how many pieces it lies; each is on equally many ranks."""
    n_pieces = 1
    if isinstance(gradient, DTensor):
        for size, placement in zip(gradient.device_mesh.shape, gradient.placements, strict=True):
            n_pieces *= 1 if placement.is_replicate() else size
    return n_pieces
