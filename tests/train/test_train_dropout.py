"""Randomness inside a model: other numbers for each part of a batch, whoever computes it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from tests.train.material import LLAMA, spec, train
from tests.train.own_layers import Dropped
from tests.train.world import Case, column, run_world

if TYPE_CHECKING:
    from pathlib import Path


def dropping(folder: Path) -> Any:
    folder.mkdir(parents=True)
    return replace(LLAMA, blocks=(replace(LLAMA.blocks[0], feed_forward=Dropped(folder=str(folder))),))


def masks(folder: Path, rank: int) -> list[torch.Tensor]:
    found = [torch.load(folder / f"rank-{rank}-{n}.pt") for n in range(len([*folder.glob(f"rank-{rank}-*")]))]
    assert found
    return found


def test_equal_seeds_draw_equal_masks_and_each_step_others(inputs: dict[str, Path], tmp_path: Path) -> None:
    for name in ("one", "other"):
        model = dropping(tmp_path / f"masks-{name}")
        train(spec(model=model, to_step=2), inputs, tmp_path / name)
    one, other = (masks(tmp_path / f"masks-{name}", 0) for name in ("one", "other"))
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert not any(torch.equal(a, b) for n, a in enumerate(one) for b in one[:n])


@pytest.mark.slow
def test_no_two_processes_that_share_rows_or_the_batch_draw_one_mask(
    inputs: dict[str, Path], tmp_path: Path
) -> None:
    """Ranks of a context group have the same rows, and so had the same seed."""
    cases = [
        Case(name=parallel, spec=spec(model=dropping(tmp_path / parallel), to_step=2), parallel=parallel)
        for parallel in ("context=2", "data=2")
    ]
    world = run_world(2, cases, inputs, tmp_path / "world")
    for case in cases:
        drawn = [masks(tmp_path / case.name, rank) for rank in (0, 1)]
        assert len(drawn[0]) == len(drawn[1]) == 2 * LLAMA.n_layers
        flat = [mask.flatten() for of_rank in drawn for mask in of_rank]
        shares = [float((a == b).float().mean()) for n, a in enumerate(flat) for b in flat[:n]]
        assert max(shares) < 0.6, case.name  # half of the numbers agree by chance
        assert np.isfinite(column(world / case.name, "loss")).all()
