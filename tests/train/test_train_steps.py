from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from modelfactory.errors import SpecError, Stopped
from modelfactory.tokens import Batch
from modelfactory.train.learner import Learner
from modelfactory.train.steps import gradient, parts
from tests.train.material import GPT, LLAMA, spec

VOCAB_SIZE = 97


def ragged_batch() -> Batch:
    """Return 4 rows of which 5, 20, 0 and 32 labels count."""
    random = np.random.default_rng(0)
    valid = np.arange(32) < np.array([5, 20, 0, 32])[:, None]
    return Batch(
        step=1,
        tokens=random.integers(VOCAB_SIZE, size=(4, 33), dtype=np.int32),
        valid=valid,
        sequence_ids=np.zeros((4, 3), dtype=np.int64),
    )


def gradients(micro_batch_tokens: int, model: Any = LLAMA) -> tuple[float, dict[str, torch.Tensor]]:
    learner = Learner(spec(model=model), VOCAB_SIZE, is_compiled=False)
    with torch.random.fork_rng(devices=[]):
        loss = gradient(learner, ragged_batch(), seed=0, micro_batch_tokens=micro_batch_tokens).loss
    return float(loss), {name: p.grad for name, p in learner.module.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("model", [LLAMA, GPT])
@pytest.mark.parametrize("micro_batch_tokens", [1, 32, 64, 96])
def test_no_split_of_the_batch_changes_the_gradient(micro_batch_tokens: int, model: Any) -> None:
    loss, whole = gradients(128, model)
    split_loss, split = gradients(micro_batch_tokens, model)
    assert split_loss == pytest.approx(loss, rel=1e-6)
    assert whole.keys() == split.keys()
    for name, value in whole.items():
        torch.testing.assert_close(split[name], value, atol=1e-6, rtol=1e-5, msg=name)


def test_the_loss_is_the_mean_over_labels_and_not_over_rows() -> None:
    batch = ragged_batch()
    module = LLAMA.build(VOCAB_SIZE, seed=3)
    tokens = torch.from_numpy(batch.tokens).long()
    with torch.no_grad():
        logits = module(tokens[:, :-1]).transpose(1, 2)
        each = torch.nn.functional.cross_entropy(logits, tokens[:, 1:], reduction="none")
    assert gradients(32)[0] == pytest.approx(each[torch.from_numpy(batch.valid)].mean().item(), rel=1e-6)


@pytest.mark.parametrize(
    ("n_rows", "micro", "sizes"),
    [(4, 128, [4]), (4, 64, [2, 2]), (7, 96, [2, 2, 3]), (3, 1, [1, 1, 1]), (5, 999, [5])],
)
def test_parts_are_few_and_equal(n_rows: int, micro: int, sizes: list[int]) -> None:
    assert [last - first for first, last in parts(n_rows, 32, micro)] == sizes


def test_it_stops_between_two_parts() -> None:
    learner = Learner(spec(), VOCAB_SIZE, is_compiled=False)
    answers = iter([False, True])
    with torch.random.fork_rng(devices=[]), pytest.raises(Stopped, match="within step 1"):
        gradient(learner, ragged_batch(), seed=0, micro_batch_tokens=32, stopping=lambda: next(answers))


def test_only_matrices_decay() -> None:
    learner = Learner(spec(model=GPT), VOCAB_SIZE, is_compiled=False)
    decayed, other = learner.optimizer.param_groups
    assert decayed["weight_decay"] == 0.1
    assert other["weight_decay"] == 0.0
    assert {p.ndim for p in decayed["params"]} == {2}
    assert {p.ndim for p in other["params"]} == {1}
    n_parameters = sum(p.numel() for group in (decayed, other) for p in group["params"])
    assert n_parameters == GPT.n_parameters(VOCAB_SIZE)


def test_adamw_is_the_one_of_the_paper() -> None:
    """Two steps on one weight against the formula in float64."""
    learner = Learner(spec(model=GPT), VOCAB_SIZE, is_compiled=False)
    weight = learner.module.get_parameter("final_norm.weight")
    matrix = learner.module.get_parameter("embedding.weight")
    w, m, g = weight[0].item(), matrix[0, 0].item(), 0.5
    first = second = 0.0
    for step in (1, 2):
        for parameter in learner.module.parameters():
            parameter.grad = torch.full_like(parameter, g)
        for group in learner.optimizer.param_groups:
            group["lr"] = 0.01
        learner.optimizer.step()
        first, second = 0.9 * first + 0.1 * g, 0.95 * second + 0.05 * g * g
        change = 0.01 * (first / (1 - 0.9**step)) / (math.sqrt(second / (1 - 0.95**step)) + 1e-8)
        w, m = w - change, m * (1 - 0.01 * 0.1) - change
    assert weight[0].item() == pytest.approx(w, abs=1e-6)
    assert matrix[0, 0].item() == pytest.approx(m, abs=1e-6)


@dataclass(frozen=True, kw_only=True)
class OwnOptimizer:
    """An optimizer spec of a user's that steps the first few parameters, or is none at all."""

    lr: float = 0.1
    n_stepped: int

    def build(self, module: torch.nn.Module) -> Any:
        parameters = list(module.parameters())[: self.n_stepped]
        return torch.optim.SGD(parameters, lr=self.lr) if parameters else None


@pytest.mark.parametrize(
    ("n_stepped", "found"),
    [(0, "found None, wanted a torch.optim.Optimizer"), (2, r"an optimizer without \S+ and \d+ more")],
)
def test_an_optimizer_of_ones_own_must_step_everything(n_stepped: int, found: str) -> None:
    segment = spec(optimizer=OwnOptimizer(n_stepped=n_stepped))
    with pytest.raises(SpecError, match=rf"OwnOptimizer\.build: .*{found}"):
        Learner(segment, VOCAB_SIZE, is_compiled=False)
