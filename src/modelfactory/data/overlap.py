"""What texts of an evaluation stand in training documents: overlap of n-grams of words.

After Brown et al. (2020), arXiv 2005.14165, appendix C: texts are compared as lower-case words without
punctuation, and a text is contaminated if one of its 13-grams occurs in training. We differ in three ways:
their n is the 5th percentile of the length of a task's examples, from 8 to 13, ours is given; they ignore
n-grams that occur in more than 10 training documents, we ignore none, so we find more; a text shorter than n
words is compared as a whole, and one without words is never contaminated.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

from modelfactory.data.reading import read_documents
from modelfactory.spec import check_types, require

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

N_WORDS = 13
"""Length of the n-grams, as in Brown et al. (2020)."""
WORD = re.compile(r"[^\W_]+")
"""Letters and digits of any script; in scripts without spaces a run of letters is one word."""


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """How many texts of one evaluation stand in training documents."""

    n_texts: int
    """Looked for, each once."""
    contaminated: tuple[str, ...]
    """Ids of those of which an n-gram was found, in order."""
    n_words: int = N_WORDS
    """Length of the n-grams."""

    def __post_init__(self) -> None:
        """Check types and range."""
        check_types(self)
        require(
            0 <= len(self.contaminated) <= self.n_texts,
            place="Overlap.contaminated",
            found=len(self.contaminated),
            wanted=f"at most {self.n_texts}, the texts looked for",
        )

    @property
    def share(self) -> float:
        """Return the share of texts that are contaminated; 0 of none."""
        return len(self.contaminated) / self.n_texts if self.n_texts else 0.0


def find_overlap(texts: Mapping[str, str], training: Iterable[str], *, n_words: int = N_WORDS) -> Overlap:
    """Return which texts share an n-gram of words with a training document.

    Args:
        texts: id -> text of an evaluation; held in memory as hashes of 16 bytes, one for each n-gram.
        training: training documents; read once, one at a time.
        n_words: length of the n-grams, at least 1.

    Raises:
        SpecError: `n_words` below 1.
    """
    require(n_words >= 1, place="find_overlap.n_words", found=n_words, wanted="at least 1")
    wanted = _index(texts, n_words)
    lengths = sorted({length for length, _ in wanted})
    found: set[str] = set()
    for text in training:
        words = WORD.findall(text.lower())
        for length in lengths:
            for gram in _grams(words, length):
                found.update(wanted.get((length, gram), ()))
    return Overlap(n_texts=len(texts), contaminated=tuple(sorted(found)), n_words=n_words)


def stage_texts(documents_dir: Path, lake: Path) -> Iterator[tuple[str, str]]:
    """Yield id and text of the documents of a documents stage."""
    for batch in read_documents(documents_dir, lake, ["document_id", "text"]):
        yield from zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)


def _index(texts: Mapping[str, str], n_words: int) -> dict[tuple[int, bytes], list[str]]:
    """Return (length, hash of an n-gram) -> ids of the texts that have it."""
    index: dict[tuple[int, bytes], list[str]] = {}
    for name, text in texts.items():
        words = WORD.findall(text.lower())
        length = min(len(words), n_words)
        for gram in set(_grams(words, length)) if length else ():
            index.setdefault((length, gram), []).append(name)
    return index


def _grams(words: Iterable[str], length: int) -> Iterator[bytes]:
    window: deque[str] = deque(maxlen=length)
    for word in words:
        window.append(word)
        if len(window) == length:
            yield blake2b(" ".join(window).encode("utf-8", "surrogatepass"), digest_size=16).digest()
