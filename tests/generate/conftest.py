"""Small real models, and a tokenizer whose tokens are bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from modelfactory.generate import LanguageModel
from modelfactory.models import GPT2, Llama

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CONTEXT = 24


class ByteTokenizer:
    """Token n is byte n; 256 ends texts."""

    eos_id = 256
    vocab_size = 257

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [list(text.encode()) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(number for number in ids if number < 256).decode("utf-8", errors="replace")


@pytest.fixture
def tokenizer() -> ByteTokenizer:
    return ByteTokenizer()


@pytest.fixture(params=["gpt2", "llama"])
def module(request: pytest.FixtureRequest) -> Any:
    """A model of each family whose next token is far from uniform, so that mistakes show."""
    family = {"gpt2": GPT2, "llama": Llama}[request.param]
    made = family(n_layers=2, d_model=32, n_heads=2, max_seq_len=CONTEXT).build(ByteTokenizer.vocab_size, 0)
    for parameter in made.parameters():
        parameter.data *= 4 if parameter.dim() > 1 else 1
    return made


@pytest.fixture
def model_with(module: Any, tokenizer: ByteTokenizer) -> Callable[..., LanguageModel]:
    def build(**options: Any) -> LanguageModel:
        return LanguageModel(module, tokenizer, max_seq_len=CONTEXT, **options)

    return build


@pytest.fixture
def model(model_with: Callable[..., LanguageModel]) -> LanguageModel:
    return model_with()
