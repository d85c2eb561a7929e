"""Generation against a loop without a cache."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import torch

from modelfactory.errors import InvalidInput, SpecError
from modelfactory.generate import Sampling
from modelfactory.generate.choosing import choose, draws
from modelfactory.generate.decoding import fitted
from modelfactory.generate.text import Growing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from modelfactory.generate import LanguageModel

CONTEXT = 24
EOS = 256
PROMPTS = ["", "a", "def f(", "the cat and ", "0123456789"]


@torch.no_grad()
def without_cache(module: Any, prompt: Sequence[int], sampling: Sampling, number: int) -> list[int]:
    """Generate by passing the whole window at every step."""
    window = list(fitted(prompt, prefix_id=EOS, max_len=CONTEXT, max_new_tokens=sampling.max_new_tokens).ids)
    drawn = draws(sampling, [number])
    made: list[int] = []
    while len(made) < sampling.max_new_tokens:
        uniform = None if drawn is None else drawn[:, len(made)]
        token = int(choose(module(torch.tensor([window]))[:, -1], sampling, uniform)[0])
        if token == EOS:
            break
        made.append(token)
        if len(window) == CONTEXT:
            window = [EOS, *window[-(CONTEXT // 2 - 2) :]]
        window.append(token)
    return made


@pytest.mark.parametrize("max_new_tokens", [1, 9, 60])
@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_the_cache_changes_nothing(
    module: Any, model: LanguageModel, temperature: float, max_new_tokens: int
) -> None:
    """Prompts of unequal length in one batch, also past the end of the context."""
    sampling = Sampling(max_new_tokens=max_new_tokens, temperature=temperature, seed=5)
    for number, (prompt, made) in enumerate(zip(PROMPTS, model.generate(PROMPTS, sampling), strict=True)):
        assert list(made.ids) == without_cache(module, list(prompt.encode()), sampling, number)
        n_read = 1 + len(prompt) + len(made.ids) - (made.finish == "length")
        assert (made.n_moves > 0) == (n_read > CONTEXT)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_generation_does_not_depend_on_the_batch(
    model_with: Callable[..., LanguageModel], temperature: float
) -> None:
    drawn: dict[str, Any] = {"top_k": 50, "top_p": 0.95, "min_p": 0.02} if temperature else {}
    options = {**drawn, "temperature": temperature, "repetition_penalty": 1.3}
    sampling = Sampling(max_new_tokens=12, seed=1, **options)
    prompts = [word * n for n, word in enumerate(["x", "ab", "c d", "ef"] * 5)]
    alone, together = model_with(batch_tokens=1), model_with(batch_tokens=100_000)
    assert alone.generate(prompts, sampling) == together.generate(prompts, sampling)


def test_seeds_repeat_and_differ(model: LanguageModel) -> None:
    options: dict[str, Any] = {"max_new_tokens": 16, "temperature": 1.0}
    before = torch.random.get_rng_state()
    once = model.generate(["a", "a"], Sampling(**options, seed=1))
    assert once == model.generate(["a", "a"], Sampling(**options, seed=1))
    assert once[0] != once[1]  # the second of two equal prompts is another sample
    assert once != model.generate(["a", "a"], Sampling(**options, seed=2))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_long_prompt_is_cut_on_its_left(model: LanguageModel) -> None:
    sampling = Sampling(max_new_tokens=4)
    long = "0123456789" * 5
    (made,) = model.generate([long], sampling)
    (same,) = model.generate([long[-(CONTEXT - 4 - 1) :]], sampling)
    assert made.ids == same.ids
    assert (made.n_cut, same.n_cut) == (50 - (CONTEXT - 4 - 1), 0)
    assert made.n_moves == 0


def test_more_new_tokens_than_context_keep_half_the_prompt(model: LanguageModel) -> None:
    (made,) = model.generate(["0123456789" * 5], Sampling(max_new_tokens=100, stops=("\x00never",)))
    assert made.n_cut == 50 - (CONTEXT // 2 - 1)


class Scripted(torch.nn.Module):
    """Says a fixed line of tokens, one after the other, whatever it reads."""

    def __init__(self, line: Sequence[int]) -> None:
        super().__init__()
        self.line, self.n_prompt = list(line), 1
        self.nothing = torch.nn.Parameter(torch.zeros(1))

    def new_cache(self, batch: int, max_len: int) -> list[int]:
        assert batch
        assert max_len <= CONTEXT
        return [0]

    def forward(self, tokens: torch.Tensor, cache: list[int]) -> torch.Tensor:
        cache[0] += tokens.shape[1]
        logits = torch.zeros(*tokens.shape, EOS + 1)
        logits[:, -1, self.line[cache[0] - self.n_prompt]] = 1.0
        return logits


@pytest.fixture
def scripted(tokenizer: Any) -> Callable[[bytes], LanguageModel]:
    from modelfactory.generate import LanguageModel

    def build(text: bytes) -> LanguageModel:
        return LanguageModel(Scripted([*text, EOS]), tokenizer, max_seq_len=CONTEXT)

    return build


@pytest.mark.parametrize(
    ("said", "options", "text", "finish"),
    [
        (b"hello", {}, "hello", "eos"),
        (b"", {}, "", "eos"),
        (b"hello", {"max_new_tokens": 3}, "hel", "length"),
        (b"one\n\ntwo", {"stops": ("\n\n",)}, "one", "stop"),
        (b"one STOP two", {"stops": ("zzz", "STOP")}, "one ", "stop"),
        (b"ab", {"stops": ("a", "b")}, "", "stop"),
        (b"x = 1\ny", {"stop_pattern": r"\n(?=\S)"}, "x = 1", "stop"),
        ("für 世".encode(), {}, "für 世", "eos"),
        ("a世界b".encode(), {"stops": ("界",)}, "a世", "stop"),
        (b"a\xff\xfeb", {}, "a\ufffd\ufffdb", "eos"),
        ("世".encode()[:2], {}, "\ufffd", "eos"),
    ],
)
def test_where_a_completion_ends(
    scripted: Callable[[bytes], LanguageModel], said: bytes, options: dict[str, Any], text: str, finish: str
) -> None:
    sampling = Sampling(**{"max_new_tokens": 16, **options})
    (made,) = scripted(said).generate([""], sampling)
    assert (made.text, made.finish) == (text, finish)
    assert "".join(scripted(said).stream("", sampling)) == text


def test_a_stream_never_shows_part_of_a_stop_or_of_a_character(
    scripted: Callable[[bytes], LanguageModel],
) -> None:
    sampling = Sampling(max_new_tokens=20, stops=("STOP",))
    pieces = list(scripted("aS世STSTOP".encode()).stream("", sampling))
    assert pieces == ["a", "S世", "ST"]


def test_a_stream_equals_a_generation(model: LanguageModel) -> None:
    sampling = Sampling(max_new_tokens=40, temperature=0.7, seed=3)
    (made,) = model.generate(["def f("], sampling)
    assert "".join(model.stream("def f(", sampling)) == made.text


def test_a_stream_takes_no_gradient_from_its_reader(model: LanguageModel) -> None:
    for _ in model.stream("a", Sampling(max_new_tokens=3, temperature=1.0)):
        assert torch.is_grad_enabled()


def test_text_grows_as_it_is_decoded_whole(tokenizer: Any) -> None:
    text = "naïve 世界 \U0001f600\U0001f600 end"
    growing = Growing(tokenizer, Sampling(max_new_tokens=99))
    for token in text.encode():
        growing.push(token)
        assert "\ufffd" not in growing.text
    assert growing.text == text


def shares(sampling: Sampling, logits: Sequence[float]) -> list[float]:
    """Return how often each token is drawn over an even grid of uniform numbers."""
    grid = (torch.arange(2_000, dtype=torch.float64) + 0.5) / 2_000
    drawn = choose(torch.tensor(logits).expand(2_000, -1), sampling, grid).tolist()
    counts = Counter(drawn)
    return [counts[token] / 2_000 for token in range(len(logits))]


LOGITS = [math.log(share) for share in (0.1, 0.4, 0.2, 0.3)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"temperature": 1.0}, [0.1, 0.4, 0.2, 0.3]),
        ({"temperature": 0.5}, [1 / 30, 16 / 30, 4 / 30, 9 / 30]),  # squares, divided by their sum
        ({"temperature": 1.0, "top_k": 2}, [0, 4 / 7, 0, 3 / 7]),
        ({"temperature": 1.0, "top_k": 99}, [0.1, 0.4, 0.2, 0.3]),
        ({"temperature": 1.0, "top_p": 0.39}, [0, 1, 0, 0]),
        ({"temperature": 1.0, "top_p": 0.6}, [0, 4 / 7, 0, 3 / 7]),
        ({"temperature": 1.0, "top_k": 3, "top_p": 0.8}, [0, 4 / 9, 2 / 9, 3 / 9]),
        ({"temperature": 1.0, "min_p": 0.49}, [0, 4 / 9, 2 / 9, 3 / 9]),
        ({"temperature": 0.5, "min_p": 0.49}, [0, 16 / 25, 0, 9 / 25]),  # after the temperature
        ({"temperature": 1.0, "min_p": 1.0}, [0, 1, 0, 0]),
        ({"temperature": 1e-6}, [0, 1, 0, 0]),
    ],
)
def test_draws_follow_the_distribution(options: dict[str, Any], expected: list[float]) -> None:
    assert shares(Sampling(max_new_tokens=1, **options), LOGITS) == pytest.approx(expected, abs=2e-3)


def test_a_penalty_without_bound_never_repeats(model: LanguageModel) -> None:
    """Nothing of the prompt comes again, nor of what was made; the start of every sequence may."""
    (made,) = model.generate(["abcdef"], Sampling(max_new_tokens=15, repetition_penalty=1e9))
    (other,) = model.generate(["abcdef"], Sampling(max_new_tokens=15))
    assert len({*made.ids, *b"abcdef"}) == len(made.ids) + 6
    assert len({*other.ids, *b"abcdef"}) < len(other.ids) + 6


def test_greedy_takes_the_smallest_of_equals() -> None:
    assert choose(torch.tensor([[0.0, 1.0, 1.0]]), Sampling(max_new_tokens=1), None).tolist() == [1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": 0}, "Sampling.max_new_tokens: found 0, wanted at least 1"),
        ({"temperature": -1}, "Sampling.temperature"),
        ({"top_p": 0}, "Sampling.top_p"),
        ({"temperature": 1.0, "min_p": 1.1}, "Sampling.min_p: found 1.1, wanted a share from 0 to 1"),
        ({"min_p": 0.1}, "Sampling.min_p: found 0.1, wanted none at temperature 0"),
        ({"top_k": 5}, "Sampling.top_k: found 5, wanted none at temperature 0"),
        ({"top_p": 0.9}, "Sampling.top_p: found 0.9, wanted none at temperature 0"),
        ({"repetition_penalty": 0.0}, "Sampling.repetition_penalty: found 0.0"),
        ({"repetition_penalty": math.inf}, "Sampling.repetition_penalty"),
        ({"repetition_penalty": math.nan}, "Sampling.repetition_penalty"),
        ({"top_k": -1}, "Sampling.top_k"),
        ({"stops": ("",)}, "Sampling.stops"),
        ({"stop_pattern": "("}, "Sampling.stop_pattern"),
    ],
)
def test_meaningless_settings_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Sampling(**{"max_new_tokens": 1, **options})


def test_a_prompt_without_the_prefix(module: Any, model: LanguageModel) -> None:
    """Its own first token stands there: the prefix is nowhere in what the model reads."""
    sampling = Sampling(max_new_tokens=40)
    prompt = list(b"the cat")
    (found,) = model.generate_from([prompt], sampling, prefixed=False)
    window, made = list(prompt), []
    with torch.no_grad():
        while len(made) < len(found.ids):
            made.append(int(module(torch.tensor([window]))[0, -1].argmax()))
            if len(window) == CONTEXT:
                window = [prompt[0], *window[-(CONTEXT // 2 - 2) :]]
            window.append(made[-1])
    assert made == list(found.ids)
    assert found.ids
    assert "".join(model.stream_from(prompt, sampling, prefixed=False)) == found.text


def test_tokens_that_end_a_completion(model: LanguageModel) -> None:
    whole = model.generate(["a"], Sampling(max_new_tokens=9))[0]
    stop = whole.ids[4]
    sampling = Sampling(max_new_tokens=9, stop_ids=(stop,))
    (found,) = model.generate(["a"], sampling)
    assert found.ids == whole.ids[: whole.ids.index(stop)]
    assert found.finish == "eos"
    assert "".join(model.stream("a", sampling)) == found.text


@pytest.mark.parametrize(("prompt", "told"), [([257], "id 257"), ([-1], "id -1"), ([], "no token, and no")])
def test_ids_that_are_none_are_refused(prompt: list[int], told: str, model: LanguageModel) -> None:
    with pytest.raises(InvalidInput, match=told):
        model.generate_from([prompt], Sampling(max_new_tokens=1), prefixed=False)
