"""Loss on what the assistant says in held-out conversations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from modelfactory.data.chats import holds_chats
from modelfactory.data.dataset import Dataset
from modelfactory.evaluate.documents import Document, require_items, sample
from modelfactory.evaluate.task import Answers, ItemOutcome, Prepared, check_task, require_counts
from modelfactory.generate.encoding import EncodedPair
from modelfactory.spec import not_identity, require

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from modelfactory.generate.answers import Score
    from modelfactory.generate.language_model import LanguageModel
    from modelfactory.tokens.chats import ChatEncoder


class _Conversation(NamedTuple):
    """What is asked of a conversation, in tokens."""

    document_id: str
    path: str
    pairs: tuple[EncodedPair, ...]
    """For each run of tokens that are learnt, all before it and the run."""


@dataclass(frozen=True, kw_only=True)
class AnswerLoss:
    """Nats per token of what the assistant says in held-out conversations: lower is better.

    The labels are those that training learns from: the same template, the same mask, the end of each turn
    included. Each is predicted from all of its conversation before it, and nothing else. An item is a
    conversation, its value the mean over its labels and its weight their number, so the metric is the loss of
    training with `document_masks`. It compares models with one tokenizer and one template.
    """

    dataset: Dataset
    max_documents: int
    """Conversations asked at most: those that come first in an order by hash."""
    name: str = "answer_loss"
    margin: float = not_identity(default=0.01)
    """Nats per token below which a difference does not matter."""

    def __post_init__(self) -> None:
        """Check at declaration."""
        check_task(self)
        require_counts(self, max_documents=self.max_documents)
        require(
            holds_chats(self.dataset),
            place="AnswerLoss.dataset",
            found=[type(source).__name__ for source in self.dataset.sources],
            wanted="conversations: a Dataset of Chats",
            remedy="BitsPerByte is for texts.",
        )

    @property
    def primary_metric(self) -> str:
        """Name of the metric."""
        return "answer_loss"

    @property
    def unit(self) -> str:
        """Unit of the metric."""
        return "nats/token"

    @property
    def higher_is_better(self) -> bool:
        """A better model is less surprised."""
        return False

    @property
    def reads_chats(self) -> bool:
        """Its documents are conversations, so `prepare` is given what encodes them."""
        return True

    def prepare(self, documents: Iterable[Document], tokenizer: ChatEncoder) -> Prepared:
        """Sample and encode conversations.

        Raises:
            SourceError: no conversation has a label, or one cannot be rendered.
        """
        found = sample(documents, self.max_documents, self.name)
        texts, paths = [document.text for document in found], [document.path for document in found]
        encoded = tokenizer.encode(texts, paths)
        all_items = [
            _Conversation(document.document_id, document.path, _pairs(*told))
            for document, told in zip(found, encoded, strict=True)
        ]
        items = tuple(item for item in all_items if item.pairs)
        skipped = {"without an answer": len(found) - len(items)} if len(items) < len(found) else {}
        require_items(
            len(items), 1, place=self.name, what="conversations", n_documents=len(found), skipped=skipped
        )
        return Prepared(items=items, skipped=skipped)

    def answer(self, prepared: Prepared, model: LanguageModel) -> Answers:
        """Score every answer."""
        pairs = [pair for item in prepared.items for pair in item.pairs]
        scores = iter(model.score_pairs(pairs, prefixed=False))
        outcomes = [_outcome(item, [next(scores) for _ in item.pairs]) for item in prepared.items]
        facts: dict[str, Any] = {
            "n_labels": sum(int(outcome.weight) for outcome in outcomes),
            "n_cut": sum(outcome.detail["n_cut"] > 0 for outcome in outcomes),
        }
        return Answers(outcomes=tuple(outcomes), facts=facts)


def _pairs(ids: NDArray[np.int32], learnt: NDArray[np.bool_]) -> tuple[EncodedPair, ...]:
    """Return each run of learnt tokens with what is before it; nothing predicts the first token of all."""
    counted = learnt.copy()
    counted[:1] = False
    bounds = np.flatnonzero(np.diff(np.concatenate([[False], counted, [False]]).astype(np.int8)))
    line = tuple(ids.tolist())
    runs = zip(bounds[::2].tolist(), bounds[1::2].tolist(), strict=True)
    return tuple(EncodedPair(line[:first], line[first:last]) for first, last in runs)


def _outcome(item: _Conversation, scores: Sequence[Score]) -> ItemOutcome:
    nats, n_labels = -sum(score.logprob for score in scores), sum(score.n_tokens for score in scores)
    return ItemOutcome(
        item_id=item.document_id[:16],
        cluster=item.document_id,
        value=nats / n_labels,
        weight=float(n_labels),
        detail={
            "path": item.path,
            "nats": nats,
            "n_labels": n_labels,
            "n_cut": sum(score.n_cut for score in scores),
        },
    )
