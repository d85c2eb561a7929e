"""Position-wise feed-forward layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from modelfactory.models.checks import require_positive
from modelfactory.models.matrices import Matrix
from modelfactory.spec import check_types

if TYPE_CHECKING:
    import torch

    from modelfactory.models.architecture import BuildContext

Activation = Literal["gelu", "gelu_tanh", "silu", "relu_squared"]
"""gelu_tanh is GPT-2's approximation of gelu (Hendrycks and Gimpel 2016, arXiv 1606.08415); relu_squared is
max(x, 0)^2 (So et al. 2021, arXiv 2109.08668)."""


@dataclass(frozen=True, kw_only=True)
class FeedForward:
    """Up to d_ff, an activation, down again."""

    d_ff: int
    activation: Activation
    bias: bool

    def __post_init__(self) -> None:
        """Refuse a layer without width."""
        check_types(self)
        require_positive("FeedForward", d_ff=self.d_ff)

    def n_parameters(self, d_model: int) -> int:
        """Return both matrices and their biases."""
        return 2 * d_model * self.d_ff + (self.d_ff + d_model if self.bias else 0)

    def flops_per_token(self, d_model: int, seq_len: int) -> int:
        """Return 6 for each parameter."""
        del seq_len
        return 6 * self.n_parameters(d_model)

    def matrices(self, d_model: int) -> dict[str, Matrix]:
        """Return those that adapters may be added to, by name."""
        return {"up": Matrix(d_model, (self.d_ff,)), "down": Matrix(self.d_ff, (d_model,))}

    def build(self, context: BuildContext) -> torch.nn.Module:
        """Return the module."""
        from modelfactory.models import modules

        return modules.FeedForward(self, context)


@dataclass(frozen=True, kw_only=True)
class GatedFeedForward:
    """An activated gate times a linear map, then down; with silu it is SwiGLU (Shazeer 2020, 2002.05202)."""

    d_ff: int
    activation: Activation
    bias: bool

    def __post_init__(self) -> None:
        """Refuse a layer without width."""
        check_types(self)
        require_positive("GatedFeedForward", d_ff=self.d_ff)

    def n_parameters(self, d_model: int) -> int:
        """Return the three matrices and their biases."""
        return 3 * d_model * self.d_ff + (2 * self.d_ff + d_model if self.bias else 0)

    def flops_per_token(self, d_model: int, seq_len: int) -> int:
        """Return 6 for each parameter."""
        del seq_len
        return 6 * self.n_parameters(d_model)

    def matrices(self, d_model: int) -> dict[str, Matrix]:
        """Return those that adapters may be added to, by name."""
        return {"gate_up": Matrix(d_model, (self.d_ff, self.d_ff)), "down": Matrix(self.d_ff, (d_model,))}

    def build(self, context: BuildContext) -> torch.nn.Module:
        """Return the module."""
        from modelfactory.models import modules

        return modules.GatedFeedForward(self, context)
