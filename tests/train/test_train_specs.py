from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from modelfactory.errors import SpecError
from modelfactory.spec import fingerprint, from_json, identity_json, to_json
from modelfactory.train import (
    WSD,
    AdamW,
    Constant,
    Cosine,
    InverseSqrt,
    TrainSegment,
    learning_rates,
    segment,
)
from tests.train.material import LLAMA, mixture, spec, training

TABLE = {
    "linear": [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2],
    "sqrt": [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 0.8944, 0.7746, 0.6325, 0.4472],
    "1-sqrt": [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 0.5528, 0.3675, 0.2254, 0.1056],
}


@pytest.mark.parametrize("shape", ["linear", "sqrt", "1-sqrt"])
def test_warm_up_4_stable_2_decay_4(shape: Any) -> None:
    schedule = WSD(warmup_steps=4, decay_steps=4, shape=shape)
    shares = [schedule.lr_share(step, 10) for step in range(1, 11)]
    assert shares == pytest.approx(TABLE[shape], abs=5e-5)


def test_cosine_table() -> None:
    schedule = Cosine(warmup_steps=4, final_share=0.0)
    shares = [schedule.lr_share(step, 10) for step in range(1, 11)]
    assert shares == pytest.approx(
        [0.25, 0.5, 0.75, 1, 0.9505, 0.8117, 0.6113, 0.3887, 0.1883, 0.0495], abs=5e-5
    )


def test_constant_and_inverse_square_root_tables() -> None:
    constant, inverse = Constant(warmup_steps=4), InverseSqrt(warmup_steps=4)
    assert [constant.lr_share(step, 10) for step in range(1, 11)] == [0.25, 0.5, 0.75, *[1.0] * 7]
    shares = [inverse.lr_share(step, 10) for step in range(1, 11)]
    assert shares == pytest.approx(
        [0.25, 0.5, 0.75, 1, 0.8944, 0.8165, 0.7559, 0.7071, 0.6667, 0.6325], abs=5e-5
    )


def test_their_runs_are_beginnings_of_longer_ones() -> None:
    for schedule in (Constant(warmup_steps=4), InverseSqrt(warmup_steps=4)):
        short, long = {"schedule": schedule}, {"schedule": schedule, "n_tokens": 30 * 128}
        assert fingerprint(of(9, **short)) == fingerprint(of(9, **long))


@pytest.mark.parametrize(
    "schedule",
    [
        WSD(warmup_steps=3, decay_steps=5),
        WSD(warmup_steps=3, decay_steps=5, shape="sqrt"),
        Cosine(warmup_steps=3, final_share=0.0),
        Constant(warmup_steps=3),
        InverseSqrt(warmup_steps=3),
    ],
)
@pytest.mark.parametrize("n_steps", [8, 9, 100])
def test_peak_at_the_last_warm_up_step_and_never_zero(schedule: Any, n_steps: int) -> None:
    shares = [schedule.lr_share(step, n_steps) for step in range(1, n_steps + 1)]
    assert shares[2] == 1.0 == max(shares)
    assert min(shares) > 0
    assert shares[3:] == sorted(shares[3:], reverse=True)


def test_without_warm_up_the_first_step_has_the_peak() -> None:
    assert WSD(warmup_steps=0, decay_steps=0).lr_share(1, 1) == 1.0
    assert Cosine(warmup_steps=0).lr_share(1, 1000) == pytest.approx(1.0, abs=1e-5)
    assert Constant(warmup_steps=0).lr_share(1, 1) == InverseSqrt(warmup_steps=1).lr_share(1, 1) == 1.0


def test_final_share_is_where_the_curve_arrives() -> None:
    for schedule in (
        WSD(warmup_steps=1, decay_steps=900, final_share=0.2),
        Cosine(warmup_steps=1, final_share=0.2),
    ):
        assert schedule.lr_share(1000, 1000) == pytest.approx(0.2, abs=1e-3)


def test_steps_and_checkpoints() -> None:
    ten = training()
    assert ten.n_steps == 10
    assert ten.checkpoint_steps == (3, 5, 8, 10)
    assert replace(ten, n_checkpoints=1).checkpoint_steps == (10,)
    assert replace(ten, n_checkpoints=100).checkpoint_steps == tuple(range(1, 11))


BAD: list[tuple[Any, dict[str, Any], str]] = [
    (AdamW, {"lr": -1, "weight_decay": 0.1}, "AdamW.lr: found -1.0, wanted a number above 0"),
    (AdamW, {"lr": float("nan"), "weight_decay": 0.1}, "AdamW.lr: found nan, wanted a finite number"),
    (AdamW, {"lr": 1e-3, "weight_decay": -0.1}, "AdamW.weight_decay: found -0.1"),
    (AdamW, {"lr": 1e-3, "weight_decay": 0.1, "beta2": 1.0}, "AdamW.beta2: found 1.0"),
    (AdamW, {"lr": 1e-3, "weight_decay": 0.1, "eps": 0}, "AdamW.eps: found 0"),
    (Cosine, {"warmup_steps": -1}, "Cosine.warmup_steps: found -1"),
    (Cosine, {"warmup_steps": 1, "final_share": 1.5}, "Cosine.final_share: found 1.5"),
    (WSD, {"warmup_steps": 1, "decay_steps": -2}, "WSD.decay_steps: found -2"),
    (WSD, {"warmup_steps": 1, "decay_steps": 2, "shape": "cubic"}, "WSD.shape: found 'cubic'"),
    (
        WSD,
        {"warmup_steps": 1, "decay_steps": 2, "final_share": 1.0},
        "WSD.final_share: found 1.0, .*Constant",
    ),
    (Cosine, {"warmup_steps": 1, "final_share": 1.0}, "Cosine.final_share: found 1.0, .*at 1 nothing falls"),
    (
        WSD,
        {"warmup_steps": 1, "decay_steps": 0, "final_share": 0.5},
        "WSD.final_share: found 0.5, .*no effect",
    ),
    (WSD, {"warmup_steps": 1, "decay_steps": 0, "shape": "sqrt"}, "WSD.shape: found 'sqrt', .*no effect"),
    (Constant, {"warmup_steps": -1}, "Constant.warmup_steps: found -1"),
    (InverseSqrt, {"warmup_steps": 0}, "InverseSqrt.warmup_steps: found 0, wanted at least 1"),
    (training, {"schedule": InverseSqrt(warmup_steps=11)}, "11 steps of warm-up and decay in a run of 10"),
    (training, {"n_tokens": 0}, "Training.n_tokens: found 0"),
    (training, {"n_tokens": 10**12}, "Training.n_tokens: .* steps', wanted at most 10,000,000 steps"),
    (training, {"optimizer": torch.optim.AdamW}, "Training.optimizer: .*wanted an Optimizer, .*Call it"),
    (training, {"optimizer": Constant(warmup_steps=1)}, "wanted an Optimizer, which has build, lr"),
    (
        training,
        {"schedule": AdamW(lr=1.0, weight_decay=0.0)},
        "wanted a Schedule, which has lr_share, min_steps",
    ),
    (training, {"batch_tokens": 0}, "Training.batch_tokens: found 0"),
    (training, {"seed": -1}, "Training.seed: found -1"),
    (training, {"grad_clip": 0.0}, "Training.grad_clip: found 0.0"),
    (training, {"precision": "fp16"}, "Training.precision: found 'fp16', wanted one of 'bf16', 'fp32'"),
    (training, {"n_checkpoints": 0}, "Training.n_checkpoints: found 0"),
    (
        training,
        {"schedule": WSD(warmup_steps=6, decay_steps=5)},
        "11 steps of warm-up and decay in a run of 10",
    ),
    (spec, {"from_step": 5, "to_step": 5}, "TrainSegment.to_step: found '5 to 5'"),
    (
        spec,
        {"to_step": 11},
        "TrainSegment.to_step: found '0 to 11', wanted steps upwards from 0 to at most 10",
    ),
    (
        spec,
        {"batch_tokens": 100, "n_tokens": 1000},
        "batch_tokens: found 100, wanted a multiple of seq_len 32",
    ),
]


@pytest.mark.parametrize(("make", "fields", "message"), BAD)
def test_what_cannot_be_trained_is_refused_at_declaration(
    make: Any, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        make(**fields)


def test_a_segment_survives_json() -> None:
    assert from_json(to_json(spec())) == spec()


def of(to_step: int, from_step: int = 0, **changes: Any) -> TrainSegment:
    return segment(training(**changes), LLAMA, mixture(), from_step=from_step, to_step=to_step)


def test_identity_is_the_state_and_not_the_way_to_it() -> None:
    assert fingerprint(of(8)) == fingerprint(of(8, from_step=3))
    assert fingerprint(of(8)) != fingerprint(of(7))
    assert '"from_step"' not in identity_json(of(8, from_step=3))


def test_runs_share_what_they_agree_on() -> None:
    stable = WSD(warmup_steps=2, decay_steps=3)
    short, long = {"schedule": stable}, {"schedule": stable, "n_tokens": 20 * 128}
    assert fingerprint(of(7, **short)) == fingerprint(of(7, **long))
    assert fingerprint(of(8, **short)) != fingerprint(of(8, **long))  # the short one has begun its decay
    assert fingerprint(of(3)) != fingerprint(of(3, **short))


def test_a_step_that_is_cut_short_is_another_state() -> None:
    flat = {"schedule": WSD(warmup_steps=2, decay_steps=0)}
    cut, whole = of(10, **flat), of(10, n_tokens=10 * 128, **flat)
    assert (cut.n_tokens_to_step, whole.n_tokens_to_step) == (1252, 1280)
    assert fingerprint(cut) != fingerprint(whole)
    assert fingerprint(of(9, **flat)) == fingerprint(of(9, n_tokens=10 * 128, **flat))


@pytest.mark.parametrize(
    "change",
    [{"seed": 4}, {"grad_clip": 2.0}, {"precision": "bf16"}, {"optimizer": AdamW(lr=1e-3, weight_decay=0.1)}],
)
def test_what_changes_the_state_changes_the_identity(change: dict[str, Any]) -> None:
    assert fingerprint(of(5)) != fingerprint(of(5, **change))


def test_rates_that_do_not_follow_from_the_schedule_are_refused() -> None:
    with pytest.raises(SpecError, match="lrs_sha256"):
        replace(spec(), lrs_sha256="0" * 64).lrs()


@dataclass(frozen=True, kw_only=True)
class Own:
    """A schedule of a user's, with one share."""

    share: Any

    def lr_share(self, step: int, n_steps: int) -> float:
        del n_steps
        return 1.0 if step == 1 else self.share * 1.0

    def min_steps(self) -> int:
        return 1


@pytest.mark.parametrize(
    ("share", "found"),
    [
        (math.nan, "nan"),
        (math.inf, "inf"),
        (-1.0, r"-1\.0"),
        (1j, r"1j"),
        ("0.5", "TypeError: can't multiply"),
        (None, "TypeError: unsupported operand"),
    ],
)
def test_a_schedule_of_ones_own_is_looked_at(share: Any, found: str) -> None:
    with pytest.raises(SpecError, match=rf"Own\.lr_share\(2, 3\): found {found}"):
        learning_rates(Own(share=share), 1e-3, 3)


def test_a_share_may_be_of_any_kind_of_number() -> None:
    for share, wanted in ((np.float32(0.5), 1.0), (0, 0.0)):
        assert learning_rates(Own(share=share), 2.0, 2).tolist() == [2.0, wanted]
