"""Tensor parallelism: every matrix product of a layer divided among ranks (Shoeybi et al. 2019, 1909.08053).

The first matrix of a layer is divided by outputs, the second by inputs, so a layer exchanges its input's
gradient and its output, and nothing between. Queries, keys and values are the rows of one matrix here, and so
are gate and up: each rank takes its rows of *each*. `Layout` remembers the order, since checkpoints have the
order of one process. Embeddings, norms and the head are whole on every rank.

Shapes: R rows of a matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from modelfactory.errors import SpecError
from modelfactory.models.attention_module import CausalAttention
from modelfactory.models.modules import FeedForward, GatedFeedForward

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True, kw_only=True)
class Pair:
    """The two products of a layer."""

    inward: str
    """Name of the first, divided by outputs."""
    sizes: tuple[int, ...]
    """Rows of the matrices that lie in it, one below the other."""
    outward: str
    """Name of the second, divided by inputs."""
    counts: tuple[str, ...] = ()
    """Attributes of the layer that count what it is divided into, such as heads."""
    of_each_head: tuple[str, ...] = ()
    """Names of parts with parameters that treat each head of x_BTHQ alike: every rank has heads of its own,
    so gradients of these parameters are summed."""


def pair_of(layer: nn.Module) -> Pair | None:
    """Return how a layer is divided, or None for one that cannot be.

    A layer of one's own says so by a method `tensor_pair()`.
    """
    offered = getattr(layer, "tensor_pair", None)
    if offered is not None:
        pair: Pair = offered()
        return pair
    if type(layer) is CausalAttention:
        return None if layer.norm_over == "width" else _attention_pair(layer)
    if type(layer) is GatedFeedForward:
        half = layer.gate_up.out_features // 2
        return Pair(inward="gate_up", sizes=(half, half), outward="down")
    if type(layer) is FeedForward:
        return Pair(inward="up", sizes=(layer.up.out_features,), outward="down")
    return None


def _attention_pair(layer: CausalAttention) -> Pair:
    queries, keys = layer.n_heads * layer.head_dim, layer.n_kv_heads * layer.head_dim
    return Pair(
        inward="qkv",
        sizes=(queries, keys, keys, *((queries,) if layer.is_gated else ())),
        outward="out",
        counts=("n_heads", "n_kv_heads"),
        of_each_head=("q_norm", "k_norm") if layer.norm_over == "head" else (),
    )


def divide(module: nn.Module, mesh: DeviceMesh) -> dict[str, torch.Tensor]:
    """Divide the layers of all blocks in place.

    Args:
        module: its `blocks` have layers `mixer` and `feed_forward`.
        mesh: of one dimension.

    Returns:
        For each parameter whose rows were put in another order: where each row was, int64 (R,).

    Raises:
        SpecError: a layer cannot be divided.
    """
    moved: dict[str, torch.Tensor] = {}
    for n, block in enumerate(blocks_of(module, "tensor")):
        for role in ("mixer", "feed_forward"):
            layer = getattr(block, role)
            pair = pair_of(layer)
            if pair is None:
                raise _indivisible(f"blocks.{n}.{role}", layer)
            order = row_order(pair.sizes, mesh.size())
            for kind, parameter in layer.get_submodule(pair.inward).named_parameters():
                parameter.data = parameter.data[order]
                moved[f"blocks.{n}.{role}.{pair.inward}.{kind}"] = order
            _divide(layer, pair, mesh)
    return moved


def _divide(layer: Any, pair: Pair, mesh: DeviceMesh) -> None:
    plan: Any = {pair.inward: ColwiseParallel(), pair.outward: RowwiseParallel()}
    plan |= {name: SequenceParallel(sequence_dim=2, use_local_output=True) for name in pair.of_each_head}
    parallelize_module(layer, mesh, plan, src_data_rank=None)
    for name in pair.counts:
        setattr(layer, name, getattr(layer, name) // mesh.size())


def row_order(sizes: tuple[int, ...], n_ranks: int) -> torch.Tensor:
    """Return rows in the order of ranks: those of rank 0 in each of the matrices, then those of rank 1, ...

    Args:
        sizes: rows of each matrix, multiples of `n_ranks`.
        n_ranks: among which each is divided.
    """
    parts = torch.split(torch.arange(sum(sizes)), list(sizes))
    shares = zip(*(part.chunk(n_ranks) for part in parts), strict=True)
    return torch.cat([piece for share in shares for piece in share])


def _indivisible(place: str, layer: nn.Module) -> SpecError:
    return SpecError(
        place=f"Parallel.tensor, {place}",
        found=type(layer).__name__,
        wanted="attention or feed-forwards, whose products are known in pairs",
        remedy="Give the layer's module `tensor_pair()`, or leave tensor out.",
    )


def blocks_of(module: nn.Module, axis: str) -> Any:
    """Return the blocks of a module that is to be divided layer by layer.

    Raises:
        SpecError: there are none, so that nothing would be divided, or not all that must be.
    """
    blocks = getattr(module, "blocks", None)
    if blocks is None:
        raise SpecError(
            place=f"Parallel.{axis}",
            found=f"{type(module).__name__}, a module without blocks",
            wanted="one with `blocks`, each of which has a mixer and a feed_forward",
            remedy=f"Give the module its blocks, or leave {axis} out.",
        )
    return blocks
