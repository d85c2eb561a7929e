"""Torch's Muon, over parameters that hold several matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping


class SplitMuon(torch.optim.Muon):
    """Takes each of the matrices that lie on top of each other in one parameter by itself.

    The step works in place on views of parameter, gradient and average; the state is torch's, one average
    for each parameter.

    Args:
        groups: as torch wants them.
        rows: of each matrix, by parameter; one that is missing is one matrix.
        options: torch's.
    """

    def __init__(
        self, groups: list[dict[str, Any]], rows: Mapping[torch.Tensor, tuple[int, ...]], **options: Any
    ) -> None:
        super().__init__(groups, **options)
        self._rows = rows

    def _init_group(
        self,
        group: Any,
        params_with_grad: list[torch.Tensor],
        grads: list[torch.Tensor],
        muon_momentum_bufs: list[torch.Tensor],
    ) -> bool:
        whole: tuple[list[torch.Tensor], ...] = ([], [], [])
        is_complex = super()._init_group(group, *whole)
        for parameter, gradient, average in zip(*whole, strict=True):
            rows = list(self._rows.get(parameter, (len(parameter),)))
            params_with_grad += torch.split(parameter, rows)
            grads += torch.split(gradient, rows)
            muon_momentum_bufs += torch.split(average, rows)
        return is_complex
