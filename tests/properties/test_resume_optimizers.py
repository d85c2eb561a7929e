"""A run of 3 + 3 steps through a checkpoint has the same bytes as one of 6, whatever the optimizer keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.train.material import GPT, LLAMA, chain, deterministic_files, write_inputs

from modelfactory.train import SOAP, AdamW, BatchStage, InverseSqrt, Muon

if TYPE_CHECKING:
    from pathlib import Path

CASES: dict[str, dict[str, Any]] = {
    "adamw": {"optimizer": AdamW(lr=3e-3, weight_decay=0.1)},
    "muon": {"optimizer": Muon(lr=0.02, adamw_lr=3e-3, weight_decay=0.1), "precision": "bf16"},
    "muon gpt2": {"optimizer": Muon(lr=0.02, adamw_lr=3e-3, weight_decay=0.1), "model": GPT},
    "soap": {"optimizer": SOAP(lr=3e-3, weight_decay=0.1, precondition_steps=2)},
    "soap one-sided": {"optimizer": SOAP(lr=3e-3, weight_decay=0.1, max_precondition_dim=40), "model": GPT},
    "batch warm-up": {
        "optimizer": AdamW(lr=3e-3, weight_decay=0.1),
        "batch_warmup": (BatchStage(n_steps=2, batch_tokens=32), BatchStage(n_steps=3, batch_tokens=64)),
        "schedule": InverseSqrt(warmup_steps=2),
    },
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_inputs(tmp_path_factory.mktemp("inputs"))


def state(stage: Path) -> dict[str, bytes]:
    return {name: content for name, content in deterministic_files(stage).items() if name != "metrics.jsonl"}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("warm", [False, True], ids=["loaded", "kept alive"])
def test_resumed_is_bit_equal(inputs: dict[str, Path], tmp_path: Path, case: str, warm: bool) -> None:
    changes = {"model": LLAMA, **CASES[case]}
    whole = chain([6], inputs, tmp_path / "whole", warm=False, **changes)
    parts = chain([3, 6], inputs, tmp_path / "parts", warm=warm, **changes)
    assert state(parts) == state(whole)
