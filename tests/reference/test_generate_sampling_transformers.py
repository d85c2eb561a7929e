"""What may be drawn, and how likely it is, against transformers' own processors."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from modelfactory.generate import Sampling
from modelfactory.generate.choosing import choose, penalised

transformers = pytest.importorskip("transformers")

N_DRAWS = 4_000
VOCAB_SIZE = 60


def their_shares(logits_BV: torch.Tensor, lines: list[list[int]], sampling: Sampling) -> torch.Tensor:
    """Return the distribution transformers draws from, its processors in the order of its `generate`."""
    made: dict[type, Any] = {
        transformers.RepetitionPenaltyLogitsProcessor: sampling.repetition_penalty,
        transformers.TemperatureLogitsWarper: sampling.temperature,
        transformers.TopKLogitsWarper: sampling.top_k or VOCAB_SIZE,
        transformers.TopPLogitsWarper: sampling.top_p,
        transformers.MinPLogitsWarper: sampling.min_p,
    }
    processors = transformers.LogitsProcessorList(kind(value) for kind, value in made.items())
    return torch.as_tensor(processors(torch.tensor(lines), logits_BV.clone()).softmax(dim=-1))


@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 1.3},
        {"repetition_penalty": 0.7},
        {"min_p": 0.2},
        {"temperature": 0.6, "min_p": 0.2, "repetition_penalty": 1.8},
        {"temperature": 1.7, "top_k": 9, "top_p": 0.7, "min_p": 0.1, "repetition_penalty": 1.2},
    ],
)
def test_shares_are_those_of_transformers(options: dict[str, Any]) -> None:
    sampling = Sampling(**{"max_new_tokens": 1, "temperature": 1.0, **options})
    logits_BV = 2 * torch.randn(3, VOCAB_SIZE, generator=torch.Generator().manual_seed(1))
    # the best token has been said twice, others of both signs once
    lines = [[int(row.argmax()), *range(20), int(row.argmax())] for row in logits_BV]
    theirs_BV = their_shares(logits_BV, lines, sampling)
    ours_BV = penalised(logits_BV, sampling.repetition_penalty, lines)
    grid = (torch.arange(N_DRAWS, dtype=torch.float64) + 0.5) / N_DRAWS
    for ours_V, theirs_V in zip(ours_BV, theirs_BV, strict=True):
        drawn = Counter(choose(ours_V.expand(N_DRAWS, -1), sampling, grid).tolist())
        shares = [drawn[token] / N_DRAWS for token in range(VOCAB_SIZE)]
        assert shares == pytest.approx(theirs_V.tolist(), abs=1 / N_DRAWS)


def test_greedy_with_a_penalty_is_that_of_transformers() -> None:
    config = transformers.LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        logits_BV = transformers.LlamaForCausalLM(config).eval()(torch.arange(5)[None]).logits[:, -1].detach()
    lines = [[0, 1, 2, 3, 4, int(logits_BV.argmax())]]
    theirs = transformers.RepetitionPenaltyLogitsProcessor(5.0)(torch.tensor(lines), logits_BV.clone())
    assert torch.equal(penalised(logits_BV, 5.0, lines), theirs)
