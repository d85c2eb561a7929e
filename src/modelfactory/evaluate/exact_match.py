"""Answers that a model writes out, compared as text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from modelfactory.evaluate.item_files import ItemFile, Row
from modelfactory.evaluate.shots import Shots, files_of, require_shots
from modelfactory.evaluate.task import Answers, ItemOutcome, Prepared, check_task, require_counts
from modelfactory.generate.sampling import Sampling
from modelfactory.spec import not_identity, require

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from modelfactory.generate import Encoder
    from modelfactory.generate.answers import Completion
    from modelfactory.generate.language_model import LanguageModel


class _Item(NamedTuple):
    row: Row
    ids: tuple[int, ...]
    gold: str
    item_id: str


@dataclass(frozen=True, kw_only=True)
class ExactMatch:
    """Whether the answer in what a model writes, greedily, is that of the file, character by character.

    The question of GSM8K (Cobbe et al. 2021, arXiv:2110.14168); asked in the manner of
    lm-evaluation-harness's `gsm8k` with `strict-match`. The answer is what `pattern` finds, in the
    completion as in the answer of the file; a completion without a match is wrong.
    """

    items: ItemFile
    max_new_tokens: int
    """A completion that reaches it is judged as it is, and counted."""
    n_shot: int = 0
    """Answered questions before each."""
    shots: ItemFile | None = None
    """A file whose first lines they are, for every item; None: other items, drawn for each."""
    seed: int = 0
    """Draws the shots of each item where there is no file of them."""
    question_field: str = "question"
    answer_field: str = "answer"
    before: str = "Question: "
    """Before each question."""
    between: str = "\nAnswer:"
    """Between a question and its answer."""
    joint: str = " "
    """Before the answer of a shot."""
    separator: str = "\n\n"
    """Between a shot and what follows."""
    pattern: str = r"#### (-?[0-9.,]+)"
    """Regular expression with one group, which is the answer."""
    take: Literal["first", "last"] = "first"
    """Which of its matches in a completion, and in the answer of the file, counts."""
    ignored: str = ",$"
    """Characters left out of both answers before they are compared, as is a full stop at the end."""
    stops: tuple[str, ...] = ("Question:",)
    """A completion ends before the first of these strings."""
    name: str = "exact_match"
    margin: float = not_identity(default=0.02)
    """Share of items below which a difference does not matter."""

    def __post_init__(self) -> None:
        """Check at declaration."""
        check_task(self)
        require_counts(self, max_new_tokens=self.max_new_tokens)
        require(self.n_shot >= 0, place="ExactMatch.n_shot", found=self.n_shot, wanted="at least 0")
        require("" not in self.stops, place="ExactMatch.stops", found=self.stops, wanted="no empty string")
        require(
            _n_groups(self.pattern) == 1,
            place="ExactMatch.pattern",
            found=self.pattern,
            wanted="a regular expression with one group",
        )

    @property
    def item_files(self) -> dict[str, ItemFile]:
        """The files it reads in place of documents."""
        return files_of(self)

    @property
    def primary_metric(self) -> str:
        """Name of the metric."""
        return "exact_match"

    @property
    def unit(self) -> str:
        """Unit of the metric."""
        return "share"

    @property
    def higher_is_better(self) -> bool:
        """A better model answers more questions."""
        return True

    def check_rows(self, name: str, rows: Sequence[Row]) -> None:
        """Raise SourceError, with file and line, for a row without a question or an answer to find."""
        for row in rows:
            row.text(self.question_field)
            self._gold(row)
        require_shots(self, name, rows)

    def prepare(self, documents: Mapping[str, Sequence[Row]], tokenizer: Encoder) -> Prepared:
        """Encode every question after its shots."""
        rows, shots = documents["items"], Shots(self, documents)
        prompts = ["".join([*map(self._shown, shots.before(row)), self._asked(row)]) for row in rows]
        encoded = zip(rows, tokenizer.encode_batch(prompts), strict=True)
        items = (
            _Item(row, tuple(ids), self._gold(row), row.item_id(number))
            for number, (row, ids) in enumerate(encoded)
        )
        return Prepared(items=tuple(items), skipped={})

    def answer(self, prepared: Prepared, model: LanguageModel) -> Answers:
        """Have every question answered."""
        sampling = Sampling(max_new_tokens=self.max_new_tokens, stops=self.stops)
        completions = model.generate_from([item.ids for item in prepared.items], sampling)
        outcomes = tuple(self._outcome(*each) for each in zip(prepared.items, completions, strict=True))
        facts: dict[str, Any] = {
            "n_without_answer": sum(outcome.detail["found"] is None for outcome in outcomes),
            "n_ended_by_length": sum(each.finish == "length" for each in completions),
            "n_items_with_cut_context": sum(each.n_cut > 0 for each in completions),
        }
        return Answers(outcomes=outcomes, facts=facts)

    def found(self, text: str) -> str | None:
        """Return the answer in a text, without what is ignored; None: there is none."""
        matches = re.findall(self.pattern, text)
        if not matches:
            return None
        match = str(matches[0 if self.take == "first" else -1])
        return match.translate({ord(each): None for each in self.ignored}).removesuffix(".").strip()

    def _gold(self, row: Row) -> str:
        text = row.text(self.answer_field)
        found = self.found(text)
        if not found:
            raise row.fault(
                f"{self.answer_field} = {text[-80:]!r}", f"an answer that matches {self.pattern!r}"
            )
        return found

    def _asked(self, row: Row) -> str:
        return self.before + row.text(self.question_field) + self.between

    def _shown(self, row: Row) -> str:
        return self._asked(row) + self.joint + row.text(self.answer_field) + self.separator

    def _outcome(self, item: _Item, completion: Completion) -> ItemOutcome:
        found = self.found(completion.text)
        detail: dict[str, Any] = {
            **item.row.where,
            "answer": item.gold,
            "found": found,
            "completion": completion.text,
            "finish": completion.finish,
            "n_tokens_cut": completion.n_cut,
        }
        return ItemOutcome(item.item_id, item.row.identity, float(found == item.gold), 1.0, detail)


def _n_groups(pattern: str) -> int:
    try:
        return re.compile(pattern).groups
    except re.error:
        return -1
