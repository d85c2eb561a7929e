"""How a divided tensor stands in a checkpoint: as one process has it, in rows of the same order."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from torch.distributed.device_mesh import DeviceMesh


class Layout:
    """Between tensors as ranks hold them and as a checkpoint does.

    Args:
        module: divided already.
        device: of whole tensors.
        moved: by parameter, where each row was before it was put in another order: see `tensor.divide`.
        experts: parameters of which each group of experts has a piece: see `exchange.divide`.
        mesh: of groups of experts, copies of each, and pieces of each copy.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        device: str,
        *,
        moved: Mapping[str, torch.Tensor],
        experts: Collection[str],
        mesh: DeviceMesh | None,
    ) -> None:
        self._parameters: dict[str, torch.Tensor] = dict(module.named_parameters())
        self._moved, self._experts, self._mesh, self._device = dict(moved), experts, mesh, device

    def outward(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """Return the value in the checkpoint's order of rows, still divided; one at a time is whole."""
        if not isinstance(value, DTensor):
            return value
        if name in self._experts:
            return self._whole_experts(value.to_local(), value.shape)
        if name not in self._moved:
            return value
        back = torch.argsort(self._moved[name]).to(value.device)
        pieces = (*(Replicate() for _ in value.placements[:-1]), value.placements[-1])
        whole = value.redistribute(placements=pieces).full_tensor()[back]  # the inner pieces first
        placements = [Replicate() if each.is_replicate() else Shard(0) for each in value.placements]
        return distribute_tensor(whole, value.device_mesh, placements, src_data_rank=None)

    def inward(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """Return the value as the parameter is divided."""
        parameter = self._parameters.get(name)
        if not isinstance(parameter, DTensor) or value.ndim != parameter.ndim:
            return value
        if name in self._experts and isinstance(value, DTensor):
            return DTensor.from_local(
                value.to_local(),
                parameter.device_mesh,
                parameter.placements,
                run_check=False,
                shape=parameter.shape,
                stride=parameter.stride(),
            )
        if isinstance(value, DTensor):
            if name not in self._moved:
                return value
            value = value.full_tensor()
        if name in self._moved:
            value = value[self._moved[name].to(value.device)]
        if name in self._experts:
            assert self._mesh is not None
            value = value.chunk(self._mesh.size(0))[self._mesh.get_local_rank(0)]
        return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)

    def like(self, name: str, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        """Return where to read to: divided as the parameter is, or whole where rows must move first."""
        parameter = self._parameters.get(name)
        if isinstance(parameter, DTensor) and len(shape) == parameter.ndim and name not in self._moved:
            empty = torch.empty_like(parameter, dtype=dtype, requires_grad=False)
            if name not in self._experts:
                return empty
            return self._whole_experts(cast("DTensor", empty).to_local(), parameter.shape)
        return torch.empty(shape, dtype=dtype, device=self._device if shape else "cpu")

    def _whole_experts(self, local: torch.Tensor, shape: torch.Size) -> DTensor:
        """Return this rank's piece as one of the experts of all groups."""
        assert self._mesh is not None
        whole = torch.Size((shape[0] * self._mesh.size(0), *shape[1:]))
        stride = torch.empty(whole, device="meta").stride()
        placements = (Shard(0), Replicate(), Shard(0))
        return DTensor.from_local(local, self._mesh, placements, run_check=False, shape=whole, stride=stride)
