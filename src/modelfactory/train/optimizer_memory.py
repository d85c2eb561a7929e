"""How much memory the state of an optimizer takes, by formula."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelfactory.models import (
    Attention,
    Decoder,
    Experts,
    FeedForward,
    GatedDelta,
    GatedFeedForward,
    LatentAttention,
    Mamba2,
)
from modelfactory.train.eight_bit import AdamW8bit
from modelfactory.train.muon import Muon
from modelfactory.train.soap import SOAP

if TYPE_CHECKING:
    from collections.abc import Iterator

    from modelfactory.models import Architecture, Layer
    from modelfactory.train.optimizers import Optimizer

_ADAM = 8
"""Two averages in float32, of each parameter."""


def optimizer_bytes(optimizer: Optimizer, model: Architecture, vocab_size: int) -> int:
    """Return the bytes of the state once a step was made.

    AdamW keeps 8 bytes for each parameter, Muon 4 for those of hidden matrices, SOAP for these also two
    squares of each side, AdamW8bit 2 and a scale for each block. An optimizer of your own may have
    `state_bytes(model, vocab_size) -> int`; without it, it is taken for AdamW.
    """
    own = getattr(optimizer, "state_bytes", None)
    if own is not None:
        return int(own(model, vocab_size))
    n_parameters = int(getattr(model, "n_trainable", model.n_parameters)(vocab_size))
    if isinstance(optimizer, AdamW8bit):
        return int(n_parameters * (2 + 8 / optimizer.block_size))
    if not isinstance(optimizer, Muon | SOAP):
        return _ADAM * n_parameters
    matrices = list(hidden_shapes(model))
    n_hidden = sum(rows * columns for rows, columns in matrices)
    if isinstance(optimizer, Muon):
        return _ADAM * (n_parameters - n_hidden) + 4 * n_hidden
    sides = [side for shape in matrices for side in shape if side <= optimizer.max_precondition_dim]
    return _ADAM * n_parameters + 8 * sum(side * side for side in sides)


def hidden_shapes(model: Architecture) -> Iterator[tuple[int, int]]:
    """Yield rows and columns of the matrices that Muon and SOAP take, of the layers of this package.

    A layer of your own counts as one matrix of d_model columns.
    """
    if not isinstance(model, Decoder):
        return
    depths = tuple(model.depths())
    yield from [(model.d_model, 2 * model.d_model)] * len(depths)
    for block in (*model.layers(), *depths):
        for layer in (block.mixer, block.feed_forward):
            yield from hidden_shapes_of(layer, model.d_model)


def hidden_shapes_of(layer: Layer, d_model: int) -> Iterator[tuple[int, int]]:
    """Yield rows and columns of the matrices of one layer."""
    match layer:
        case Attention():
            yield layer.qkv_dim, d_model
            yield d_model, layer.n_heads * layer.head_dim
        case LatentAttention():
            yield from _of_latent(layer, d_model)
        case FeedForward():
            yield layer.d_ff, d_model
            yield d_model, layer.d_ff
        case GatedFeedForward():
            yield 2 * layer.d_ff, d_model
            yield d_model, layer.d_ff
        case Experts():
            yield layer.n_experts, d_model
            if layer.shared is not None:
                yield from hidden_shapes_of(layer.shared, d_model)
            if layer.shared_gate:
                yield 1, d_model
        case Mamba2():
            yield layer.in_dim, d_model
            yield d_model, layer.inner_dim
        case GatedDelta():
            yield layer.conv_dim + layer.value_dim, d_model
            yield 2 * layer.n_value_heads, d_model
            yield d_model, layer.value_dim
        case _:
            yield layer.n_parameters(d_model) // d_model, d_model


def _of_latent(layer: LatentAttention, d_model: int) -> Iterator[tuple[int, int]]:
    yield layer.q_inward + layer.kv_rank + layer.rope_head_dim, d_model
    yield layer.n_heads * (layer.nope_head_dim + layer.v_head_dim), layer.kv_rank
    if layer.q_rank is not None:
        yield layer.n_heads * layer.qk_head_dim, layer.q_rank
    yield d_model, layer.n_heads * layer.v_head_dim
