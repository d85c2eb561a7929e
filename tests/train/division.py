"""Ranks for tests: what each really holds of a model."""

from __future__ import annotations

import json
import os
import pickle
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.train.material import most_grown, spec

ROWS, LENGTH = 16, 128


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model and how it is divided."""

    model: Any
    parallel: str
    precision: Any = "fp32"
    checkpointing: Any = "none"
    vocab_size: int = 512

    @property
    def spec(self) -> Any:
        """What is trained; a step is gone through at once."""
        size = {"batch_tokens": ROWS * LENGTH, "n_tokens": 32 * ROWS * LENGTH}
        return spec(model=self.model, precision=self.precision, **size)


@dataclass(frozen=True, kw_only=True)
class Found:
    """Bytes of one rank."""

    parameters: int
    optimizer: int
    peak: int
    """The most that tensors held in a step, by torch's own account."""


def serve(rank: int, n_ranks: int, folder: str) -> None:
    """Measure every case as one of the ranks."""
    import torch.distributed as dist

    home = Path(folder)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{home / 'store'}", rank=rank, world_size=n_ranks)
    cases = pickle.loads((home / "cases.pickle").read_bytes())
    found = [asdict(measured(case, rank)) for case in cases]
    (home / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def measured(case: Case, rank: int) -> Found:
    """Train two steps and look at the second."""
    from modelfactory.stage import Parallel
    from modelfactory.train.learner import Learner
    from modelfactory.train.ranks import Ranks

    parallel = Parallel.parse(case.parallel)
    learner = Learner(
        case.spec,
        case.vocab_size,
        is_compiled=False,
        checkpointing=case.checkpointing,
        processes=Ranks(parallel, "cpu"),
    )
    step(learner, case.vocab_size, parallel.n_row_ranks, rank)
    parameters = sum(_n_bytes(each) for each in learner.module.parameters())
    states = (value for state in learner.optimizer.state.values() for value in state.values())
    optimizer = sum(_n_bytes(value) for value in states if value.ndim > 0)
    grown = most_grown(partial(step, learner, case.vocab_size, parallel.n_row_ranks, rank))
    return Found(parameters=parameters, optimizer=optimizer, peak=parameters + optimizer + grown)


def step(learner: Any, vocab_size: int, n_row_ranks: int, rank: int) -> None:
    """Take one with random tokens."""
    from modelfactory.tokens import Batch
    from modelfactory.train.steps import gradient

    n_rows = ROWS // n_row_ranks
    random = np.random.default_rng(rank if n_row_ranks > 1 else 0)
    batch = Batch(
        step=1,
        tokens=random.integers(vocab_size, size=(n_rows, LENGTH + 1), dtype=np.int32),
        valid=np.ones((n_rows, LENGTH), dtype=bool),
        sequence_ids=np.zeros((n_rows, 3), dtype=np.int64),
    )
    gradient(learner, batch, seed=0, micro_batch_tokens=ROWS * LENGTH, n_valid=ROWS * LENGTH)
    learner.optimizer.step()
    learner.optimizer.zero_grad(set_to_none=True)


def _n_bytes(value: Any) -> int:
    """Return what this rank stores of a tensor."""
    local = value.to_local() if hasattr(value, "to_local") else value
    return int(local.untyped_storage().nbytes())
