"""Gated DeltaNet: linear attention whose state forgets, and replaces what it holds under a key."""

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
class GatedDelta:
    """Gated DeltaNet (Yang et al. 2024, arXiv 2412.06464, equation 10), a mixer of cost linear in length.

    Each value head h has a matrix S as its state. With key k, query q, both of unit length, value v,
    decay a = exp(-exp(A_log) * softplus(a_proj + dt_bias)) and writing strength b = sigmoid(b_proj):

        S_t = a_t * S_{t-1} (1 - b_t k_t k_t^T) + b_t v_t k_t^T,    y_t = S_t q_t / sqrt(key_head_dim)

    q, k and v pass through a short causal convolution and silu; y through an RMSNorm of each head and a gate
    silu(z). Each key head serves n_value_heads / n_key_heads neighbouring value heads. No positions are
    needed. Parameters are those of Qwen3-Next's linear attention in transformers; see `GatedDeltaMixer` for
    which is which. A row that holds several documents starts each with an empty state and convolution.
    """

    n_key_heads: int
    """Heads of queries and keys."""
    n_value_heads: int
    """Heads of values, gates, decays and strengths: that many states."""
    key_head_dim: int
    value_head_dim: int
    conv_width: int
    """Positions the convolution sees, its own among them; 4 in the paper, 1 for none before."""
    norm_eps: float
    """Of the RMSNorm at the output."""
    chunk: int = not_identity(default=64)
    """Positions worked out at once, a multiple of 16; the result is the same but for rounding."""

    def __post_init__(self) -> None:
        """Refuse sizes below 1 and heads that cannot be shared evenly."""
        check_types(self)
        counts = ("n_key_heads", "n_value_heads", "key_head_dim", "value_head_dim", "conv_width")
        require_positive("GatedDelta", **{name: getattr(self, name) for name in counts})
        require(
            self.n_key_heads >= 1 and self.n_value_heads % self.n_key_heads == 0,
            place="GatedDelta.n_key_heads",
            found=self.n_key_heads,
            wanted=f"a divisor of n_value_heads {self.n_value_heads}",
        )
        require_chunk("GatedDelta", self.chunk)
        require(self.norm_eps > 0, place="GatedDelta.norm_eps", found=self.norm_eps, wanted="above 0")

    @property
    def key_dim(self) -> int:
        """Width of all keys, and of all queries."""
        return self.n_key_heads * self.key_head_dim

    @property
    def value_dim(self) -> int:
        """Width of all values, and of all gates."""
        return self.n_value_heads * self.value_head_dim

    @property
    def conv_dim(self) -> int:
        """Channels of the convolution: queries, keys, values."""
        return 2 * self.key_dim + self.value_dim

    def n_parameters(self, d_model: int) -> int:
        """Return the three projections, the convolution, decays and the gain of the norm."""
        inward = d_model * (self.conv_dim + self.value_dim + 2 * self.n_value_heads)
        own = self.conv_dim * self.conv_width + 2 * self.n_value_heads + self.value_head_dim
        return inward + own + self.value_dim * d_model

    def flops_per_token(self, d_model: int, seq_len: int) -> int:
        """Return 6 for each parameter and, with L = min(chunk, seq_len), what the chunked form adds.

        With Q key_head_dim and V value_head_dim, forward and backward: 12 L Q for each key head (products of
        keys with keys and with queries); 3 L (Q + V) for each value head (a triangular system with Q + V
        right sides), 6 L V (scores times values) and 18 Q V (the state is read twice and written once). The
        length of the sequence enters through L alone. The causal half is not discounted, as for attention.
        """
        length, Q, V = min(self.chunk, seq_len), self.key_head_dim, self.value_head_dim
        scores = 12 * length * Q * self.n_key_heads
        values = (3 * length * (Q + V) + 6 * length * V + 18 * Q * V) * self.n_value_heads
        return 6 * self.n_parameters(d_model) + scores + values

    def matrices(self, d_model: int) -> dict[str, Matrix]:
        """Return those that adapters may be added to, by name."""
        rows = (self.key_dim, self.key_dim, self.value_dim, self.value_dim)
        return {"in_qkvz": Matrix(d_model, rows), "out": Matrix(self.value_dim, (d_model,))}

    def build(self, context: BuildContext) -> torch.nn.Module:
        """Return the module."""
        from modelfactory.models import gated_delta_module

        return gated_delta_module.GatedDeltaMixer(self, context)
