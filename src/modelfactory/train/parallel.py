"""What can be divided by what: refused before anything is allocated."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from modelfactory.errors import SpecError
from modelfactory.models import Attention, FeedForward, GatedFeedForward
from modelfactory.models.architecture import BuildContext
from modelfactory.models.experts import Experts
from modelfactory.models.latent_attention import LatentAttention
from modelfactory.models.lora import Adapted
from modelfactory.stage import Parallel
from modelfactory.train.optimizers import AdamW
from modelfactory.train.own_parts import is_own, own_parts_named

if TYPE_CHECKING:
    from collections.abc import Iterator

    from modelfactory.train.segment import TrainSegment


def check_parallel(spec: TrainSegment, parallel: Parallel) -> None:
    """Refuse sizes that do not divide what they are to divide, and those without effect.

    Raises:
        SpecError: names the size, what it does not divide, and a remedy.
    """
    if parallel.world_size == 1:
        return
    try:
        _check(spec, parallel)
    except SpecError as error:
        remedy = f"{error.remedy} {_what_works(spec)}".strip()
        raise SpecError(place=error.place, found=error.found, wanted=error.wanted, remedy=remedy) from None


def _what_works(spec: TrainSegment) -> str:
    """Say by what this very run can be divided between two processes."""
    works = []
    for axis in fields(Parallel):
        with suppress(SpecError):
            _check(spec, Parallel(**{axis.name: 2}))
            works.append(f"{axis.name}=2")
    return f"This run can have {' or '.join(works)}." if works else "This run takes one process."


def _check(spec: TrainSegment, parallel: Parallel) -> None:
    _check_rows(spec, parallel)
    _check_optimizer(spec, parallel)
    if isinstance(spec.model, Adapted) and max(parallel.tensor, parallel.context, parallel.expert) > 1:
        _refuse("tensor, context, expert", "model", spec.model, "a model without adapters")
    if parallel.tensor > 1:
        _check_tensor(spec.model, parallel.tensor)
    if parallel.context > 1:
        _check_context(spec, parallel.context)
    if parallel.expert > 1:
        _check_expert(spec.model, parallel.expert)


def _check_rows(spec: TrainSegment, parallel: Parallel) -> None:
    n_ranks = parallel.n_row_ranks
    for rows in {*(rows for _, rows in spec.batch_warmup_sequences), spec.batch_sequences}:
        _divides("data * expert * shard", n_ranks, rows, "rows of a batch", "Use other batches or sizes.")


def _check_optimizer(spec: TrainSegment, parallel: Parallel) -> None:
    is_divided = max(parallel.shard, parallel.tensor, parallel.expert) > 1
    _require(
        not is_divided or isinstance(spec.optimizer, AdamW),
        place="Parallel",
        found=f"{parallel} with {type(spec.optimizer).__name__}",
        wanted="AdamW, whose step treats each number by itself: the others need whole matrices",
        remedy="Use AdamW to divide parameters.",
    )


def _check_tensor(model: Any, size: int) -> None:
    for place, layer in _layers(model):
        if isinstance(layer, Attention):
            _divides("tensor", size, layer.n_heads, f"{place}.n_heads")
            _divides("tensor", size, layer.n_kv_heads, f"{place}.n_kv_heads")
            is_wide = layer.qk_norm is not None and layer.qk_norm.over == "width"
            _require(
                not is_wide,
                place=f"Parallel.tensor, {place}.qk_norm",
                found="a norm over all heads",
                wanted="none, or one over each head: heads lie on different processes",
            )
        elif isinstance(layer, FeedForward | GatedFeedForward):
            _divides("tensor", size, layer.d_ff, f"{place}.d_ff")
        elif is_own(type(layer)):
            wanted = "one whose module has `tensor_pair()` (see modelfactory.train.tensor.Pair)"
            pair = _require_method(model, place, layer, "tensor_pair", wanted, axis="tensor").tensor_pair()
            for rows in pair.sizes:
                _divides("tensor", size, rows, f"rows of {place}'s {pair.inward}")
        else:
            _refuse("tensor", place, layer, "attention, or feed-forwards without experts")


def _check_context(spec: TrainSegment, size: int) -> None:
    _divides("2 * context", 2 * size, spec.seq_len, "positions of a row", "Use another max_seq_len or size.")
    for place, layer in _layers(spec.model):
        if isinstance(layer, Experts):
            _refuse("context", place, layer, "feed-forwards without experts: loads count whole rows")
        if not place.endswith("mixer") or isinstance(layer, Attention | LatentAttention):
            continue
        if is_own(type(layer)):
            wanted = "one whose module mixes positions through an attribute `attend`, as CausalAttention does"
            _require_method(spec.model, place, layer, "attend", wanted, axis="context")
        else:
            _refuse("context", place, layer, "softmax attention, which can look at other processes")
    _require(
        getattr(spec.model, "multi_token", None) is None,
        place="Parallel.context",
        found="a model that predicts further tokens",
        wanted="one without: they lie on other processes",
    )


def _require_method(model: Any, place: str, layer: Any, name: str, wanted: str, *, axis: str) -> Any:
    """Build the layer, refuse it if its module lacks an attribute, and return the module."""
    context = BuildContext(d_model=model.d_model, max_seq_len=model.max_seq_len, initial=model.initial)
    with own_parts_named(model=model):
        module = _built(layer, context)
    if not hasattr(module, name):
        _refuse(axis, place, layer, wanted)
    return module


def _built(layer: Any, context: BuildContext) -> Any:
    """Return the layer's module, without memory for its numbers where it can be built so."""
    import torch

    try:
        with torch.device("meta"):
            return layer.build(context)
    except (RuntimeError, NotImplementedError):  # it looks at numbers while it is built
        return layer.build(context)


def _check_expert(model: Any, size: int) -> None:
    layers = [*_layers(model)]
    if (further := getattr(model, "multi_token", None)) is not None:
        layers.append(("multi_token.block.feed_forward", further.block.feed_forward))
    found = [(place, layer) for place, layer in layers if isinstance(layer, Experts)]
    _require(
        bool(found),
        place="Parallel.expert",
        found=f"{size} for a model without experts",
        wanted="1, or a model with experts",
    )
    for place, layer in found:
        _divides("expert", size, layer.n_experts, f"{place}.n_experts", "Use another size.")
        _require(
            layer.capacity is None,
            place=f"Parallel.expert, {place}.capacity",
            found="a bound on what an expert takes of a row",
            wanted="None: experts take what they get from all processes",
            remedy="Leave the capacity out.",
        )


def _layers(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the mixers and feed-forwards of a decoder's pattern by place; none for other architectures."""
    for n, block in enumerate(getattr(model, "blocks", ())):
        for role in ("mixer", "feed_forward"):
            if hasattr(block, role):
                yield f"blocks[{n}].{role}", getattr(block, role)


def _divides(name: str, size: int, whole: int, what: str, remedy: str = "") -> None:
    named = f"the {whole} {what}" if " " in what else f"{what} {whole}"
    place = f"Parallel.{name}" if name.isidentifier() else f"Parallel, {name}"
    found, wanted = f"{size}, which does not divide {named}", f"a divisor of {whole}"
    _require(whole % size == 0, place=place, found=found, wanted=wanted, remedy=remedy)


def _refuse(name: str, place: str, layer: Any, wanted: str) -> None:
    found = type(layer).__name__
    _require(False, place=f"Parallel.{name}, {place}", found=found, wanted=wanted)


def _require(is_good: bool, *, place: str, found: str, wanted: str, remedy: str = "") -> None:
    """Raise SpecError unless it is good; what was found is told in words."""
    if not is_good:
        raise SpecError(place=place, found=found, wanted=wanted, remedy=remedy)
