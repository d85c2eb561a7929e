"""Mamba-2: a state-space mixer whose heads forget by one number each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from modelfactory.models.checks import require_positive
from modelfactory.models.matrices import Matrix
from modelfactory.models.recurrent_checks import require_chunk
from modelfactory.spec import check_types, not_identity, require

if TYPE_CHECKING:
    import torch

    from modelfactory.models.architecture import BuildContext


@dataclass(frozen=True, kw_only=True)
class Mamba2:
    """Mamba-2 (Dao and Gu 2024, arXiv 2405.21060, section 7), a mixer of cost linear in length.

    Each head has a matrix h of head_dim x state_dim as its state. With dt = softplus(dt_proj + dt_bias):

        h_t = exp(-exp(A_log) dt_t) h_{t-1} + dt_t x_t B_t^T,    y_t = h_t C_t + D x_t

    x, B and C pass through a short causal convolution and silu; the output through a gate silu(z), then an
    RMSNorm of each group. B and C are shared by the n_heads / n_groups heads of a group. No positions are
    needed. Parameters are those of Bamba's and Mamba-2's mixers in transformers; see `Mamba2Mixer` for which
    is which. A row that holds several documents starts each with an empty state and convolution.
    """

    n_heads: int
    head_dim: int
    """n_heads * head_dim is the inner width; 2 d_model in the paper, but free."""
    state_dim: int
    """Numbers that each of the head_dim channels of a head keeps; 128 in the paper."""
    n_groups: int
    """Groups of heads that share B and C and are normalised together."""
    conv_width: int
    """Positions the convolution sees, its own among them; 4 in the paper, 1 for none before."""
    conv_bias: bool
    bias: bool
    """Whether the projections into and out of the mixer have one."""
    norm_eps: float
    """Of the RMSNorm at the output."""
    chunk: int = not_identity(default=64)
    """Positions worked out at once, a multiple of 16; the result is the same but for rounding."""

    def __post_init__(self) -> None:
        """Refuse sizes below 1 and heads that cannot be grouped evenly."""
        check_types(self)
        counts = ("n_heads", "head_dim", "state_dim", "n_groups", "conv_width")
        require_positive("Mamba2", **{name: getattr(self, name) for name in counts})
        require(
            self.n_groups >= 1 and self.n_heads % self.n_groups == 0,
            place="Mamba2.n_groups",
            found=self.n_groups,
            wanted=f"a divisor of n_heads {self.n_heads}",
        )
        require_chunk("Mamba2", self.chunk)
        require(self.norm_eps > 0, place="Mamba2.norm_eps", found=self.norm_eps, wanted="above 0")

    @property
    def inner_dim(self) -> int:
        """Width of x, of the gate and of the output before its projection."""
        return self.n_heads * self.head_dim

    @property
    def conv_dim(self) -> int:
        """Channels of the convolution: x, B, C."""
        return self.inner_dim + 2 * self.n_groups * self.state_dim

    @property
    def in_dim(self) -> int:
        """Width of the projection: z, x, B, C, dt."""
        return self.inner_dim + self.conv_dim + self.n_heads

    def n_parameters(self, d_model: int) -> int:
        """Return the two projections, the convolution, A_log, dt_bias and D, and the gain of the norm."""
        projections = (self.in_dim + self.inner_dim) * d_model
        biases = (self.in_dim + d_model if self.bias else 0) + (self.conv_dim if self.conv_bias else 0)
        return projections + biases + self.conv_dim * self.conv_width + 3 * self.n_heads + self.inner_dim

    def flops_per_token(self, d_model: int, seq_len: int) -> int:
        """Return 6 for each parameter and, with L = min(chunk, seq_len), what the chunked form adds.

        With P head_dim and S state_dim, forward and backward: 6 L S for each group (products of C with B), 6
        L P (scores times x) and 12 P S (the state is written and read) for each head. The length of the
        sequence enters through L alone. The causal half is not discounted, as for attention.
        """
        length, P, S = min(self.chunk, seq_len), self.head_dim, self.state_dim
        added = 6 * length * S * self.n_groups + (6 * length * P + 12 * P * S) * self.n_heads
        return 6 * self.n_parameters(d_model) + added

    def matrices(self, d_model: int) -> dict[str, Matrix]:
        """Return those that adapters may be added to, by name."""
        return {"in_zxbcdt": Matrix(d_model, (self.in_dim,)), "out": Matrix(self.inner_dim, (d_model,))}

    def build(self, context: BuildContext) -> torch.nn.Module:
        """Return the module."""
        from modelfactory.models import mamba2_module

        return mamba2_module.Mamba2Mixer(self, context)
