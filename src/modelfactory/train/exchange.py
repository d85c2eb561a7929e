"""Expert parallelism: each rank of a group has some of the experts, and rows of its own.

Tokens travel to the rank of each expert they chose and back, twice an exchange of all with all (Lepikhin et
al. 2020, arXiv 2006.16668). None is dropped, so messages are as uneven as the routing.

Shapes: A assignments of tokens to experts here, G those that got here, E experts, P ranks of the group,
L = E / P experts of each, D d_model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.distributed._functional_collectives import all_to_all_single

from modelfactory.models.experts_module import Experts
from modelfactory.models.grouped import taken

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch import nn


def divide(module: nn.Module, group: dist.ProcessGroup) -> set[str]:
    """Keep only this rank's experts in each layer of them, in place; return the names of their parameters."""
    names: set[str] = set()
    for name, layer in module.named_modules():
        if isinstance(layer, Experts):
            experts: Any = layer.experts
            for kind, parameter in experts.named_parameters():
                parameter.data = parameter.data.chunk(group.size())[group.rank()].clone()
                names.add(f"{name}.experts.{kind}")
            experts.forward = Exchanged(experts.forward, group)
    return names


class Exchanged:
    """Stands in for the forward pass of stacked experts: of all, where `forward` has only this rank's."""

    def __init__(self, forward: Any, group: dist.ProcessGroup) -> None:
        self._forward, self._group, self._size = forward, group, group.size()

    def __call__(self, x_AD: torch.Tensor, expert_A: torch.Tensor, count_E: torch.Tensor) -> torch.Tensor:
        """Return y_AD; rows are sorted by expert, of which expert e has count_E[e]."""
        del expert_A  # follows from the counts
        got_PL = all_to_all_single(count_E, None, None, self._group).view(self._size, -1)
        sizes = torch.stack((count_E.view(self._size, -1).sum(1), got_PL.sum(1)))
        sent, got = sizes.tolist()  # messages need their lengths on the host
        x_GD = all_to_all_single(x_AD, got, sent, self._group)
        local_L = torch.arange(got_PL.shape[1], device=x_AD.device)
        local_G = local_L.repeat(self._size).repeat_interleave(got_PL.flatten())
        local_G, order_G = local_G.sort(stable=True)
        place_G = torch.argsort(order_G)
        y_GD = self._forward(taken(x_GD, order_G, place_G[:, None]), local_G, got_PL.sum(0))
        y_GD = taken(y_GD, place_G, order_G[:, None])
        return all_to_all_single(y_GD, sent, got, self._group)
