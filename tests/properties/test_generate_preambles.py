"""What items begin with alike is read once, and no score shows it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.models.mixers import LATENT, PLAIN, decoder
from tests.properties.test_generate_properties import Bytes

from modelfactory.generate import EncodedPair, LanguageModel
from modelfactory.generate.preambles import WORTH_KEEPING, runs, saves_reading
from modelfactory.generate.shared import grouped
from modelfactory.generate.windows import Window
from modelfactory.models import GatedDelta, Mamba2

CONTEXT = 96
DELTA = GatedDelta(
    n_key_heads=2, n_value_heads=4, key_head_dim=8, value_head_dim=8, conv_width=4, norm_eps=1e-5
)
MAMBA = Mamba2(
    n_heads=4,
    head_dim=8,
    state_dim=8,
    n_groups=2,
    conv_width=4,
    conv_bias=True,
    bias=False,
    norm_eps=1e-5,
)
MIXERS: dict[str, tuple[Any, ...]] = {
    "attention": (PLAIN,),
    "window": (replace(PLAIN, window=7), PLAIN),
    "latent": (LATENT,),
    "gated delta": (DELTA, PLAIN),
    "mamba": (MAMBA,),
}


class Counted:
    """Counts the positions a module is given."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.n_read = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)

    def __call__(self, tokens_BT: torch.Tensor, cache: Any = None) -> Any:
        self.n_read += tokens_BT.numel()
        return self.module(tokens_BT, cache)


@cache
def module_of(name: str) -> Any:
    return decoder(*MIXERS[name], max_seq_len=CONTEXT).build(Bytes.vocab_size, 0).eval()


@torch.no_grad()
def alone(module: Any, pair: EncodedPair) -> float:
    """Pass the whole line at once, without a cache; cut on its left."""
    n_cut = max(0, len(pair.context) + len(pair.continuation) - CONTEXT)
    line = [256, *pair.context[n_cut:], *pair.continuation]
    logprobs = module(torch.tensor([line[:-1]]))[0].double().log_softmax(-1)
    n = len(pair.continuation)
    return float(logprobs[-n:].gather(-1, torch.tensor(line[-n:]).unsqueeze(-1)).sum())


IDS = st.integers(0, 255)
ENDS = st.lists(
    st.tuples(
        st.lists(IDS, max_size=20),
        st.lists(st.lists(IDS, min_size=1, max_size=6).map(tuple), min_size=1, max_size=3),
    ),
    min_size=1,
    max_size=7,
)


@pytest.mark.parametrize("name", MIXERS)
@settings(max_examples=8, deadline=None)
@given(
    shots=st.lists(st.lists(IDS, min_size=WORTH_KEEPING, max_size=80), min_size=1, max_size=2),
    ends=ENDS,
    batch_tokens=st.sampled_from([1, 40, 300, 10_000]),
)
def test_scores_do_not_show_what_was_shared(
    name: str, shots: list[list[int]], ends: list[tuple[list[int], list[tuple[int, ...]]]], batch_tokens: int
) -> None:
    """One task after the other, some items cut on the left because they do not fit."""
    module = module_of(name)
    pairs = [
        EncodedPair((*shot, *context), continuation)
        for shot in shots
        for context, choices in ends
        for continuation in choices
    ]
    model = LanguageModel(module, Bytes(), max_seq_len=CONTEXT, batch_tokens=batch_tokens)
    for pair, score in zip(pairs, model.score_pairs(pairs), strict=True):
        assert score.n_tokens == len(pair.continuation)
        assert score.logprob == pytest.approx(alone(module, pair), abs=1e-5 * score.n_tokens)


def test_shots_are_read_once() -> None:
    """20 items of 10 tokens after 60: one reading of 60 for each row, not for each item."""
    counted = Counted(module_of("attention"))
    done: list[int] = []
    pairs = [EncodedPair((*range(60), *range(item, item + 9)), (item,)) for item in range(20)]
    model = LanguageModel(
        counted,
        Bytes(),
        max_seq_len=CONTEXT,
        batch_tokens=50,
        on_batch=lambda n_done, n_total: done.append(n_done),
    )
    model.score_pairs(pairs)
    n_rows = 5
    assert counted.n_read <= n_rows * 61 + 20 * 10
    assert done == [5, 10, 15, 20]


def test_items_of_another_task_begin_a_run_of_their_own() -> None:
    first, other = tuple(range(50)), tuple(range(100, 150))
    windows = [Window((*shots, item, 7), (1,)) for shots in (first, other) for item in range(5)]
    windows.append(Window((1, 2, 3), (1,)))
    found = list(runs(list(grouped(windows))))
    assert [(len(run.groups), run.n_common) for run in found] == [(5, 50), (5, 50), (1, 2)]
    assert [saves_reading(run, 2) for run in found] == [True, True, False]
    assert list(runs([])) == []
