"""What a model that has muP was scaled from."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from modelfactory.errors import SpecError
from modelfactory.models.mup import at_width, mup

if TYPE_CHECKING:
    from collections.abc import Iterable

    from modelfactory.models.decoder import Decoder


def has_mup(model: Decoder) -> bool:
    """Return whether a model's learning rates are scaled for its width, which `mup` alone does."""
    return model.hidden_lr_scale != 1


def base_of(model: Decoder, *, known: Iterable[Decoder] = ()) -> Decoder:
    """Return the base that `mup` made `model` from; a model without muP is its own.

    It is one of `known` if that gives `model` exactly. Else it is worked back from the scales: a base whose
    heads are as large as the model's, with a `logit_scale` and a `hidden_lr_scale` of 1.

    Raises:
        SpecError: there is no such base.
    """
    if not has_mup(model):
        return model
    for each in known:
        if not has_mup(each) and _gives(each, model):
            return each
    m = 1 / model.hidden_lr_scale
    width = round(model.d_model / m)
    if not (math.isclose(width, model.d_model / m) and math.isclose(model.logit_scale * m, 1)):
        raise _no_base(model)
    try:
        found = _without(at_width(model, width), m)
    except SpecError as error:
        raise _no_base(model) from error
    return found


def _without(model: Decoder, m: float) -> Decoder:
    """Return a model of the base's width with the base's initialisation and multipliers."""
    root, own = math.sqrt(m), model.initial
    initial = replace(own, matrix_std=own.matrix_std * root, residual_std=own.residual_std * root)
    return replace(model, initial=initial, logit_scale=1.0, hidden_lr_scale=1.0)


def _gives(base: Decoder, model: Decoder) -> bool:
    """Return whether `mup` makes `model` from `base`: its own scales play no part in what `mup` returns."""
    try:
        return mup(model, base=base) == model
    except SpecError:
        return False


def _no_base(model: Decoder) -> SpecError:
    beside = f"beside a logit_scale of {model.logit_scale:g} at width {model.d_model}"
    return SpecError(
        place="Decoder.hidden_lr_scale",
        found=f"{model.hidden_lr_scale:g} {beside}",
        wanted="a model without muP, or one that `mup` made from a base that can be told",
        remedy="Add an experiment of the base to the file, or check the base alone.",
    )
