"""Multiple choice from a file of questions, under every normalisation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from modelfactory.evaluate.item_files import ItemFile, Row
from modelfactory.evaluate.shots import Shots, files_of, require_shots
from modelfactory.evaluate.task import Answers, ItemOutcome, Prepared, check_task
from modelfactory.spec import not_identity, require

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from modelfactory.generate import Encoder
    from modelfactory.generate.answers import Score
    from modelfactory.generate.encoding import EncodedPair
    from modelfactory.generate.language_model import LanguageModel

NORMALISATIONS = ("none", "characters", "bytes", "tokens", "pmi")
UNITS = {
    "none": "log-likelihood (nats)",
    "characters": "log-likelihood per character (nats/character)",
    "bytes": "log-likelihood per UTF-8 byte (nats/byte)",
    "tokens": "log-likelihood per token (nats/token)",
    "pmi": "log-likelihood less that after pmi_context (nats)",
}


class _Item(NamedTuple):
    row: Row
    choices: tuple[str, ...]
    gold: int
    pairs: tuple[EncodedPair, ...]
    bare: tuple[EncodedPair, ...]
    """The choices after `pmi_context`; empty unless PMI is asked for."""
    item_id: str


@dataclass(frozen=True, kw_only=True)
class MultipleChoice:
    """Pick the right answer among those of a question.

    The choice with the highest score is picked, of equals the first. Each is scored after the question, with
    `joint` between them; the boundary is that of lm-evaluation-harness (see `generate.encode_pairs`). Lengths
    are those of the choice without `joint`, as in its `acc_norm` (characters) and `acc_bytes`; tokens are
    those scored. PMI is log p(choice | question) - log p(choice | pmi_context) (Holtzman et al. 2021,
    arXiv:2104.08315, equation 2, there with a context of the domain). The accuracy under every normalisation
    that is computed is among the facts.
    """

    items: ItemFile
    normalisation: Literal["none", "characters", "bytes", "tokens", "pmi"]
    """What the log-likelihood of a choice is divided by (or compared with) before the best is picked."""
    n_shot: int = 0
    """Answered questions before each."""
    shots: ItemFile | None = None
    """A file whose first lines they are, for every item; None: other items, drawn for each."""
    seed: int = 0
    """Draws the shots of each item where there is no file of them."""
    query_field: str = "query"
    choices_field: str = "choices"
    gold_field: str = "gold"
    """Holds the number of the right choice, from 0."""
    joint: str = " "
    """Between a question and its answer."""
    separator: str = "\n\n"
    """Between a shot and what follows."""
    pmi_context: str = "Answer:"
    """What a choice follows where nothing is asked; used by PMI alone."""
    name: str = "multiple_choice"
    margin: float = not_identity(default=0.02)
    """Share of items below which a difference does not matter."""

    def __post_init__(self) -> None:
        """Check at declaration."""
        check_task(self)
        require(self.n_shot >= 0, place="MultipleChoice.n_shot", found=self.n_shot, wanted="at least 0")

    @property
    def item_files(self) -> dict[str, ItemFile]:
        """The files it reads in place of documents."""
        return files_of(self)

    @property
    def primary_metric(self) -> str:
        """Name of the metric."""
        return "accuracy"

    @property
    def unit(self) -> str:
        """Unit of the metric."""
        return "share"

    @property
    def higher_is_better(self) -> bool:
        """A better model picks the right choice more often."""
        return True

    def check_rows(self, name: str, rows: Sequence[Row]) -> None:
        """Raise SourceError, with file and line, for a row that is no question, or for too few shots."""
        for row in rows:
            self._read(row)
        require_shots(self, name, rows)

    def prepare(self, documents: Mapping[str, Sequence[Row]], tokenizer: Encoder) -> Prepared:
        """Encode every choice of every question after its shots."""
        from modelfactory.generate.encoding import encode_pairs

        rows = documents["items"]
        read = [self._read(row) for row in rows]
        shots = Shots(self, documents)
        contexts = [self.context_of(row, shots) for row in rows]
        asked = zip(contexts, read, strict=True)
        texts = [(context, self.joint + choice) for context, (choices, _) in asked for choice in choices]
        pairs = iter(encode_pairs(tokenizer, texts))
        bare = iter(encode_pairs(tokenizer, self._bare(read)))
        items = []
        for number, (row, (choices, gold)) in enumerate(zip(rows, read, strict=True)):
            both = (
                tuple(next(pairs) for _ in choices),
                tuple(next(bare) for _ in (choices if self.normalisation == "pmi" else ())),
            )
            items.append(_Item(row, choices, gold, *both, row.item_id(number)))
        return Prepared(items=tuple(items), skipped={})

    def answer(self, prepared: Prepared, model: LanguageModel) -> Answers:
        """Score every choice of every item."""
        scores = iter(model.score_pairs([pair for item in prepared.items for pair in item.pairs]))
        bare = iter(model.score_pairs([pair for item in prepared.items for pair in item.bare]))
        outcomes = [
            self._outcome(item, [next(scores) for _ in item.pairs], [next(bare) for _ in item.bare])
            for item in prepared.items
        ]
        known = [name for name in NORMALISATIONS if self.normalisation == "pmi" or name != "pmi"]
        n_items = len(outcomes)
        facts: dict[str, Any] = {
            "chance": sum(1 / len(item.choices) for item in prepared.items) / n_items,
            "score": UNITS[self.normalisation],
            "accuracy_by_normalisation": {
                name: sum(outcome.detail["right"][name] for outcome in outcomes) / n_items for name in known
            },
            "n_items_with_cut_context": sum(outcome.detail["n_tokens_cut"] > 0 for outcome in outcomes),
        }
        return Answers(outcomes=tuple(outcomes), facts=facts)

    def _read(self, row: Row) -> tuple[tuple[str, ...], int]:
        """Return the choices of a question, and which is right."""
        row.text(self.query_field)
        choices, gold = row.value(self.choices_field), row.value(self.gold_field)
        fine = isinstance(choices, list) and all(isinstance(each, str) and each for each in choices)
        if not fine or len(choices) < 2:
            raise row.fault(f"{self.choices_field} = {choices!r}", "a list of two texts at least, none empty")
        if type(gold) is not int or not 0 <= gold < len(choices):
            raise row.fault(
                f"{self.gold_field} = {gold!r}",
                f"the number of the right choice, from 0 to {len(choices) - 1}",
            )
        return tuple(choices), gold

    def context_of(self, row: Row, shots: Shots) -> str:
        """Return what stands before the choices of a question: its shots and the question."""
        before = [self._shown(shot) + self.separator for shot in shots.before(row)]
        return "".join(before) + row.text(self.query_field)

    def _shown(self, row: Row) -> str:
        choices, gold = self._read(row)
        return row.text(self.query_field) + self.joint + choices[gold]

    def _bare(self, read: Sequence[tuple[tuple[str, ...], int]]) -> list[tuple[str, str]]:
        if self.normalisation != "pmi":
            return []
        return [(self.pmi_context, self.joint + choice) for choices, _ in read for choice in choices]

    def _outcome(self, item: _Item, scores: Sequence[Score], bare: Sequence[Score]) -> ItemOutcome:
        by_name = normalised(item.choices, scores, bare)
        picked = {name: max(range(len(found)), key=found.__getitem__) for name, found in by_name.items()}
        right = {name: number == item.gold for name, number in picked.items()}
        detail: dict[str, Any] = {
            **item.row.where,
            "choices": item.choices,
            "answer": item.gold,
            "chosen": picked[self.normalisation],
            "right": right,
            "logprobs": [score.logprob for score in scores],
            "n_tokens": [score.n_tokens for score in scores],
            "n_tokens_cut": max(score.n_cut for score in scores),
        }
        if bare:
            detail["logprobs_without_query"] = [score.logprob for score in bare]
        # a model without finite numbers has no answer, whichever `max` would name
        sound = all(math.isfinite(value) for value in by_name[self.normalisation])
        value = float(right[self.normalisation]) if sound else math.nan
        return ItemOutcome(item.item_id, item.row.identity, value, 1.0, detail)


def normalised(
    choices: Sequence[str], scores: Sequence[Score], bare: Sequence[Score] = ()
) -> dict[str, list[float]]:
    """Return the score of each choice by normalisation; PMI where `bare` gives the choices alone."""
    logprobs = [score.logprob for score in scores]
    lengths = {
        "none": [1] * len(choices),
        "characters": [len(choice) for choice in choices],
        "bytes": [len(choice.encode("utf-8", "surrogatepass")) for choice in choices],
        "tokens": [score.n_tokens for score in scores],
    }
    found = {
        name: [logprob / n for logprob, n in zip(logprobs, of_it, strict=True)]
        for name, of_it in lengths.items()
    }
    if bare:
        found["pmi"] = [one - other.logprob for one, other in zip(logprobs, bare, strict=True)]
    return found
