"""muP keeps the logits of trained models at one size; the standard rule lets them grow with the width."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from modelfactory.errors import SpecError
from modelfactory.models import GPT2, Decoder, Llama, MultiToken
from modelfactory.models.mup import at_width, mup
from modelfactory.train import AdamW, Muon
from modelfactory.train.coordinate_sizes import KINDS
from modelfactory.train.coordinate_slopes import STABLE, slopes, trend, unstable
from modelfactory.train.coordinates import Coordinate, coordinate_check, copies, copy_bytes

LLAMA = Llama(n_layers=1, d_model=32, n_heads=2, max_seq_len=32)
GPT = GPT2(n_layers=1, d_model=32, n_heads=2, max_seq_len=32)
ADAMW = AdamW(lr=2e-3, weight_decay=0.1)
MUON = Muon(lr=0.02, adamw_lr=2e-3, weight_decay=0.1)
LIKE_ADAMW = Muon(lr=2e-3, adamw_lr=2e-3, weight_decay=0.1, lr_adjustment="match_rms_adamw")


@pytest.mark.parametrize("model", [LLAMA, GPT], ids=["llama", "gpt2"])
@pytest.mark.parametrize("optimizer", [ADAMW, MUON, LIKE_ADAMW], ids=["adamw", "muon", "like adamw"])
def test_standard_fails_and_mup_passes(model: Any, optimizer: Any) -> None:
    found = coordinate_check(model, optimizer, widths=(64, 128, 256), n_steps=4, seed=0)
    for of in ("size", "change"):
        slope = slopes(found, 4, of)
        assert slope["standard", "logits"] > 0.3
        assert abs(slope["muP", "logits"]) < 0.15
    slope = slopes(found, 4, "change")
    assert not unstable(slope, "muP")
    assert unstable(slope, "standard")["logits"] == slope["standard", "logits"]
    for kind in ("mixer", "feed_forward", "stream"):
        assert slope["standard", kind] > 0.3
        assert abs(slope["muP", kind]) < 0.25


def further(weight: float) -> Any:
    return replace(LLAMA, multi_token=MultiToken(n_extra=1, weight=weight, block=LLAMA.blocks[0]))


def test_further_tokens_are_trained_and_watched() -> None:
    light, heavy = (
        coordinate_check(further(weight), ADAMW, widths=(32, 64), n_steps=1, seed=3) for weight in (0.3, 3.0)
    )
    plain = coordinate_check(LLAMA, ADAMW, widths=(32, 64), n_steps=1, seed=3)
    assert [each.size for each in light if each.step == 0] == [each.size for each in heavy if each.step == 0]
    for one, other, without in zip(light, heavy, plain, strict=True):
        if one.step == 1:
            assert one.change != other.change
        elif one.kind != "embedding":
            assert one.size != without.size


@pytest.mark.parametrize("weight", [0.3, 30.0])
def test_mup_holds_for_further_tokens(weight: float) -> None:
    found = coordinate_check(further(weight), ADAMW, widths=(64, 128, 256), n_steps=4, seed=0)
    slope = slopes(found, 4, "change")
    assert not unstable(slope, "muP")
    assert slope["standard", "logits"] > 0.3


def test_it_is_a_function_of_its_arguments() -> None:
    again = [
        coordinate_check(LLAMA, ADAMW, widths=widths, n_steps=1, seed=3)
        for widths in ((32, 64), (64, 32, 64))
    ]
    assert again[0] == again[1]
    assert len(again[0]) == 2 * 2 * 2 * len(KINDS)
    assert all(each.change == 0 for each in again[0] if each.step == 0)
    first = {(each.rule, each.kind): each.size for each in again[0] if (each.width, each.step) == (32, 0)}
    assert all(first["standard", kind] == first["muP", kind] for kind in KINDS)  # the model itself


def test_the_slope_of_a_power_law() -> None:
    points = [
        Coordinate(rule="muP", width=width, step=2, kind="logits", size=3.0 * width**0.75, change=5.0)
        for width in (32, 64, 512)
    ]
    assert slopes(points, 2, "size")["muP", "logits"] == pytest.approx(0.75)
    assert slopes(points, 2, "change")["muP", "logits"] == pytest.approx(0.0)
    assert slopes(points, 1) == {}


def test_what_gives_no_slope_is_refused() -> None:
    with pytest.raises(SpecError, match=r"widths: found \[64, 64\], wanted two or more"):
        coordinate_check(LLAMA, ADAMW, widths=(64, 64), n_steps=1, seed=0)
    with pytest.raises(SpecError, match="n_steps: found 0, wanted at least 1"):
        coordinate_check(LLAMA, ADAMW, widths=(64, 128), n_steps=0, seed=0)


@pytest.mark.parametrize(("lr", "remedy"), [(1e6, "Lower"), (1e-13, "Raise")])
def test_a_model_that_diverges_or_stands_still_is_named(lr: float, remedy: str) -> None:
    found = rf"coordinate check: standard, width \d+, step \d, \w+: found .* {remedy} the learning rate"
    with pytest.raises(SpecError, match=found):
        coordinate_check(LLAMA, AdamW(lr=lr, weight_decay=0.1), widths=(32, 64), n_steps=3, seed=0)


def test_a_width_of_0_is_named() -> None:
    with pytest.raises(SpecError, match=r"widths: found .*, wanted whole numbers from 1 to"):
        coordinate_check(LLAMA, ADAMW, widths=(0, 64), n_steps=1, seed=0)


@pytest.mark.parametrize(
    ("slope", "word"),
    [(0.0, "stable"), (STABLE, "stable"), (-STABLE, "stable"), (0.2501, "grows"), (-0.2501, "shrinks")],
)
def test_a_slope_in_a_word(slope: float, word: str) -> None:
    assert trend(slope) == word


def test_a_model_that_has_mup_is_no_base() -> None:
    wide = mup(at_width(LLAMA, 64), base=LLAMA)
    with pytest.raises(SpecError, match=r"Decoder.hidden_lr_scale: found 0.5, wanted 1: .*base_of"):
        copies(wide, (64, 128))


def test_the_memory_of_a_copy_is_at_least_that_of_what_adam_holds() -> None:
    (_, _, _, wide) = copies(LLAMA, (32, 1024))
    n_bytes = copy_bytes(wide.model, ADAMW)
    held = 16 * wide.model.n_parameters(16)  # parameter, gradient, two averages, in float32
    assert held < n_bytes < 3 * held


def test_what_is_refused_is_refused_before_anything_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Decoder, "build", lambda *_: pytest.fail("a model was built"))
    with pytest.raises(SpecError, match="n_heads"):
        coordinate_check(LLAMA, ADAMW, widths=(32, 40), n_steps=1, seed=0)
