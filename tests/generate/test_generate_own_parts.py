"""What a layer of the user's own raises, or gives of another shape, while a model is asked."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.models.own_parts import Faulty, FaultyModule

from modelfactory.errors import SpecError
from modelfactory.generate import LanguageModel, Sampling
from modelfactory.models import BuildContext, Llama

if TYPE_CHECKING:
    from collections.abc import Callable

    from modelfactory.generate import Encoder

CONTEXT = 24
LLAMA = Llama(n_layers=2, d_model=16, n_heads=2, max_seq_len=CONTEXT)
SHARED = "0123456789"
QUESTIONS: dict[str, Callable[[LanguageModel], Any]] = {
    "scores": lambda model: model.loglikelihood([("a", "b")]),
    "shared": lambda model: model.loglikelihood([(SHARED, "b"), (SHARED, "c")]),
    "rolling": lambda model: model.loglikelihood_rolling(["abc"]),
    "generate": lambda model: model.generate(["abc"], Sampling(max_new_tokens=2)),
    "stream": lambda model: list(model.stream("abc", Sampling(max_new_tokens=2))),
}


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (
            "evaluation",
            r"forward: found ValueError: no luck \(own_parts\.py:\d+\), wanted a call that returns",
        ),
        (
            "short",
            r"forward: found a tensor of shape \(1, \d+, 16\), wanted a tensor of shape \(1, \d+, 16\)",
        ),
    ],
)
def test_a_layer_is_named(fault: str, told: str, question: str, tokenizer: Encoder) -> None:
    block = LLAMA.blocks[0]
    spec = replace(LLAMA, blocks=(block, replace(block, mixer=Faulty(module=fault))))
    model = LanguageModel(spec.build(tokenizer.vocab_size, 0), tokenizer, max_seq_len=CONTEXT)
    with pytest.raises(SpecError, match=rf"^model\.blocks\.1\.mixer, FaultyModule\.{told}"):
        QUESTIONS[question](model)


@pytest.mark.parametrize("question", ["shared", "generate", "stream"])
def test_a_cache_that_cannot_be_made_is_named(question: str, tokenizer: Encoder) -> None:
    block = LLAMA.blocks[0]
    spec = replace(LLAMA, blocks=(replace(block, mixer=Faulty(module="cache")), block))
    model = LanguageModel(spec.build(tokenizer.vocab_size, 0), tokenizer, max_seq_len=CONTEXT)
    with pytest.raises(
        SpecError, match=r"^model\.blocks\.0\.mixer, FaultyModule\.new_cache: found ValueError"
    ):
        QUESTIONS[question](model)


class OfOnesOwn(FaultyModule):
    """A whole model that gives no logits, but what its fault says."""

    def forward(self, x_BTD: torch.Tensor, cache: Any = None, packing: Any = None) -> Any:
        return super().forward(torch.zeros(*x_BTD.shape, self.out.in_features), cache, packing)


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize(
    ("fault", "found"), [("short", r"a tensor of shape \(1, \d+, 8\)"), ("nothing", "None")]
)
def test_logits_of_another_shape(fault: str, found: str, question: str, tokenizer: Encoder) -> None:
    module = OfOnesOwn(fault, BuildContext(d_model=8, max_seq_len=CONTEXT, initial=LLAMA.initial))
    model = LanguageModel(module, tokenizer, max_seq_len=CONTEXT)
    wanted = rf"^model, OfOnesOwn\.forward: found {found}, wanted logits of shape \(1, \d+, vocabulary\)"
    with pytest.raises(SpecError, match=wanted):
        QUESTIONS[question](model)
