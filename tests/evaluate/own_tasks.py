"""Tasks of a user's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from modelfactory.evaluate import Answers, Prepared


@dataclass(frozen=True, kw_only=True)
class AboutNothing:
    """Has neither documents nor files."""

    name: str = "nothing"
    primary_metric: str = "accuracy"
    unit: str = "share"
    higher_is_better: bool = True
    margin: float = 0.0

    def prepare(self, documents: Any, tokenizer: Any) -> Prepared:
        return Prepared(items=(), skipped={})

    def answer(self, prepared: Prepared, model: Any) -> Answers:
        return Answers(outcomes=())
