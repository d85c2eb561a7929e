"""What layers keep between forward and backward pass, counted by formula: nothing is allocated.

Every formula was read off the tensors that autograd saves, and a test holds it against them. D is d_model, T
the length of a row; numbers are those of one token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from modelfactory.models.attention import Attention
from modelfactory.models.experts import Experts
from modelfactory.models.feed_forward import FeedForward, GatedFeedForward
from modelfactory.models.gated_delta import GatedDelta
from modelfactory.models.latent_attention import LatentAttention
from modelfactory.models.mamba2 import Mamba2
from modelfactory.models.norms import RMSNorm
from modelfactory.models.part_results import n_active_parameters
from modelfactory.models.query_block_sizes import is_worth_query_blocks, mean_keys

if TYPE_CHECKING:
    from modelfactory.models.architecture import Layer, Norm


class Kept(NamedTuple):
    """Numbers kept for each token."""

    product: float = 0.0
    """In the type of matrix products: 2 bytes each in bf16, 4 in fp32."""
    wide: float = 0.0
    """In float32, whatever the precision."""

    def plus(self, *others: Kept) -> Kept:
        """Return the sum."""
        every = (self, *others)
        return Kept(sum(each.product for each in every), sum(each.wide for each in every))

    def times(self, number: float) -> Kept:
        """Return a multiple."""
        return Kept(self.product * number, self.wide * number)

    def n_bytes(self, *, is_bf16: bool) -> float:
        """Return the bytes of one token."""
        return self.product * (2 if is_bf16 else 4) + self.wide * 4


@dataclass(frozen=True, kw_only=True)
class Pass:
    """How a model is gone through, as far as what is kept hangs on it; not a spec."""

    seq_len: int
    n_rows: int
    """Rows that go through the model at once."""
    is_bf16: bool
    is_compiled: bool
    is_cpu: bool = True

    def keeps_weights(self, n_heads: int) -> bool:
        """Say whether attention without a bound on its scores keeps its weights: see `query_blocks`."""
        is_there = self.is_compiled and self.is_bf16 and self.is_cpu
        return is_there and is_worth_query_blocks(self.n_rows, n_heads, self.seq_len)


def kept_by_norm(norm: Norm, width: int, how: Pass) -> Kept:
    """Return what a norm keeps: its input, and uncompiled RMSNorm its output before the gain as well."""
    is_twice = isinstance(norm, RMSNorm) and not how.is_compiled
    return Kept(wide=width * (2 if is_twice else 1) + 1)


def kept_by_layer(layer: Layer, d_model: int, how: Pass) -> Kept:
    """Return what a mixer or feed-forward keeps, its input in the type of products included.

    A layer of your own may have `kept_numbers(d_model, how) -> Kept`. One without it is taken for a
    feed-forward of as many parameters as a token meets: an input and, of each matrix, an output.
    """
    found: Kept
    own = getattr(layer, "kept_numbers", None)
    if own is not None:
        found = own(d_model, how)
        return found
    for kind, formula in _FORMULAS:
        if isinstance(layer, kind):
            found = formula(layer, d_model, how)
            return found
    return Kept(product=d_model + n_active_parameters(layer, d_model) / d_model)


def _feed_forward(layer: FeedForward, d_model: int, how: Pass) -> Kept:
    del how
    return Kept(product=d_model + 2 * layer.d_ff)


def _gated(layer: GatedFeedForward, d_model: int, how: Pass) -> Kept:
    """Gate, up and their product; uncompiled also the gate after its activation."""
    return Kept(product=d_model + (3 if how.is_compiled else 4) * layer.d_ff)


def _attention(layer: Attention, d_model: int, how: Pass) -> Kept:
    A, K = layer.n_heads * layer.head_dim, layer.n_kv_heads * layer.head_dim
    kept = Kept(product=d_model + (2 * A if layer.gate else 0))
    if layer.qk_norm is not None:
        kept = kept.plus(_qk_norm(layer, A + K, how))
    turned = A + K if layer.rope is not None or layer.qk_norm is not None else 0
    if how.keeps_weights(layer.n_heads):
        weights = layer.n_heads * mean_keys(how.seq_len, layer.window)
        return kept.plus(Kept(product=2 * A + 2 * K + weights, wide=0 if layer.softcap is None else weights))
    window = layer.window
    in_blocks = window is not None and window >= 8 and 4 * window <= how.seq_len
    n_keys = 2 * window if in_blocks and window is not None else how.seq_len
    if layer.softcap is not None:
        scores = layer.n_heads * n_keys
        # the bounded scores in float32, and the weights in the type of products
        return kept.plus(Kept(product=2 * A + (4 if in_blocks else 2) * K + scores, wide=scores))
    if in_blocks:
        return kept.plus(Kept(product=2 * A + 4 * K + n_keys, wide=layer.n_heads))
    mask = 0.0 if window is None else how.seq_len / how.n_rows  # one for all rows
    return kept.plus(Kept(product=layer.qkv_dim + turned + A + mask, wide=layer.n_heads))


def _qk_norm(layer: Attention, width: int, how: Pass) -> Kept:
    """In bf16 the norm's input is a copy in float32."""
    is_rms = layer.qk_norm is not None and isinstance(layer.qk_norm.norm, RMSNorm)
    return Kept(wide=width * (int(how.is_bf16) + int(is_rms and not how.is_compiled)))


def _latent(layer: LatentAttention, d_model: int, how: Pass) -> Kept:
    ranks = layer.kv_rank + (layer.q_rank or 0)
    queries, values = layer.n_heads * layer.qk_head_dim, layer.n_heads * layer.v_head_dim
    norms = kept_by_norm(layer.norm, ranks, how)
    if not how.is_bf16:  # no copy in float32: the norm's input is a view of the whole projection
        norms = norms.plus(Kept(wide=layer.q_inward + layer.kv_rank + layer.rope_head_dim - ranks))
    if how.keeps_weights(layer.n_heads):
        weights = layer.n_heads * mean_keys(how.seq_len, None)
        return norms.plus(Kept(product=d_model + ranks + 2 * queries + 2 * values + weights))
    if layer.qk_head_dim > layer.v_head_dim:  # torch's kernels want values as wide as queries: padded copies
        mixed = 4 * queries + values
    else:
        mixed = 2 * queries + 2 * values + layer.n_heads * layer.nope_head_dim
    return norms.plus(Kept(product=d_model + ranks + mixed, wide=layer.n_heads))


def _experts(layer: Experts, d_model: int, how: Pass) -> Kept:
    """The router sees the input in float32; rows are copied to the experts and back."""
    each = kept_by_layer(layer.expert, d_model, how).times(layer.n_active)
    shared = Kept() if layer.shared is None else kept_by_layer(layer.shared, d_model, how)
    routed = Kept(product=layer.n_active * d_model, wide=d_model + layer.n_experts + 10 * layer.n_active)
    twice = Kept(product=0 if how.is_bf16 or layer.shared is None else -d_model)  # one input for both
    return each.plus(shared, routed, twice)


def _mamba2(layer: Mamba2, d_model: int, how: Pass) -> Kept:
    """The scan is in float32: matrices within each chunk, a state for each chunk, and the gated norm."""
    H, inner, L = layer.n_heads, layer.inner_dim, min(layer.chunk, how.seq_len)
    within = L * (2 * H + layer.n_groups)
    states = 2 * inner * layer.state_dim / L
    gate = inner if how.is_bf16 else layer.in_dim  # a copy in float32, or a view of the whole projection
    wide = layer.conv_dim + 7 * inner + gate + 2 * layer.n_groups * layer.state_dim + 5 * H + within + states
    return Kept(product=d_model + 2 * layer.conv_dim + inner, wide=wide)


def _gated_delta(layer: GatedDelta, d_model: int, how: Pass) -> Kept:
    """As Mamba-2, and a triangular system for each chunk."""
    L, H, K = min(layer.chunk, how.seq_len), layer.n_value_heads, layer.n_key_heads
    keys, values = H * layer.key_head_dim, layer.value_dim
    within = L * (4 * H + 2 * K)
    states = 3 * keys * layer.value_head_dim / L
    wide = within + states + layer.conv_dim + 8 * values + 2 * layer.key_dim + 4 * keys + 7 * H + 2 * K
    if how.is_bf16:  # copies in float32, where else whole projections are viewed; two copies of the input
        narrow, wide = 2 * d_model, wide + 2 * layer.key_dim + values
    else:
        narrow, wide = d_model, wide + 2 * layer.conv_dim + values
    return Kept(product=narrow + layer.conv_dim + values, wide=wide)


_FORMULAS: tuple[tuple[type[Any], Any], ...] = (
    (FeedForward, _feed_forward),
    (GatedFeedForward, _gated),
    (Attention, _attention),
    (LatentAttention, _latent),
    (Experts, _experts),
    (Mamba2, _mamba2),
    (GatedDelta, _gated_delta),
)
