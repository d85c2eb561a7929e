"""The base of a model that has muP is found again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from modelfactory.errors import SpecError
from modelfactory.models import Decoder, Llama
from modelfactory.models.mup import at_width, mup
from modelfactory.models.mup_base import base_of, has_mup


def llama(d_model: int, n_heads: int) -> Decoder:
    return Llama(n_layers=2, d_model=d_model, n_heads=n_heads, max_seq_len=32)


BASE = llama(64, 2)


def test_a_model_without_mup_is_its_own_base() -> None:
    assert not has_mup(BASE)
    assert base_of(BASE) is BASE


@pytest.mark.parametrize("width", [96, 128, 256])
def test_it_is_worked_back_from_the_scales(width: int) -> None:
    wide = mup(at_width(BASE, width), base=BASE)
    assert has_mup(wide)
    found = base_of(wide)
    assert replace(found, initial=BASE.initial) == BASE
    assert found.initial.matrix_std == pytest.approx(BASE.initial.matrix_std, rel=1e-12)
    assert found.initial.residual_std == pytest.approx(BASE.initial.residual_std, rel=1e-12)


def test_a_known_base_is_taken_as_it_is() -> None:
    grown = mup(llama(192, 2), base=BASE)  # its heads are larger, which the scales do not show
    assert base_of(grown, known=(llama(32, 1), BASE, grown)) is BASE
    own = replace(BASE, hidden_lr_scale=0.5)  # of its own, so nothing tells what is muP's
    other = replace(BASE, logit_scale=0.25)
    assert base_of(mup(at_width(BASE, 128), base=other), known=(other, own)) is other


@pytest.mark.parametrize(
    "model",
    [
        replace(BASE, hidden_lr_scale=0.5),
        replace(BASE, hidden_lr_scale=0.3, logit_scale=0.3),
        mup(at_width(BASE, 128), base=replace(BASE, logit_scale=0.25)),
    ],
    ids=["by hand", "no whole width", "a scale of its own"],
)
def test_what_cannot_be_worked_back_is_refused(model: Decoder) -> None:
    with pytest.raises(SpecError, match=r"Decoder.hidden_lr_scale: found .* Add an experiment of the base"):
        base_of(model)
