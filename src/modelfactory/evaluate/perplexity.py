"""Perplexity of texts of a file, document by document."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from modelfactory.evaluate.item_files import ItemFile, Row
from modelfactory.evaluate.task import Answers, ItemOutcome, Prepared, check_task, require_counts
from modelfactory.spec import not_identity, require

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from modelfactory.generate import Encoder
    from modelfactory.generate.answers import RollingScore
    from modelfactory.generate.language_model import LanguageModel

Per = Literal["word", "byte", "token"]


class _Text(NamedTuple):
    row: Row
    sizes: Mapping[str, int]
    """Words, bytes and tokens."""
    ids: tuple[int, ...]
    item_id: str


@dataclass(frozen=True, kw_only=True)
class Perplexity:
    """How unlikely a model finds texts: lower is better.

    Every token of a text, so every byte, is scored once, in rolling windows. An item is a text; its value is
    nats per word, byte or token, its weight how many there are, so the metric is the logarithm of the
    perplexity of the whole, which among the facts is `word_perplexity`, `byte_perplexity` or
    `token_perplexity`: those of lm-evaluation-harness, which counts words as it does, by white space. Words
    and bytes compare models with different tokenizers; tokens do not.
    """

    items: ItemFile
    text_field: str = "text"
    per: Per = "word"
    min_context: int = 1
    """Tokens before each token at least, where the text has them; see `generate.rolling_windows`."""
    name: str = "perplexity"
    margin: float = not_identity(default=0.01)
    """Nats below which a difference does not matter."""

    def __post_init__(self) -> None:
        """Check at declaration."""
        check_task(self)
        require_counts(self, min_context=self.min_context)
        known = get_args(Per)
        require(
            self.per in known, place="Perplexity.per", found=self.per, wanted=f"one of {', '.join(known)}"
        )

    @property
    def item_files(self) -> dict[str, ItemFile]:
        """The file it reads in place of documents."""
        return {"items": self.items}

    @property
    def primary_metric(self) -> str:
        """Name of the metric."""
        return f"log_{self.per}_perplexity"

    @property
    def unit(self) -> str:
        """Unit of the metric."""
        return f"nats/{self.per}"

    @property
    def higher_is_better(self) -> bool:
        """A better model finds texts likelier."""
        return False

    def check_rows(self, name: str, rows: Sequence[Row]) -> None:
        """Raise SourceError, with file and line, for a row without text."""
        del name  # it has one file
        for row in rows:
            row.text(self.text_field)

    def prepare(self, documents: Mapping[str, Sequence[Row]], tokenizer: Encoder) -> Prepared:
        """Encode every text as a whole."""
        rows = documents["items"]
        texts = [row.text(self.text_field) for row in rows]
        encoded = zip(rows, texts, tokenizer.encode_batch(texts), strict=True)
        items = tuple(
            _Text(row, _sizes(text, len(ids)), tuple(ids), row.item_id(number))
            for number, (row, text, ids) in enumerate(encoded)
        )
        return Prepared(items=items, skipped={})

    def answer(self, prepared: Prepared, model: LanguageModel) -> Answers:
        """Score each text as a whole."""
        items: tuple[_Text, ...] = prepared.items
        scores = model.score_texts([item.ids for item in items], min_context=self.min_context)
        outcomes = tuple(self._outcome(*each) for each in zip(items, scores, strict=True))
        nats = -sum(score.logprob for score in scores)
        sizes = {per: sum(item.sizes[per] for item in items) for per in get_args(Per)}
        facts: dict[str, Any] = {f"n_{per}s": n for per, n in sizes.items()}
        facts |= {f"{per}_perplexity": _exp(nats / n) for per, n in sizes.items()}
        facts["bits_per_byte"] = nats / sizes["byte"] / math.log(2)
        return Answers(outcomes=outcomes, facts=facts)

    def _outcome(self, item: _Text, score: RollingScore) -> ItemOutcome:
        nats, n = -score.logprob, item.sizes[self.per]
        detail: dict[str, Any] = {**item.row.where, "nats": nats}
        detail |= {f"n_{per}s": item.sizes[per] for per in get_args(Per)}
        detail["perplexity"] = _exp(nats / n)
        return ItemOutcome(item.item_id, item.row.identity, nats / n, float(n), detail)


def _sizes(text: str, n_tokens: int) -> dict[str, int]:
    n_words = len(re.split(r"\s+", text))  # white space at an end makes an empty word, as in lm-eval
    return {"word": n_words, "byte": len(text.encode("utf-8", "surrogatepass")), "token": n_tokens}


def _exp(value: float) -> float:
    """Return e to a power, or the largest that is still a number."""
    return math.exp(min(value, 700.0))
