"""What of a decoder is used outside training, in one way of writing it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from modelfactory.models import Block, Decoder, Experts

if TYPE_CHECKING:
    from collections.abc import Sequence


def as_used(decoder: Decoder) -> Decoder:
    """Return the decoder without what only training looks at: further heads, learning rates, capacities."""
    blocks = shortest_pattern([_block_as_used(block) for block in decoder.layers()])
    return replace(decoder, blocks=blocks, multi_token=None, hidden_lr_scale=1.0)


def _block_as_used(block: Block) -> Block:
    experts = block.feed_forward
    if isinstance(experts, Experts) and experts.capacity is not None:
        return replace(block, feed_forward=replace(experts, capacity=None))
    return block


def shortest_pattern(layers: Sequence[Block]) -> tuple[Block, ...]:
    """Return the shortest pattern that gives these blocks when it repeats."""
    for n in range(1, len(layers)):
        if all(block == layers[i % n] for i, block in enumerate(layers)):
            return tuple(layers[:n])
    return tuple(layers)
