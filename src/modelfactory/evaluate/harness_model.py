"""The three questions of lm-evaluation-harness, answered by a `generate.LanguageModel`. Imports lm-eval."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lm_eval.api.model import LM

from modelfactory.errors import InvalidInput, closest
from modelfactory.generate.sampling import Sampling

if TYPE_CHECKING:
    from collections.abc import Sequence

    from modelfactory.generate.language_model import LanguageModel

MAX_GEN_TOKS = 256
"""Tokens of a completion where a task does not say: the default of lm-eval's Hugging Face backend."""
KNOWN = ("until", "max_gen_toks", "do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty")


class HarnessModel(LM):  # type: ignore[misc]  # lm-eval has no types
    """What lm-eval's tasks ask; requests are its `Instance`, whose `args` are text."""

    def __init__(self, model: LanguageModel) -> None:
        """Borrow `model`; one process asks it."""
        super().__init__()
        self.model = model
        self.n_cut = 0
        """Requests whose context lost tokens on its left."""

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """Return (nats, whether greedy) of each continuation; an empty one has 0 and is greedy."""
        pairs = [request.args for request in requests]
        scores = iter(self.model.loglikelihood([pair for pair in pairs if pair[1]]))
        found = []
        for _, continuation in pairs:
            if not continuation:
                found.append((0.0, True))
                continue
            score = next(scores)
            self.n_cut += score.n_cut > 0
            found.append((score.logprob, score.is_greedy))
        return found

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """Return the nats of each text, every token counted once."""
        scores = self.model.loglikelihood_rolling([request.args[0] for request in requests])
        return [score.logprob for score in scores]

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Return a completion of each context: requests of equal settings together, in their order."""
        by_sampling: dict[Sampling, list[int]] = {}
        for number, request in enumerate(requests):
            by_sampling.setdefault(sampling_of(request.args[1]), []).append(number)
        found: dict[int, str] = {}
        for sampling, numbers in by_sampling.items():
            completions = self.model.generate([requests[number].args[0] for number in numbers], sampling)
            self.n_cut += sum(completion.n_cut > 0 for completion in completions)
            found |= {
                number: completion.text for number, completion in zip(numbers, completions, strict=True)
            }
        return [found[number] for number in range(len(requests))]


def sampling_of(settings: dict[str, Any]) -> Sampling:
    """Return the settings of a generation task (`generation_kwargs`).

    A completion ends before the first of `until`, at the end-of-text token of the tokenizer, or after
    `max_gen_toks`. As in lm-eval, nothing is drawn without `do_sample`.

    Raises:
        InvalidInput: a setting that this engine does not have.
    """
    for name, value in settings.items():
        if name not in KNOWN:
            raise InvalidInput(
                place=f"generation_kwargs.{name}",
                found=repr(value),
                wanted=f"one of {', '.join(KNOWN)}",
                remedy=closest(name, KNOWN) or "Leave it out of the task.",
            )
    until = settings.get("until") or []
    stops = (until,) if isinstance(until, str) else tuple(until)
    temperature = float(settings.get("temperature", 1.0 if settings.get("do_sample") else 0.0))
    drawn = temperature > 0 and settings.get("do_sample", True)
    names = ("top_k", "top_p", "min_p") if drawn else ()
    chosen: dict[str, Any] = {name: settings[name] for name in names if name in settings}
    if "repetition_penalty" in settings:
        chosen["repetition_penalty"] = float(settings["repetition_penalty"])
    return Sampling(
        max_new_tokens=int(settings.get("max_gen_toks", MAX_GEN_TOKS)),
        temperature=temperature if drawn else 0.0,
        stops=tuple(stop for stop in stops if stop),
        **chosen,
    )
