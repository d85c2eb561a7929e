"""Normalisations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from modelfactory.spec import check_types, require

if TYPE_CHECKING:
    import torch


def _require_eps(place: str, eps: float) -> None:
    require(eps > 0, place=f"{place}.eps", found=eps, wanted="a number above 0", remedy="Usual: 1e-5.")


@dataclass(frozen=True, kw_only=True)
class LayerNorm:
    """Zero mean and unit variance, then a gain and a bias (Ba et al. 2016, arXiv 1607.06450)."""

    eps: float
    """Added to the variance."""
    bias: bool

    def __post_init__(self) -> None:
        """Refuse an eps that allows a division by zero."""
        check_types(self)
        _require_eps("LayerNorm", self.eps)

    def n_parameters(self, d_model: int) -> int:
        """Return the gain and the bias."""
        return d_model * (2 if self.bias else 1)

    def build(self, d_model: int) -> torch.nn.Module:
        """Return the module."""
        from modelfactory.models import modules

        return modules.LayerNorm(d_model, eps=self.eps, bias=self.bias)


@dataclass(frozen=True, kw_only=True)
class RMSNorm:
    """Unit mean square, then a gain (Zhang and Sennrich 2019, arXiv 1910.07467)."""

    eps: float
    """Added to the mean square."""
    unit_offset: bool = False
    """Whether the gain is 1 + weight, with weights that start at 0, as in Gemma (arXiv 2403.08295). The same
    function at first, but weight decay then pulls gains to 1 and not to 0. Computed in float32."""

    def __post_init__(self) -> None:
        """Refuse an eps that allows a division by zero."""
        check_types(self)
        _require_eps("RMSNorm", self.eps)

    def n_parameters(self, d_model: int) -> int:
        """Return the gain."""
        return d_model

    def build(self, d_model: int) -> torch.nn.Module:
        """Return the module."""
        from modelfactory.models import modules

        kind = modules.OffsetRMSNorm if self.unit_offset else modules.RMSNorm
        return kind(d_model, eps=self.eps)
