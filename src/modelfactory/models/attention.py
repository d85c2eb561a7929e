"""Causal self-attention: multi-head, grouped-query and multi-query, with or without rotary positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from modelfactory.models.checks import require_positive
from modelfactory.spec import check_types, require

if TYPE_CHECKING:
    import torch

    from modelfactory.models.architecture import BuildContext


@dataclass(frozen=True, kw_only=True)
class Rope:
    """Rotary positions (Su et al. 2021, arXiv 2104.09864).

    Dimension i is paired with i + head_dim / 2, as in transformers, not with its neighbour as in the paper:
    the same function up to a permutation of the weights.
    """

    theta: float
    """Base of the wavelengths; 10,000 in the paper, 500,000 in Llama 3."""

    def __post_init__(self) -> None:
        """Refuse a base at which wavelengths do not grow."""
        check_types(self)
        require(self.theta > 1, place="Rope.theta", found=self.theta, wanted="a number above 1")


@dataclass(frozen=True, kw_only=True)
class Attention:
    """Softmax attention over all earlier positions, scaled by 1 / sqrt(head_dim)."""

    n_heads: int
    n_kv_heads: int
    """Heads of keys and values, each shared by n_heads / n_kv_heads query heads (Ainslie et al. 2023)."""
    head_dim: int
    """Usually d_model / n_heads, but free."""
    qkv_bias: bool
    out_bias: bool
    rope: Rope | None
    scale: float | Literal["1/sqrt(head_dim)"] = "1/sqrt(head_dim)"
    """Multiplies the scores before the softmax; muP has 1 / head_dim."""

    def __post_init__(self) -> None:
        """Refuse heads that cannot be shared evenly, and rotations of an odd number of dimensions."""
        check_types(self)
        require_positive(
            "Attention", n_heads=self.n_heads, n_kv_heads=self.n_kv_heads, head_dim=self.head_dim
        )
        require(
            self.n_kv_heads >= 1 and self.n_heads % self.n_kv_heads == 0,
            place="Attention.n_kv_heads",
            found=self.n_kv_heads,
            wanted=f"a divisor of n_heads {self.n_heads}",
        )
        require(
            isinstance(self.scale, str) or self.scale > 0,
            place="Attention.scale",
            found=self.scale,
            wanted="a number above 0",
        )
        require(
            self.rope is None or self.head_dim % 2 == 0,
            place="Attention.head_dim",
            found=self.head_dim,
            wanted="an even number: rotary positions turn pairs of dimensions",
        )

    @property
    def qkv_dim(self) -> int:
        """Width of queries, keys and values side by side."""
        return (self.n_heads + 2 * self.n_kv_heads) * self.head_dim

    def n_parameters(self, d_model: int) -> int:
        """Return the two projections and their biases."""
        inward = self.qkv_dim * (d_model + (1 if self.qkv_bias else 0))
        return inward + self.n_heads * self.head_dim * d_model + (d_model if self.out_bias else 0)

    def flops_per_token(self, d_model: int, seq_len: int) -> int:
        """Return 6 for each parameter and 12 * n_heads * head_dim * seq_len for scores and their use."""
        return 6 * self.n_parameters(d_model) + 12 * self.n_heads * self.head_dim * seq_len

    def build(self, context: BuildContext) -> torch.nn.Module:
        """Return the module."""
        from modelfactory.models import attention_module

        return attention_module.CausalAttention(self, context)
