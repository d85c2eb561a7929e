"""Which of two sentences that differ in little is likelier, as BLiMP asks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from modelfactory.evaluate.item_files import ItemFile, Row
from modelfactory.evaluate.task import Answers, ItemOutcome, Prepared, check_task
from modelfactory.spec import not_identity

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from modelfactory.generate import Encoder
    from modelfactory.generate.answers import Score
    from modelfactory.generate.encoding import EncodedPair
    from modelfactory.generate.language_model import LanguageModel


class _Item(NamedTuple):
    row: Row
    pairs: tuple[EncodedPair, EncodedPair]
    item_id: str


@dataclass(frozen=True, kw_only=True)
class MinimalPairs:
    """Whether the right sentence of a pair is likelier than the wrong one.

    The question of BLiMP (Warstadt et al. 2020, arXiv:1912.00582). Compared are the log-likelihoods of the
    whole sentences, first tokens included, not divided by any length. Two that are
    equally likely count as wrong (lm-evaluation-harness: as right); BLiMP has two pairs of equal sentences,
    in `principle_A_case_2` and `passive_1`. Chance is one half.
    """

    items: ItemFile
    good_field: str = "sentence_good"
    bad_field: str = "sentence_bad"
    name: str = "minimal_pairs"
    margin: float = not_identity(default=0.02)
    """Share of items below which a difference does not matter."""

    def __post_init__(self) -> None:
        """Check at declaration."""
        check_task(self)

    @property
    def item_files(self) -> dict[str, ItemFile]:
        """The files it reads in place of documents."""
        return {"items": self.items}

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
        """A better model prefers the right sentence more often."""
        return True

    def check_rows(self, name: str, rows: Sequence[Row]) -> None:
        """Raise SourceError, with file and line, for a row that is no pair of two sentences."""
        del name  # it has one file
        for row in rows:
            self._texts(row)

    def prepare(self, documents: Mapping[str, Sequence[Row]], tokenizer: Encoder) -> Prepared:
        """Encode both sentences of every pair."""
        from modelfactory.generate.encoding import encode_pairs

        rows = documents["items"]
        pairs = encode_pairs(tokenizer, [("", text) for row in rows for text in self._texts(row)])
        both = zip(pairs[::2], pairs[1::2], strict=True)
        items = (
            _Item(row, each, row.item_id(number))
            for number, (row, each) in enumerate(zip(rows, both, strict=True))
        )
        return Prepared(items=tuple(items), skipped={})

    def answer(self, prepared: Prepared, model: LanguageModel) -> Answers:
        """Score both sentences of every pair."""
        scores = model.score_pairs([pair for item in prepared.items for pair in item.pairs])
        found = zip(prepared.items, scores[::2], scores[1::2], strict=True)
        return Answers(outcomes=tuple(_outcome(*each) for each in found), facts={"chance": 0.5})

    def _texts(self, row: Row) -> tuple[str, str]:
        return row.text(self.good_field), row.text(self.bad_field)


def _outcome(item: _Item, good: Score, bad: Score) -> ItemOutcome:
    detail: dict[str, Any] = {
        **item.row.where,
        "logprob_good": good.logprob,
        "logprob_bad": bad.logprob,
        "n_tokens": [good.n_tokens, bad.n_tokens],
    }
    sound = math.isfinite(good.logprob) and math.isfinite(bad.logprob)
    value = float(good.logprob > bad.logprob) if sound else math.nan
    return ItemOutcome(item.item_id, item.row.identity, value, 1.0, detail)
