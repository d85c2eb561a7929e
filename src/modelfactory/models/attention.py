"""Causal self-attention: multi-head, grouped-query and multi-query, with or without a window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from modelfactory.models.architecture import Norm
from modelfactory.models.checks import require_positive, require_scale
from modelfactory.models.matrices import Matrix
from modelfactory.models.part_results import counted
from modelfactory.models.roles import require_role
from modelfactory.models.rope import LinearScaling, Llama3Scaling, YaRN, require_stretched
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
    share: float = 1.0
    """Part of the dimensions of a head that turn, the first ones; the others carry no position."""
    scaling: LinearScaling | YaRN | Llama3Scaling | None = None
    """How the positions are stretched over a longer context."""

    def __post_init__(self) -> None:
        """Refuse a base at which wavelengths do not grow, and a share that is none."""
        check_types(self)
        require(self.theta > 1, place="Rope.theta", found=self.theta, wanted="a number above 1")
        wanted = "above 0 and at most 1"
        require(0 < self.share <= 1, place="Rope.share", found=self.share, wanted=wanted)

    def n_turned(self, head_dim: int) -> int:
        """Return how many dimensions of a head turn."""
        return int(head_dim * self.share)


@dataclass(frozen=True, kw_only=True)
class QKNorm:
    """Queries and keys normalised before they turn (Henry et al. 2020, arXiv 2010.04245)."""

    norm: Norm
    """With parameters of its own for queries and for keys."""
    over: Literal["head", "width"]
    """head: each head by itself, with parameters that all heads share, as in Qwen 3 (arXiv 2505.09388).
    width: all heads side by side, as in OLMo 2 (arXiv 2501.00656)."""

    def __post_init__(self) -> None:
        """Check the types."""
        check_types(self)
        require_role(self.norm, "norm", "QKNorm.norm")


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

    window: int | None = None
    """Positions that each one sees, itself included; None for all (Beltagy et al. 2020, arXiv 2004.05150)."""
    softcap: float | None = None
    """Bounds the scaled scores smoothly by c * tanh(score / c) (Gemma 2, arXiv 2408.00118)."""
    qk_norm: QKNorm | None = None
    gate: bool = False
    """Whether each head's output is multiplied, dimension by dimension, by the sigmoid of a projection of x
    (Qiu et al. 2025, arXiv 2505.06708)."""

    def __post_init__(self) -> None:
        """Refuse heads that cannot be shared evenly, rotations of an odd number of dimensions, odd bounds."""
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
        for name in ("scale", "softcap"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                require_scale(f"Attention.{name}", value)
        if self.window is not None:
            require_positive("Attention", window=self.window)
        if self.rope is not None:
            require_turns("Attention.head_dim", self.head_dim, self.rope)

    def check(self, d_model: int, max_seq_len: int) -> None:
        """Refuse a window that no position of the context fills."""
        del d_model
        require(
            self.window is None or self.window < max_seq_len,
            place="Attention.window",
            found=self.window,
            wanted=f"below max_seq_len {max_seq_len}: a window as long as the context has no effect",
            remedy="Leave it out (None) for attention over all earlier positions.",
        )

    @property
    def qkv_dim(self) -> int:
        """Width of queries, keys, values and perhaps the gate side by side."""
        return ((2 if self.gate else 1) * self.n_heads + 2 * self.n_kv_heads) * self.head_dim

    @property
    def norm_widths(self) -> tuple[int, int]:
        """Numbers that are normalised together, of queries and of keys; meant for layers with `qk_norm`."""
        if self.qk_norm is None or self.qk_norm.over == "head":
            return self.head_dim, self.head_dim
        return self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim

    def n_parameters(self, d_model: int) -> int:
        """Return the two projections, their biases, and the norms of queries and keys."""
        inward = self.qkv_dim * (d_model + (1 if self.qkv_bias else 0))
        outward = self.n_heads * self.head_dim * d_model + (d_model if self.out_bias else 0)
        norm = None if self.qk_norm is None else self.qk_norm.norm
        widths = self.norm_widths if norm else ()
        return inward + outward + sum(counted(norm, "n_parameters", each) for each in widths)

    def flops_per_token(self, d_model: int, seq_len: int) -> int:
        """Return 6 for each parameter and 12 * n_heads * head_dim * seq_len for scores and their use.

        A window counts in place of seq_len where it is shorter. Bounds, rotations and the gate's product
        count nothing, as the softmax does.
        """
        n_seen = seq_len if self.window is None else min(self.window, seq_len)
        return 6 * self.n_parameters(d_model) + 12 * self.n_heads * self.head_dim * n_seen

    @property
    def qkv_rows(self) -> tuple[int, ...]:
        """Rows of queries, keys, values and perhaps the gate."""
        counts = (self.n_heads, self.n_kv_heads, self.n_kv_heads, *((self.n_heads,) if self.gate else ()))
        return tuple(n_heads * self.head_dim for n_heads in counts)

    def matrices(self, d_model: int) -> dict[str, Matrix]:
        """Return those that adapters may be added to, by name."""
        out = Matrix(self.n_heads * self.head_dim, (d_model,))
        return {"qkv": Matrix(d_model, self.qkv_rows), "out": out}

    def build(self, context: BuildContext) -> torch.nn.Module:
        """Return the module."""
        from modelfactory.models import attention_module

        return attention_module.CausalAttention(self, context)


def require_turns(place: str, head_dim: int, rope: Rope) -> None:
    """Raise SpecError unless rotary positions turn whole pairs of a head's dimensions, and a scaling some."""
    n_turned = rope.n_turned(head_dim)
    require(
        n_turned % 2 == 0,
        place=place,
        found=head_dim
        if rope.share == 1
        else f"{n_turned} of {head_dim} dimensions at Rope.share {rope.share}",
        wanted="an even number: rotary positions turn pairs of dimensions",
    )
    wanted = f"a share that turns at least 2 of {head_dim} dimensions"
    require(n_turned >= 1, place="Rope.share", found=rope.share, wanted=wanted)
    if n_turned >= 2:  # else that is the fault
        require_stretched(rope.scaling, rope.theta, n_turned)
