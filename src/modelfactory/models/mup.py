"""muP: one learning rate for all widths (Yang et al. 2022, arXiv 2203.03466).

A model is compared with a narrower one, its base. With m = d_model / base d_model, Adam as the optimizer, and
table 8 of the paper (appendix B.1), the form that allows a tied head:

| tensor                         | deviation at start | learning rate | multiplier           |
|--------------------------------|--------------------|---------------|----------------------|
| embedding, learned positions   | base's             | base's        | 1                    |
| matrices in the blocks [1]     | base's / sqrt(m)   | base's / m    | 1                    |
| head, tied or not              | base's             | base's        | 1 / m, on the logits |
| gains, biases                  | 1 and 0            | base's        | 1                    |
| scores of attention            |                    |               | ~ 1 / head_dim       |

[1] So are those of `multi_token`: its block is one more, and its projection goes from 2 d_model hidden
numbers to d_model, so both of its sides grow with m. Its gains and its head, the decoder's own, are those of
the rows below.

At the base's own width nothing changes: `mup(base, base=base) == base`. We do not start queries and head at
zero, which the paper recommends (appendix D.2) and does not need. Depth is not transferred: both models have
the same number of layers.

Other optimizers: a decay of lr * weight_decay stays what it is (see `train.parameter_groups`). Muon's
"original" step is right at every width as it is, so the scale of hidden matrices does not apply to it;
"match_rms_adamw" takes its root (see `train.muon`). SOAP takes Adam's.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from modelfactory.errors import SpecError
from modelfactory.models.attention import Attention
from modelfactory.models.feed_forward import FeedForward, GatedFeedForward
from modelfactory.spec import require

if TYPE_CHECKING:
    from collections.abc import Sequence

    from modelfactory.models.decoder import Block, Decoder
    from modelfactory.models.initial import Initial

_ABOUT = 4 / 3
"""How far widths of layers may be off the ratio of d_model: families round d_ff."""


def mup(model: Decoder, *, base: Decoder) -> Decoder:
    """Return `model` with the initialisation, multipliers and learning rates that muP takes from `base`.

    Tune the base; then train the result with the same optimizer and learning rate.

    Raises:
        SpecError: the two differ in more than their width, or hold layers that the rules are not worked out
            for: those here are Attention, FeedForward and GatedFeedForward.
    """
    _check_alike(model, base)
    m = model.d_model / base.d_model
    blocks = (_block(own, narrow, m) for own, narrow in zip(model.blocks, base.blocks, strict=True))
    further = model.multi_token
    if further is not None and base.multi_token is not None:
        narrow = cast("Block", base.multi_token.block)
        further = replace(further, block=_block(cast("Block", further.block), narrow, m))
    return replace(
        model,
        blocks=tuple(blocks),
        multi_token=further,
        initial=_initial(base.initial, m),
        embedding_scale=base.embedding_scale,
        logit_scale=base.logit_scale / m,
        logit_softcap=base.logit_softcap,
        hidden_lr_scale=base.hidden_lr_scale / m,
    )


def at_width(model: Decoder, d_model: int) -> Decoder:
    """Return the same decoder at another width: heads as large as before, all layers in proportion.

    Initialisation and multipliers stay as they are, which is no muP; `mup(at_width(base, n), base=base)` is.

    Raises:
        SpecError: heads do not come out whole, or it holds other layers than `mup` takes.
    """
    require(d_model >= 1, place="d_model", found=d_model, wanted="at least 1")
    ratio = d_model / model.d_model
    blocks, further = tuple(_resized(block, ratio) for block in model.blocks), model.multi_token
    if further is not None:
        further = replace(further, block=_resized(cast("Block", further.block), ratio))
    return replace(model, d_model=d_model, blocks=blocks, multi_token=further)


def _initial(base: Initial, m: float) -> Initial:
    root = math.sqrt(m)
    return replace(base, matrix_std=base.matrix_std / root, residual_std=base.residual_std / root)


def _block(block: Block, base: Block, m: float) -> Block:
    mixer, narrow = _attention(block), _attention(base)
    _check_ratio("n_heads * head_dim", mixer.n_heads * mixer.head_dim, narrow.n_heads * narrow.head_dim, m)
    _check_ratio("d_ff", _feed_forward(block).d_ff, _feed_forward(base).d_ff, m)
    return replace(block, mixer=replace(mixer, scale=_score_scale(mixer, narrow)))


def _score_scale(mixer: Attention, base: Attention) -> Any:
    if mixer.head_dim == base.head_dim:
        return base.scale
    at_base = 1 / math.sqrt(base.head_dim) if isinstance(base.scale, str) else base.scale
    return at_base * base.head_dim / mixer.head_dim


def _resized(block: Block, ratio: float) -> Block:
    mixer, feed_forward = _attention(block), _feed_forward(block)
    n_heads = _whole("n_heads", mixer.n_heads, ratio)
    n_kv_heads = 1 if mixer.n_kv_heads == 1 else _whole("n_kv_heads", mixer.n_kv_heads, ratio)
    return replace(
        block,
        mixer=replace(mixer, n_heads=n_heads, n_kv_heads=n_kv_heads),
        feed_forward=replace(feed_forward, d_ff=max(round(feed_forward.d_ff * ratio), 1)),
    )


def _whole(name: str, count: int, ratio: float) -> int:
    resized = round(count * ratio)
    if resized < 1 or not math.isclose(resized, count * ratio):
        raise SpecError(
            place=f"Attention.{name}",
            found=f"{count} at this width, so {count * ratio:g} at {ratio:g} times it",
            wanted="whole heads of the same size",
            remedy=f"Use widths that are a multiple of 1/{count} of the model's d_model.",
        )
    return resized


def _attention(block: Block) -> Attention:
    return _one_of(block.mixer, (Attention,), "mixer")  # type: ignore[no-any-return]


def _feed_forward(block: Block) -> FeedForward | GatedFeedForward:
    return _one_of(block.feed_forward, (FeedForward, GatedFeedForward), "feed_forward")  # type: ignore[no-any-return]


def _one_of(layer: object, known: Sequence[type], field: str) -> Any:
    if type(layer) in known:
        return layer
    raise SpecError(
        place=f"Block.{field}",
        found=type(layer).__name__,
        wanted=f"{' or '.join(kind.__name__ for kind in known)}, for which muP is worked out here",
        remedy="Give Decoder.initial, logit_scale and hidden_lr_scale by hand, or tune at full width.",
    )


def _check_ratio(name: str, size: int, base_size: int, m: float) -> None:
    require(
        1 / _ABOUT < size / base_size / m < _ABOUT,
        place=f"mup: {name}",
        found=f"{size} where the base has {base_size}",
        wanted=f"about {m:g} times as much, as d_model",
        remedy="Widen all layers alike.",
    )


def _check_alike(model: Decoder, base: Decoder) -> None:
    for name in ("n_layers", "learned_positions", "tied"):
        require(
            getattr(model, name) == getattr(base, name),
            place=f"mup: {name}",
            found=getattr(model, name),
            wanted=f"the base's, {getattr(base, name)}",
            remedy="Only widths may differ.",
        )
    require(
        len(model.blocks) == len(base.blocks),
        place="mup: blocks",
        found=len(model.blocks),
        wanted=f"as many as the base has, {len(base.blocks)}",
    )
    ours, theirs = (_further_tokens(each) for each in (model, base))
    require(
        ours == theirs,
        place="mup: multi_token",
        found=ours,
        wanted=f"the base's, {theirs}",
        remedy="Predict as many further tokens with the same weight: only widths may differ.",
    )


def _further_tokens(model: Decoder) -> str:
    further = model.multi_token
    return "none" if further is None else f"n_extra={further.n_extra}, weight={further.weight:g}"
