"""Products by oneDNN: equal to torch's own but for rounding, and only where they are meant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.interchange.material import bpe, built
from torch.nn import functional

from modelfactory.generate import LanguageModel, products
from modelfactory.generate.products import PackedProducts
from modelfactory.models import Llama

if TYPE_CHECKING:
    from collections.abc import Callable

SPEC = Llama(n_layers=2, d_model=64, n_heads=4, max_seq_len=64)
TEXTS = [("Once upon a time", " there was a dog"), ("x", " the end")]


def parameter(*shape: int) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.randn(*shape, generator=torch.Generator().manual_seed(0)))


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Callable[[PackedProducts], list[int]]:
    def count(packed: PackedProducts) -> list[int]:
        inner: Any = packed._product
        seen: list[int] = []
        monkeypatch.setattr(packed, "_product", lambda *args: seen.append(1) or inner(*args))
        return seen

    return count


@pytest.mark.parametrize("rows", [(1,), (3, 5), (2, 1, 7)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_product_is_that_of_torch(
    rows: tuple[int, ...], with_bias: bool, counted: Callable[[PackedProducts], list[int]]
) -> None:
    weight, bias = parameter(96, 64), parameter(96) if with_bias else None
    x, packed = torch.randn(*rows, 64), PackedProducts()
    seen = counted(packed)
    with torch.no_grad(), packed:
        found = functional.linear(x, weight, bias)
    assert len(seen) == 1
    torch.testing.assert_close(found, functional.linear(x, weight, bias).detach(), rtol=1e-5, atol=1e-4)


def test_a_weight_that_changed_is_laid_out_anew() -> None:
    weight, x, packed = parameter(8, 8), torch.randn(2, 8), PackedProducts()
    with torch.no_grad():
        with packed:
            functional.linear(x, weight)
        weight.mul_(2)
        with packed:
            found = functional.linear(x, weight)
        torch.testing.assert_close(found, functional.linear(x, weight))


@pytest.mark.parametrize("case", ["gradient", "bfloat16", "no parameter", "too large"])
def test_all_else_is_left_to_torch(
    case: str, counted: Callable[[PackedProducts], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    weight: Any = parameter(8, 8)
    x = torch.randn(2, 8)
    if case == "bfloat16":
        weight, x = torch.nn.Parameter(weight.detach().bfloat16()), x.bfloat16()
    if case == "no parameter":
        weight = weight.detach()
    if case == "too large":
        monkeypatch.setattr(products, "MAX_BYTES", 8 * 8 * 4 - 1)
    packed = PackedProducts()
    seen = counted(packed)
    with torch.set_grad_enabled(case == "gradient"), packed:
        found = functional.linear(x, weight)
    assert seen == []
    assert found.requires_grad == (case == "gradient")


def test_scores_and_texts_are_those_without(monkeypatch: pytest.MonkeyPatch) -> None:
    model = LanguageModel(built(SPEC), bpe(), max_seq_len=64)
    found = model.loglikelihood(TEXTS)
    monkeypatch.setattr(model._products, "_is_there", False)
    wanted = model.loglikelihood(TEXTS)
    assert [each.logprob for each in found] == pytest.approx([each.logprob for each in wanted], abs=1e-5)


class LogitsAlone(torch.nn.Module):
    """A model as users write them: logits and nothing before."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, tokens_BT: torch.Tensor, cache: Any = None) -> Any:
        return self.inner(tokens_BT, cache)

    def new_cache(self, batch: int, max_len: int) -> Any:
        return self.inner.new_cache(batch, max_len)


def test_a_model_that_gives_logits_alone_scores_the_same() -> None:
    inner = built(SPEC)
    shared = [("Once upon a time there was", ending) for ending in (" a dog", " a cat", " the end")]
    asked = [*TEXTS, *shared]
    found = LanguageModel(inner, bpe(), max_seq_len=64).loglikelihood(asked)
    wanted = LanguageModel(LogitsAlone(inner), bpe(), max_seq_len=64).loglikelihood(asked)
    assert [each.logprob for each in found] == pytest.approx([each.logprob for each in wanted], abs=1e-5)
    assert [each.is_greedy for each in found] == [each.is_greedy for each in wanted]


def test_logits_are_worked_out_where_something_is_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = built(SPEC)
    inner, seen = module.to_logits, list[int]()
    monkeypatch.setattr(module, "to_logits", lambda x: seen.append(x.shape[:-1].numel()) or inner(x))
    found = LanguageModel(module, bpe(), max_seq_len=64).loglikelihood(TEXTS)
    assert sum(seen) == sum(each.n_tokens for each in found)
