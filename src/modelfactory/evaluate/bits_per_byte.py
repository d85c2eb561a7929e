"""Bits per byte of held-out documents."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from modelfactory.data.dataset import Dataset
from modelfactory.evaluate.documents import Document, require_items, sample
from modelfactory.evaluate.task import Answers, ItemOutcome, Prepared, check_task, require_counts
from modelfactory.spec import not_identity

if TYPE_CHECKING:
    from collections.abc import Iterable

    from modelfactory.generate import Encoder
    from modelfactory.generate.answers import RollingScore
    from modelfactory.generate.language_model import LanguageModel


class _Text(NamedTuple):
    """A document, cut and in tokens."""

    document_id: str
    path: str
    n_bytes: int
    ids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class BitsPerByte:
    """How many bits a model needs for a byte of held-out text: lower is better, whatever the tokenizer.

    Every byte of a document is counted once, in rolling windows; the first token is predicted from the token
    that ends documents, which itself is not counted. An item is a document, its value bits per byte and its
    weight bytes, so the metric is the sum of bits over the sum of bytes.
    """

    dataset: Dataset
    max_documents: int
    """Documents asked at most: those that come first in an order by hash."""
    max_bytes: int
    """Bytes read of each document at most, cut before a character that would not fit whole."""
    min_context: int = 1
    """Tokens before each token at least, where the document has them; see `generate.rolling_windows`."""
    name: str = "bits_per_byte"
    margin: float = not_identity(default=0.01)
    """Bits per byte below which a difference does not matter."""

    def __post_init__(self) -> None:
        """Check at declaration."""
        check_task(self)
        require_counts(
            self, max_documents=self.max_documents, max_bytes=self.max_bytes, min_context=self.min_context
        )

    @property
    def primary_metric(self) -> str:
        """Name of the metric."""
        return "bits_per_byte"

    @property
    def unit(self) -> str:
        """Unit of the metric."""
        return "bits/byte"

    @property
    def higher_is_better(self) -> bool:
        """A better model needs fewer bits."""
        return False

    def prepare(self, documents: Iterable[Document], tokenizer: Encoder) -> Prepared:
        """Sample, cut and encode documents.

        Raises:
            SourceError: no document has any text.
        """
        found = sample(documents, self.max_documents, self.name)
        cut = [(document, first_bytes(document.text, self.max_bytes)) for document in found]
        kept = [(document, text) for document, text in cut if text]
        skipped = {"without text": len(cut) - len(kept)} if len(kept) < len(cut) else {}
        require_items(len(kept), 1, place=self.name, what="texts", n_documents=len(found), skipped=skipped)
        encoded = tokenizer.encode_batch([text for _, text in kept])
        items = tuple(
            _Text(document.document_id, document.path, len(text.encode("utf-8")), tuple(ids))
            for (document, text), ids in zip(kept, encoded, strict=True)
        )
        return Prepared(items=items, skipped=skipped)

    def answer(self, prepared: Prepared, model: LanguageModel) -> Answers:
        """Score each document as a whole."""
        scores = model.score_texts([item.ids for item in prepared.items], min_context=self.min_context)
        outcomes = [_outcome(item, score) for item, score in zip(prepared.items, scores, strict=True)]
        n_bytes = sum(item.n_bytes for item in prepared.items)
        n_tokens = sum(score.n_tokens for score in scores)
        return Answers(outcomes=tuple(outcomes), facts={"n_bytes": n_bytes, "n_tokens": n_tokens})


def _outcome(item: _Text, score: RollingScore) -> ItemOutcome:
    bits = -score.logprob / math.log(2)
    return ItemOutcome(
        item_id=f"{item.document_id[:16]}-{item.n_bytes}",
        cluster=item.document_id,
        value=bits / item.n_bytes,
        weight=float(item.n_bytes),
        detail={"path": item.path, "bits": bits, "n_bytes": item.n_bytes, "n_tokens": score.n_tokens},
    )


def first_bytes(text: str, n_bytes: int) -> str:
    """Return the longest beginning of `text` that takes `n_bytes` of UTF-8 at most."""
    # A character takes a byte at least, so the rest of a very large document need not be encoded.
    return text[:n_bytes].encode("utf-8")[:n_bytes].decode("utf-8", errors="ignore")
