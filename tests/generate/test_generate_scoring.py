"""Log-likelihoods against one token at a time, without batches, windows or caches."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
import torch

from modelfactory.errors import InvalidInput
from modelfactory.generate import EncodedPair, rolling_windows, windows_of_pair

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from modelfactory.generate import LanguageModel

CONTEXT = 24
EOS = 256
TEXTS = (
    "a",
    "short text",
    "x" * CONTEXT,
    "y" * (CONTEXT + 1),
    "Ein längerer Text über 世界 und \U0001f600, länger als der Kontext. " * 3,
    "ქართული ანბანი",
)


@torch.no_grad()
def next_logprobs(module: Any, inputs: Sequence[int]) -> torch.Tensor:
    return module(torch.tensor([list(inputs)]))[0, -1].double().log_softmax(-1)


def brute_force_rolling(module: Any, tokens: Sequence[int]) -> float:
    """Score token n from the inputs that the disjoint windows of lm-evaluation-harness give it."""
    line = [EOS, *tokens]
    total = 0.0
    for n in range(1, len(line)):
        window = (n - 1) // CONTEXT
        start = window * CONTEXT
        if (window + 1) * CONTEXT >= len(tokens):  # the last window reaches back
            start = max(0, len(line) - 1 - CONTEXT)
        total += float(next_logprobs(module, line[start:n])[line[n]])
    return total


def test_rolling_equals_one_token_at_a_time(module: Any, model: LanguageModel) -> None:
    for text, score in zip(TEXTS, model.loglikelihood_rolling(TEXTS), strict=True):
        assert score.logprob == pytest.approx(brute_force_rolling(module, list(text.encode())), rel=1e-5)
        assert score.n_tokens == len(text.encode())  # one token is one byte here: each counted once


def test_rolling_with_most_context_conditions_every_token_on_all_that_fits(
    module: Any, model: LanguageModel
) -> None:
    text = TEXTS[4]
    line = [EOS, *text.encode()]
    expected = sum(
        float(next_logprobs(module, line[max(0, n - CONTEXT) : n])[line[n]]) for n in range(1, len(line))
    )
    (score,) = model.loglikelihood_rolling([text], min_context=CONTEXT)
    assert score.logprob == pytest.approx(expected, rel=1e-5)


def test_an_empty_text_scores_nothing(model: LanguageModel) -> None:
    assert model.loglikelihood_rolling(["", "a"])[0] == (0.0, 0)
    assert model.loglikelihood_rolling([]) == []


@pytest.mark.parametrize("min_context", [1, 3, 7])
@pytest.mark.parametrize("n_tokens", [0, 1, 6, 7, 8, 13, 14, 15, 50])
def test_windows_hold_every_token_once_and_fit(n_tokens: int, min_context: int) -> None:
    tokens = list(range(n_tokens))
    windows = list(rolling_windows(tokens, prefix_id=-1, max_len=7, min_context=min_context))
    assert [target for window in windows for target in window.targets] == tokens
    for window in windows:
        assert 1 <= len(window.targets) <= len(window.inputs) <= 7
        first = window.targets[0]
        assert window.first_scored + 1 >= min(min_context, first + 1)
        context = window.inputs[: window.first_scored + 1]
        assert context == tuple(range(first - len(context), first))  # -1, the prefix, comes before 0


def test_windows_are_those_of_lm_evaluation_harness() -> None:
    """Its documented example: ten tokens, a context of four."""
    windows = [(w.inputs, w.targets) for w in rolling_windows(range(10), prefix_id=-100, max_len=4)]
    assert windows == [
        ((-100, 0, 1, 2), (0, 1, 2, 3)),
        ((3, 4, 5, 6), (4, 5, 6, 7)),
        ((5, 6, 7, 8), (8, 9)),
    ]


@pytest.mark.parametrize("min_context", [0, 8])
def test_an_impossible_overlap_is_refused(min_context: int) -> None:
    with pytest.raises(InvalidInput, match="1 to the context length 7"):
        list(rolling_windows([1], prefix_id=0, max_len=7, min_context=min_context))


def brute_force_pair(module: Any, context: bytes, continuation: bytes) -> tuple[float, bool]:
    line = [EOS, *context]
    total, greedy = 0.0, True
    for token in continuation:
        logprobs = next_logprobs(module, line)
        total += float(logprobs[token])
        greedy &= int(logprobs.argmax()) == token
        line.append(token)
    return total, greedy


def test_continuations_equal_one_token_at_a_time(module: Any, model: LanguageModel) -> None:
    pairs = [("def f(", "x):"), ("", "abc"), ("世", "界"), ("ab", "c"), ("one ", "two")]
    greedy = int(next_logprobs(module, [EOS, *b"go"]).argmax())
    scores = model.loglikelihood(pairs)
    for (context, continuation), score in zip(pairs, scores, strict=True):
        kept = context.rstrip()
        moved = context[len(kept) :] + continuation
        expected, is_greedy = brute_force_pair(module, kept.encode(), moved.encode())
        assert score.logprob == pytest.approx(expected, rel=1e-5)
        assert (score.is_greedy, score.n_tokens, score.n_cut) == (is_greedy, len(moved.encode()), 0)
    (best,) = model.score_pairs([EncodedPair(tuple(b"go"), (greedy,))])
    assert best.is_greedy


def test_shared_contexts_are_read_once_and_score_the_same(module: Any, model: LanguageModel) -> None:
    """Groups of unequal size and contexts of unequal length, in one batch."""
    contexts = ["a context of 16.", "another context", "this one is 11", "short one"]
    pairs = [
        (context, continuation)
        for context in contexts
        for continuation in ("ab", " cdefg", "h")[: len(context) % 4 + 1]
    ]
    for (context, continuation), score in zip(pairs, model.loglikelihood(pairs), strict=True):
        expected, is_greedy = brute_force_pair(module, context.encode(), continuation.encode())
        assert score.logprob == pytest.approx(expected, rel=1e-5)
        assert score.is_greedy == is_greedy


def test_sharing_passes_fewer_tokens(module: Any, model: LanguageModel) -> None:
    seen: list[int] = []
    module.embedding.register_forward_pre_hook(lambda _, args: seen.append(args[0].numel()))
    model.loglikelihood([("twenty characters ok", ending) for ending in "abcd"])
    assert sum(seen) == 20 + 4  # the prefix and 19 characters once; then the last and no more, four times


def test_a_long_context_loses_its_oldest_tokens_and_keeps_the_prefix(
    module: Any, model: LanguageModel
) -> None:
    context, continuation = "0123456789" * 5, "abc"
    (score,) = model.loglikelihood([(context, continuation)])
    kept = context.encode()[-(CONTEXT - 3) :]
    expected, _ = brute_force_pair(module, kept, continuation.encode())
    assert score.logprob == pytest.approx(expected, rel=1e-5)
    assert score.n_cut == 50 - (CONTEXT - 3)


def test_a_continuation_longer_than_the_context_is_scored_whole(module: Any, model: LanguageModel) -> None:
    continuation = "c" * 60
    (score,) = model.loglikelihood([("context", continuation)])
    assert score.logprob == pytest.approx(brute_force_rolling(module, continuation.encode()), rel=1e-5)
    assert (score.n_tokens, score.n_cut) == (60, 7)


@pytest.mark.parametrize("n_context", range(12))
@pytest.mark.parametrize("n_continuation", [1, 2, 7, 8])
def test_windows_of_pairs_fit(n_context: int, n_continuation: int) -> None:
    pair = EncodedPair(tuple(range(n_context)), tuple(range(100, 100 + n_continuation)))
    windows, n_cut = windows_of_pair(pair, prefix_id=-1, max_len=7)
    assert [t for window in windows for t in window.targets] == list(pair.continuation)
    assert all(len(window.inputs) <= 7 for window in windows)
    assert windows[0].inputs[0] == -1
    if len(windows) == 1:
        assert windows[0].inputs == (-1, *pair.context[n_cut:], *pair.continuation[:-1])
        assert n_cut == max(0, n_context + n_continuation - 7)


def test_scores_do_not_depend_on_the_batch(model_with: Callable[..., LanguageModel]) -> None:
    drawn = random.Random(0)
    words = ["".join(drawn.choices("abcdefgh ", k=drawn.randrange(1, 40))) for _ in range(40)]
    pairs = [(words[n], f"{words[-n]}.") for n in range(40) for _ in range(n % 3 + 1)]
    alone, together = model_with(batch_tokens=1), model_with(batch_tokens=100_000)
    for one, other in zip(alone.loglikelihood(pairs), together.loglikelihood(pairs), strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-5 * one.n_tokens)
        assert one[1:] == other[1:]
    for text, score in zip(words, together.loglikelihood_rolling(words), strict=True):
        (single,) = alone.loglikelihood_rolling([text])
        assert score.logprob == pytest.approx(single.logprob, abs=1e-5 * score.n_tokens)


def test_asking_leaves_no_trace(module: Any, model: LanguageModel) -> None:
    module.train()
    module.blocks[0].eval()
    modes = [part.training for part in module.modules()]
    before = torch.random.get_rng_state()
    model.loglikelihood([("a", "b")])
    assert [part.training for part in module.modules()] == modes
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.is_grad_enabled()
    assert all(parameter.grad is None for parameter in module.parameters())
    module.loss_sum(torch.ones(1, 3).long(), torch.ones(1, 3).long(), torch.ones(1, 3).bool()).backward()


def test_progress_is_told(model_with: Callable[..., LanguageModel]) -> None:
    told: list[tuple[int, int]] = []
    model = model_with(batch_tokens=CONTEXT, on_batch=lambda *counts: told.append(counts))
    model.loglikelihood_rolling(["a" * 30, "b" * 20])
    assert told == [(1, 3), (2, 3), (3, 3)]
