"""Factors and bounds beyond what float32 computes with are refused; at the ends nothing is infinite."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from modelfactory.errors import SpecError
from modelfactory.interchange.families.shared import with_mixer
from modelfactory.models import Llama
from modelfactory.models.checks import LARGEST, SMALLEST

LLAMA = Llama(n_layers=2, d_model=32, n_heads=2, max_seq_len=16)
OF_DECODER = ("embedding_scale", "logit_scale", "logit_softcap")
OF_ATTENTION = ("scale", "softcap")


@pytest.mark.parametrize("value", [0.0, -1.0, 1e300, float("inf"), float("nan"), 1e-300])
@pytest.mark.parametrize("name", [*OF_DECODER, *OF_ATTENTION])
def test_out_of_range(name: str, value: float) -> None:
    change: Any = replace if name in OF_DECODER else with_mixer
    with pytest.raises(SpecError, match=rf"{name}: found .* wanted"):
        change(LLAMA, **{name: value})


@pytest.mark.parametrize("value", [SMALLEST, LARGEST])
@pytest.mark.parametrize("name", [*OF_DECODER, *OF_ATTENTION])
def test_the_ends_of_the_range_compute(name: str, value: float) -> None:
    change: Any = replace if name in OF_DECODER else with_mixer
    module = change(LLAMA, **{name: value}).build(64, seed=0)
    tokens = torch.arange(16)[None]
    assert torch.isfinite(module(tokens)).all()
