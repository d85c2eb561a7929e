"""Many processes that train one model; torch.distributed is initialised by whoever started them."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, cast

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from modelfactory.errors import SpecError
from modelfactory.train import context, exchange, sharding, tensor
from modelfactory.train.layout import Layout

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from torch.distributed.fsdp import FSDPModule
    from torch.nn.parallel import DistributedDataParallel

    from modelfactory.stage import Device, Parallel
    from modelfactory.train.processes import Sums


class Ranks:
    """One process among many; follows `Processes`.

    Args:
        parallel: how they share the work; its world_size is that of torch.distributed.
        device: the kind they compute on.

    Raises:
        SpecError: torch.distributed has another number of processes.
    """

    def __init__(self, parallel: Parallel, device: Device) -> None:
        self._parallel, self._device = parallel, device
        world_size = dist.get_world_size()
        if world_size != parallel.world_size:
            raise SpecError(
                place="Parallel",
                found=f"{str(parallel) or 'one process'}, {parallel.world_size} processes",
                wanted=f"the {world_size} processes that were started",
                remedy="Give torchrun --nproc-per-node times --nnodes the product of the sizes.",
            )
        sizes = [getattr(parallel, name) for name in ("data", "expert", "context", "shard", "tensor")]
        grid = self._grid = torch.arange(world_size).view(sizes)
        place = (grid == dist.get_rank()).nonzero()[0].tolist()
        data, expert, self.column_rank, shard, _ = place
        self.row_rank = (data * parallel.expert + expert) * parallel.shard + shard
        self.n_row_ranks = parallel.n_row_ranks
        self.is_main = dist.get_rank() == 0
        self._mesh = _mesh(device, grid.flatten(0, 2), "copy", "shard", "tensor")
        self._holders = _mesh(device, grid.flatten(0, 3), "holder", "tensor").get_group("holder")
        around = grid.movedim(2, 0).flatten(1)
        self._context = _mesh(device, around, "context", "other").get_group("context")
        self._expert_mesh: DeviceMesh | None = None
        self._experts: set[str] = set()
        self._ddp: DistributedDataParallel | None = None

    @property
    def _is_replicated(self) -> bool:
        """Whether every process holds all parameters."""
        sizes = (self._parallel.shard, self._parallel.tensor, self._parallel.expert)
        return sizes == (1, 1, 1)

    def spread(self, module: torch.nn.Module, sums: Sums, *, is_compiled: bool, is_bf16: bool) -> Sums:
        """Divide the module; blocks are compiled one by one, between the exchanges."""
        if self._is_replicated or self._parallel.tensor > 1:
            module.to(self._device)  # sharding alone moves block by block: the whole need not fit
        moved = tensor.divide(module, self._mesh["tensor"]) if self._parallel.tensor > 1 else {}
        if self._parallel.expert > 1:
            self._divide_experts(module)
        if self._parallel.context > 1:
            context.gather_keys(module, self._context)
        if is_compiled:
            _compile_blocks(module)
        if self._is_replicated:
            self._ddp = sharding.replicate(module, sums, self._holders)
            sums = self._ddp
        else:
            # A compiled block cannot gather within it, nor one whose products are divided: its weights
            # come at once, unrounded.
            rounds = is_bf16 and not is_compiled and self._parallel.tensor == 1
            mesh = self._mesh["copy", "shard"]
            sums = sharding.shard(module, sums, mesh, self._expert_mesh, is_bf16=rounds)
        self._layout = Layout(
            module, self._device, moved=moved, experts=self._experts, mesh=self._expert_mesh
        )
        if self._parallel.context > 1:
            return context.OwnColumns(sums, self._context.rank(), self._context.size())
        return sums

    def _divide_experts(self, module: torch.nn.Module) -> None:
        """Not all that hold a copy of the rest hold one of an expert: experts have a mesh of their own."""
        grid = self._grid[..., 0].transpose(0, 1).flatten(1, 2)  # tensor is 1
        self._expert_mesh = _mesh(self._device, grid, "expert", "copy", "shard")
        self._experts = exchange.divide(module, self._expert_mesh.get_group("expert"))

    def prepare(self, optimizer: torch.optim.Optimizer) -> None:
        """Group parameters by how they are divided."""
        if not self._is_replicated:
            sharding.split_groups(optimizer)

    def adding(self, module: torch.nn.Module, *, is_last: bool) -> AbstractContextManager[None]:
        """Exchange gradients in the last part only."""
        if self._ddp is not None:
            return nullcontext() if is_last else self._ddp.no_sync()
        return _exchanging(cast("FSDPModule", module), is_last=is_last)

    def total(self, values: list[torch.Tensor]) -> list[torch.Tensor]:
        """Sum over all ranks but those that share matrix products, in one exchange."""
        flat = torch.cat([value.flatten().float() for value in values])
        dist.all_reduce(flat, group=self._holders)
        parts = torch.split(flat, [value.numel() for value in values])
        return [part.view(value.shape) for part, value in zip(parts, values, strict=True)]

    def clip(self, module: torch.nn.Module, limit: float) -> torch.Tensor:
        """See `sharding.clip`."""
        n_pieces = {
            parameter: self._parallel.expert if name in self._experts else 1
            for name, parameter in module.named_parameters()
        }
        return sharding.clip(n_pieces, limit)

    def outward(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """See `Layout`."""
        return self._layout.outward(name, value)

    def inward(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """See `Layout`."""
        return self._layout.inward(name, value)

    def like(self, name: str, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        """See `Layout`."""
        return self._layout.like(name, shape, dtype)


def _compile_blocks(module: torch.nn.Module) -> None:
    blocks = getattr(module, "blocks", None)
    if not isinstance(blocks, torch.nn.ModuleList):
        raise SpecError(
            place="Site.compile",
            found="a model without blocks on several processes",
            wanted="a module whose `blocks` is an nn.ModuleList: each is compiled by itself",
            remedy="Use --compile off, or give the module its blocks.",
        )
    for block in blocks:
        block.compile(dynamic=False)


def _mesh(device: str, grid: torch.Tensor, *names: str) -> DeviceMesh:
    return DeviceMesh(device, grid, mesh_dim_names=names)


@contextmanager
def _exchanging(module: FSDPModule, *, is_last: bool) -> Iterator[None]:
    module.set_requires_gradient_sync(is_last)
    yield
