"""Multiple choice: which line comes next in a held-out program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from modelfactory.data.dataset import Dataset
from modelfactory.evaluate.documents import Document, order, require_items
from modelfactory.evaluate.lines import Pool, is_telling, last_lines, shuffled
from modelfactory.evaluate.rounds import Found, candidates_of, in_rounds
from modelfactory.evaluate.task import Answers, ItemOutcome, Prepared, check_task, require_counts
from modelfactory.spec import not_identity, require

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from modelfactory.evaluate.python_source import PythonSource
    from modelfactory.generate import Encoder
    from modelfactory.generate.answers import Score
    from modelfactory.generate.encoding import EncodedPair
    from modelfactory.generate.language_model import LanguageModel

MIN_LINES_BEFORE = 3
"""Lines of context at least."""


class _Item(NamedTuple):
    item_id: str
    document_id: str
    path: str
    line: int
    choices: tuple[str, ...]
    answer: int
    pairs: tuple[EncodedPair, ...]


class _Question(NamedTuple):
    document: Document
    line: int
    context: str
    choices: tuple[str, ...]
    answer: int


@dataclass(frozen=True, kw_only=True)
class NextLine:
    """Pick the true next line of a held-out Python file among lines from elsewhere.

    A true line has 8 to 120 characters, is no comment and lies in no string of several lines. Distractors
    are such lines from the same documents, of like length (within 25 %, where there are enough), given the
    true line's indentation, all different. The choice with the highest log-likelihood per UTF-8 byte (line
    break included) is picked; of equals the first, and the true line's place is drawn. Chance is
    1 / n_choices. Items are spread over as many documents as there are.
    """

    dataset: Dataset
    n_items: int
    n_choices: int = 4
    seed: int
    """Draws the documents, lines and distractors."""
    context_bytes: int = 512
    """Whole lines before the true one, as many as fit; of a longer line its end."""
    name: str = "next_line"
    margin: float = not_identity(default=0.02)
    """Share of items below which a difference does not matter."""

    def __post_init__(self) -> None:
        """Check at declaration."""
        check_task(self)
        require_counts(self, n_items=self.n_items, context_bytes=self.context_bytes)
        require(self.n_choices >= 2, place="NextLine.n_choices", found=self.n_choices, wanted="at least 2")

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
        """A better model picks the true line more often."""
        return True

    def prepare(self, documents: Iterable[Document], tokenizer: Encoder) -> Prepared:
        """Make and encode the questions.

        Raises:
            SourceError: there are too few lines, or too few different ones to draw distractors from.
        """
        sampled = candidates_of(documents, self.n_items, f"{self.seed}", self._lines)
        pool = Pool(found.source.lines[n - 1].strip() for found in sampled.found for n in found.candidates)
        questions = self._questions(sampled.found, pool)
        require_items(
            len(questions),
            self.n_items,
            place=self.name,
            what="lines to ask about",
            n_documents=sampled.n_documents,
            skipped=sampled.skipped,
        )
        return Prepared(items=tuple(_encoded(questions, tokenizer)), skipped=sampled.skipped)

    def answer(self, prepared: Prepared, model: LanguageModel) -> Answers:
        """Score every choice of every item."""
        scores = iter(model.score_pairs([pair for item in prepared.items for pair in item.pairs]))
        outcomes = []
        n_cut = 0
        for item in prepared.items:
            of_item = [next(scores) for _ in item.choices]
            n_cut += any(score.n_cut for score in of_item)
            outcomes.append(_outcome(item, of_item))
        facts = {
            "chance": 1 / self.n_choices,
            "score": "log-likelihood per UTF-8 byte, line break included (nats/byte)",
            "n_items_with_cut_context": n_cut,
        }
        return Answers(outcomes=tuple(outcomes), facts=facts)

    def _lines(self, document: Document, source: PythonSource) -> list[int]:
        """Return the numbers of lines that can be asked about, in the order they are to be taken."""
        numbers = [
            n
            for n, line in enumerate(source.lines, start=1)
            if n > MIN_LINES_BEFORE and is_telling(line) and n not in source.inside_strings
        ]
        return sorted(numbers, key=lambda n: order(self.seed, document.document_id, n))

    def _questions(self, found: Sequence[Found], pool: Pool) -> list[_Question]:
        """Make `n_items` questions, or as many as there are."""
        questions: list[_Question] = []
        for each, line in in_rounds(found):
            if len(questions) == self.n_items:
                break
            true = each.source.lines[line - 1]
            key = order(self.seed, each.document.document_id, line)
            others = pool.like(true.strip(), self.n_choices - 1, key)
            if len(others) == self.n_choices - 1:
                choices, answer = shuffled(true, others, key)
                context = last_lines(each.source.lines[: line - 1], self.context_bytes)
                questions.append(_Question(each.document, line, context, choices, answer))
        return questions


def _encoded(questions: Sequence[_Question], tokenizer: Encoder) -> Iterator[_Item]:
    from modelfactory.generate.encoding import encode_pairs

    texts = [(question.context, choice) for question in questions for choice in question.choices]
    pairs = iter(encode_pairs(tokenizer, texts))
    for question in questions:
        document = question.document
        content = order(question.context, *question.choices)[:16]
        yield _Item(
            item_id=f"{document.document_id[:16]}-{question.line}-{content}",
            document_id=document.document_id,
            path=document.path,
            line=question.line,
            choices=question.choices,
            answer=question.answer,
            pairs=tuple(next(pairs) for _ in question.choices),
        )


def _outcome(item: _Item, scores: Sequence[Score]) -> ItemOutcome:
    per_byte = [
        score.logprob / len(choice.encode("utf-8"))
        for score, choice in zip(scores, item.choices, strict=True)
    ]
    chosen = max(range(len(per_byte)), key=per_byte.__getitem__)
    detail: dict[str, Any] = {
        "path": item.path,
        "line": item.line,
        "choices": item.choices,
        "answer": item.answer,
        "chosen": chosen,
        "nats_per_byte": per_byte,
        "n_tokens_cut": max(score.n_cut for score in scores),
    }
    right = float(chosen == item.answer)
    return ItemOutcome(item.item_id, item.document_id, right, 1.0, detail)
