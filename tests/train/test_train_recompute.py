from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np
import pytest
import torch

from modelfactory.errors import SpecError
from modelfactory.models import Llama
from modelfactory.tokens import Batch
from modelfactory.train.learner import Learner
from modelfactory.train.recompute import recompute
from modelfactory.train.steps import gradient
from tests.train.material import spec
from tests.train.test_train_parallel import MODELS

VOCAB_SIZE = 97
WIDE = Llama(n_layers=6, d_model=64, n_heads=4, max_seq_len=64)


def gradients(checkpointing: Any, model: Any, precision: str) -> tuple[float, dict[str, torch.Tensor]]:
    learner = Learner(
        spec(model=model, precision=precision), VOCAB_SIZE, is_compiled=False, checkpointing=checkpointing
    )
    random = np.random.default_rng(0)
    seq_len = model.max_seq_len
    batch = Batch(
        step=1,
        tokens=random.integers(VOCAB_SIZE, size=(4, seq_len + 1), dtype=np.int32),
        valid=np.arange(seq_len) < np.array([5, 20, 0, seq_len])[:, None],
        sequence_ids=np.zeros((4, 3), dtype=np.int64),
    )
    with torch.random.fork_rng(devices=[]):
        loss = float(gradient(learner, batch, seed=0, micro_batch_tokens=4 * seq_len).loss)
    return loss, {name: p.grad for name, p in learner.module.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("model", ["llama", "gpt", "windows", "experts"])
@pytest.mark.parametrize("checkpointing", ["selective", "full"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_gradients_are_the_same(checkpointing: str, model: str, precision: str) -> None:
    loss, wanted = gradients("none", MODELS[model], precision)
    found_loss, found = gradients(checkpointing, MODELS[model], precision)
    assert found_loss == pytest.approx(loss, rel=1e-6)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, atol=1e-6, rtol=1e-6, msg=name)


def peak_bytes(checkpointing: Any) -> int:
    """Return the most memory held at once in a forward and backward pass, by torch's own account."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profiler:
        gradients(checkpointing, WIDE, "fp32")
    events = profiler.profiler.kineto_results.events()  # type: ignore[union-attr]
    changes = [event.nbytes() for event in events if event.name() == "[memory]"]
    return max(accumulate(changes))


def test_memory_falls() -> None:
    none, selective, full = map(peak_bytes, ("none", "selective", "full"))
    assert full < selective < none
    assert full < 0.6 * none


def test_a_model_without_blocks_is_refused() -> None:
    with pytest.raises(SpecError, match="model without blocks"):
        recompute(torch.nn.Linear(2, 2), "full")
