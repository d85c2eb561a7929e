"""What one process holds of a model that is divided, by formula: nothing is allocated, torch is not imported.

`train.tensor` divides the two products of each layer in the blocks: heads, widths of feed-forwards, and what
lies between the two. Embeddings, head, norms, the residual stream, and what predicts further tokens are whole
on every process. `train.exchange` divides the routed experts. `train.sharding` divides what is left of each
parameter, whichever it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from modelfactory.models import Attention, Decoder, Experts, FeedForward, GatedFeedForward, Layer
from modelfactory.models.activations import Kept, Pass, kept_by_layer
from modelfactory.models.lora import unadapted
from modelfactory.models.part_results import counted
from modelfactory.stage import Parallel
from modelfactory.train.optimizer_memory import hidden_shapes_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from modelfactory.models import Architecture
    from modelfactory.models.decoder import Block


@dataclass(frozen=True, kw_only=True)
class Piece:
    """The part of one layer that a process computes; not a spec."""

    layer: Layer
    """With the heads or the width of the piece, where it is a layer of this package."""
    whole: Layer
    tensor: int
    """Processes that share the layer: 1 where it is not divided."""

    @property
    def _is_resized(self) -> bool:
        return self.layer is not self.whole

    def n_parameters(self, d_model: int) -> int:
        """Return those of the piece; of a layer of one's own, an equal share."""
        n_parameters = counted(self.layer, "n_parameters", d_model)
        return n_parameters if self._is_resized else n_parameters // self.tensor

    def kept(self, d_model: int, how: Pass) -> Kept:
        """Return what it keeps for the backward pass; the input is whole."""
        kept = kept_by_layer(self.layer, d_model, how)
        if self._is_resized or self.tensor == 1:
            return kept
        within = kept.plus(Kept(product=-d_model)).times(1 / self.tensor)
        return within.plus(Kept(product=d_model))

    def kept_by_products(self, d_model: int) -> Kept:
        """Return the outputs of matrix products and of attention."""
        rows = [n_rows for n_rows, _ in hidden_shapes_of(self.layer, d_model)]
        mixed = getattr(self.layer, "n_heads", 0) * getattr(self.layer, "head_dim", 0)
        return Kept(product=sum(rows) + mixed)


def piece_of(layer: Layer, tensor: int) -> Piece:
    """Return what one of `tensor` processes has of a layer in the blocks.

    What cannot be divided so is refused before it is trained (see `train.parallel`); here it counts by share.
    """
    names: tuple[str, ...] = ()
    if isinstance(layer, Attention):
        names = ("n_heads", "n_kv_heads")
    elif isinstance(layer, FeedForward | GatedFeedForward):
        names = ("d_ff",)
    sizes = {name: getattr(layer, name) for name in names}
    if tensor == 1 or not sizes or any(size % tensor for size in sizes.values()):
        return Piece(layer=layer, whole=layer, tensor=tensor)
    resized: Any = replace(cast("Any", layer), **{name: size // tensor for name, size in sizes.items()})
    return Piece(layer=resized, whole=layer, tensor=tensor)


@dataclass(frozen=True, kw_only=True)
class Held:
    """Parameters that a process computes with, before `shard` divides them."""

    total: int
    beside: int
    """Of them those in no block, which are gathered as one: embeddings, head, further tokens."""
    block: int
    """Those of the largest block."""
    parallel: Parallel

    @property
    def is_copied(self) -> bool:
        """Whether processes have copies of the whole model: gradients then have a place that stays (DDP)."""
        return self.parallel.world_size > 1 and not self._is_gathered

    @property
    def _is_gathered(self) -> bool:
        """Whether parts are gathered before use, as they are where anything is divided (FSDP2)."""
        return max(self.parallel.shard, self.parallel.tensor, self.parallel.expert) > 1

    def cast_bytes(self, how: Pass, n_vocabulary: int) -> int:
        """Return those of copies in bfloat16, which autocast makes and keeps until the backward pass.

        Args:
            how: of all in float32 there are none, nor of what is gathered in bfloat16.
            n_vocabulary: numbers of the embedding, which is not copied.
        """
        n_cast = self.beside if self._is_gathered_rounded(how) else self.total
        return 2 * (n_cast - n_vocabulary) if how.is_bf16 else 0

    def gathered_bytes(self, how: Pass) -> int:
        """Return those of whole weights in use: of what is in no block, and of one block.

        Torch gathers into memory of its own even where `shard` is 1.
        """
        if not self._is_gathered:
            return 0
        return 4 * self.beside + (2 if self._is_gathered_rounded(how) else 4) * self.block

    def _is_gathered_rounded(self, how: Pass) -> bool:
        """Say whether blocks are gathered in bfloat16, and given back after use: see `Ranks.spread`."""
        is_cast = how.is_bf16 and not how.is_compiled and self.parallel.tensor == 1
        return is_cast and self._is_gathered


def held(model: Architecture, vocab_size: int, parallel: Parallel) -> Held:
    """Return what a process holds; of an architecture that is no decoder, all."""
    n_parameters = counted(model, "n_parameters", vocab_size)
    bare = unadapted(model)
    if not isinstance(bare, Decoder):
        return Held(total=n_parameters, beside=0, block=0, parallel=parallel)
    whole = [block.n_parameters(bare.d_model) for block in bare.layers()]
    away = [_n_elsewhere(block, bare.d_model, parallel) for block in bare.layers()]
    blocks = [n - n_away for n, n_away in zip(whole, away, strict=True)]
    beside = n_parameters - sum(whole)
    if (further := bare.multi_token) is not None:
        block = cast("Block", further.block)
        beside -= further.n_extra * _n_routed_elsewhere(block.feed_forward, bare.d_model, parallel.expert)
    return Held(total=beside + sum(blocks), beside=beside, block=max(blocks), parallel=parallel)


def _n_elsewhere(block: Block, d_model: int, parallel: Parallel) -> int:
    """Return the parameters of a block that other processes have."""
    elsewhere = _n_routed_elsewhere(block.feed_forward, d_model, parallel.expert)
    for layer in _divisible(block):
        whole = counted(layer, "n_parameters", d_model)
        elsewhere += whole - piece_of(layer, parallel.tensor).n_parameters(d_model)
    return elsewhere


def _divisible(block: Block) -> Iterator[Layer]:
    """Yield the layers that `tensor` divides: it is refused for experts."""
    yield from (layer for layer in (block.mixer, block.feed_forward) if not isinstance(layer, Experts))


def _n_routed_elsewhere(layer: Layer, d_model: int, n_groups: int) -> int:
    if not isinstance(layer, Experts):
        return 0
    n_away = layer.n_experts - layer.n_experts // n_groups
    return n_away * counted(layer.expert, "n_parameters", d_model)
