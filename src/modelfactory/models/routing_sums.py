"""What the layers of experts of a whole decoder come to.

Shapes: B batch, T time (position), E experts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from modelfactory.models.architecture import Routed

LOAD, DROPPED = ".load", ".dropped"
"""End the names of what is observed of a layer of experts."""


def routing_sums(
    told: Mapping[str, Routed], valid_BT: torch.Tensor
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the auxiliary losses summed, each row as often as it has valid labels, and what is observed.

    Loads count all positions of a row that has a valid label, and none of another: a row past the end of the
    run is skipped or not, depending on how the batch is split.
    """
    n_valid_B = valid_BT.sum(1)
    is_counted_B = n_valid_B > 0
    balance = torch.zeros((), device=valid_BT.device)
    observed: dict[str, torch.Tensor] = {}
    for name, (_, balance_B, load_BE, dropped_B) in told.items():
        balance = balance + (balance_B * n_valid_B).sum()
        observed[name + LOAD] = (load_BE * is_counted_B[:, None]).sum(0).detach()
        if dropped_B is not None:
            observed[name + DROPPED] = (dropped_B * is_counted_B).sum().detach()
    return balance, observed
