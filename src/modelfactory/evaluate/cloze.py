"""The word that ends a passage, as LAMBADA asks for it."""

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
    continuation: str
    pair: EncodedPair
    item_id: str


@dataclass(frozen=True, kw_only=True)
class Cloze:
    """Whether a model would write, greedily, the text that ends a passage.

    The question of LAMBADA (Paperno et al. 2016, arXiv:1606.06031). An item is right if each token of the
    ending is the most probable one after all before it, as in lm-evaluation-harness. Its log-likelihood is
    kept as well; `perplexity` among the facts is exp(-mean log-likelihood of an ending), that of its
    `lambada_openai`.
    """

    items: ItemFile
    context_field: str = "context"
    continuation_field: str = "continuation"
    joint: str = " "
    """Between the passage and its ending."""
    name: str = "cloze"
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
        """A better model finds the ending more often."""
        return True

    def check_rows(self, name: str, rows: Sequence[Row]) -> None:
        """Raise SourceError, with file and line, for a row without passage or ending."""
        del name  # it has one file
        for row in rows:
            self.texts_of(row)

    def prepare(self, documents: Mapping[str, Sequence[Row]], tokenizer: Encoder) -> Prepared:
        """Encode every passage and its ending."""
        from modelfactory.generate.encoding import encode_pairs

        rows = documents["items"]
        pairs = encode_pairs(tokenizer, [self.texts_of(row) for row in rows])
        items = (
            _Item(row, self.texts_of(row)[1], pair, row.item_id(number))
            for number, (row, pair) in enumerate(zip(rows, pairs, strict=True))
        )
        return Prepared(items=tuple(items), skipped={})

    def answer(self, prepared: Prepared, model: LanguageModel) -> Answers:
        """Score every ending."""
        scores = model.score_pairs([item.pair for item in prepared.items])
        outcomes = tuple(_outcome(*each) for each in zip(prepared.items, scores, strict=True))
        mean = sum(score.logprob for score in scores) / len(scores)
        facts: dict[str, Any] = {
            "mean_logprob": mean,
            "perplexity": math.exp(min(-mean, 700.0)),
            "n_items_with_cut_context": sum(score.n_cut > 0 for score in scores),
        }
        return Answers(outcomes=outcomes, facts=facts)

    def texts_of(self, row: Row) -> tuple[str, str]:
        """Return a passage and its ending, with what joins them."""
        return row.text(self.context_field), self.joint + row.text(self.continuation_field)


def _outcome(item: _Item, score: Score) -> ItemOutcome:
    detail: dict[str, Any] = {
        **item.row.where,
        "continuation": item.continuation,
        "logprob": score.logprob,
        "n_tokens": score.n_tokens,
        "n_tokens_cut": score.n_cut,
    }
    value = float(score.is_greedy) if math.isfinite(score.logprob) else math.nan
    return ItemOutcome(item.item_id, item.row.identity, value, 1.0, detail)
