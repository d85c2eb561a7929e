"""Multi-head latent attention (DeepSeek-AI 2024, arXiv 2405.04434, section 2.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from modelfactory.models.architecture import Norm
from modelfactory.models.attention import Rope, require_turns
from modelfactory.models.checks import require_positive
from modelfactory.models.matrices import Matrix
from modelfactory.models.part_results import counted
from modelfactory.models.roles import require_role
from modelfactory.spec import check_types, require

if TYPE_CHECKING:
    import torch

    from modelfactory.models.architecture import BuildContext


@dataclass(frozen=True, kw_only=True)
class LatentAttention:
    """Softmax attention whose keys and values are projected from one narrow vector, the latent.

    The cache holds kv_rank + rope_head_dim numbers a token. Positions are carried by dimensions of their own:
    rope_head_dim of each query head and of one key that all heads share.
    """

    n_heads: int
    q_rank: int | None
    """Width of a latent of the queries (equation 12); None for queries projected from x itself."""
    kv_rank: int
    """Width of the latent of keys and values (equation 9)."""
    nope_head_dim: int
    """Dimensions of a head's queries and keys that carry no position."""
    rope_head_dim: int
    """Dimensions of a head's queries, and of the shared key, that turn."""
    v_head_dim: int
    rope: Rope
    norm: Norm
    """Of the latents, with parameters of its own for each."""
    scale: float | Literal["1/sqrt(nope_head_dim + rope_head_dim)"] = "1/sqrt(nope_head_dim + rope_head_dim)"
    """Multiplies the scores before the softmax."""

    def __post_init__(self) -> None:
        """Refuse sizes below 1 and rotations of an odd number of dimensions, or of a part of them."""
        check_types(self)
        require_role(self.norm, "norm", "LatentAttention.norm")
        for name in ("n_heads", "kv_rank", "nope_head_dim", "rope_head_dim", "v_head_dim"):
            require_positive("LatentAttention", **{name: getattr(self, name)})
        if self.q_rank is not None:
            require_positive("LatentAttention", q_rank=self.q_rank)
        require(
            isinstance(self.scale, str) or self.scale > 0,
            place="LatentAttention.scale",
            found=self.scale,
            wanted="a number above 0",
        )
        require(
            self.rope.share == 1,
            place="LatentAttention.rope.share",
            found=self.rope.share,
            wanted="1: dimensions without position are nope_head_dim",
        )
        require_turns("LatentAttention.rope_head_dim", self.rope_head_dim, self.rope)

    @property
    def qk_head_dim(self) -> int:
        """Dimensions of a query."""
        return self.nope_head_dim + self.rope_head_dim

    @property
    def q_inward(self) -> int:
        """Width of what x is projected to on the way to queries."""
        return self.n_heads * self.qk_head_dim if self.q_rank is None else self.q_rank

    def n_parameters(self, d_model: int) -> int:
        """Return the projections, inward, from the latents and outward, and the norms of the latents."""
        inward = d_model * (self.q_inward + self.kv_rank + self.rope_head_dim)
        keys_values = self.kv_rank * self.n_heads * (self.nope_head_dim + self.v_head_dim)
        norms = counted(self.norm, "n_parameters", self.kv_rank)
        queries = 0
        if self.q_rank is not None:
            queries = self.q_rank * self.n_heads * self.qk_head_dim
            norms += counted(self.norm, "n_parameters", self.q_rank)
        return inward + queries + keys_values + norms + self.n_heads * self.v_head_dim * d_model

    def flops_per_token(self, d_model: int, seq_len: int) -> int:
        """Return 6 for each parameter, and 6 * seq_len for each dimension of all queries and all values."""
        mixed = self.n_heads * (self.qk_head_dim + self.v_head_dim)
        return 6 * self.n_parameters(d_model) + 6 * mixed * seq_len

    def matrices(self, d_model: int) -> dict[str, Matrix]:
        """Return those that adapters may be added to, by name."""
        n_heads, kv_dim = self.n_heads, self.nope_head_dim + self.v_head_dim
        found = {
            "inward": Matrix(d_model, (self.q_inward, self.kv_rank, self.rope_head_dim)),
            "kv_up": Matrix(self.kv_rank, (n_heads * kv_dim,)),
            "out": Matrix(n_heads * self.v_head_dim, (d_model,)),
        }
        if self.q_rank is not None:
            found["q_up"] = Matrix(self.q_rank, (n_heads * self.qk_head_dim,))
        return found

    def build(self, context: BuildContext) -> torch.nn.Module:
        """Return the module."""
        from modelfactory.models import latent_attention_module

        return latent_attention_module.LatentAttention(self, context)
