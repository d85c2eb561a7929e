"""Labels cut to the room there is, so that stages can still be told apart."""

from __future__ import annotations

import re
from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

TAIL_LENGTH = 15
"""Characters kept of the end, where there is room: it has the seed and the step."""
_WORD = re.compile(r"[^ ,;/_]*[ ,;/_]*")


def told_apart(labels: Iterable[str], most: int) -> dict[str, str]:
    """Return each label with at most `most` characters, no two alike; `most` is 24 or more.

    What does not fit loses its middle. Where that makes labels alike, those that do not fit lose of the words
    that they have in common, longest run first. What is alike even then is numbered.
    """
    whole = list(dict.fromkeys(labels))
    shown = {label: shortened(label, most) for label in whole}
    if len(set(shown.values())) < len(shown):
        shown |= _without_common([label for label in whole if len(label) > most], most)
    times = Counter(shown.values())
    taken: Counter[str] = Counter()
    for label, text in shown.items():
        if times[text] > 1:
            base = shortened(text, most - len(" (999)"))
            taken[base] += 1
            shown[label] = f"{base} ({taken[base]})"
    return shown


def shortened(text: str, most: int) -> str:
    """Return text cut in its middle: the end tells stages apart."""
    if len(text) <= most:
        return text
    return f"{text[: most - 1 - TAIL_LENGTH]}…{text[-TAIL_LENGTH:]}"


def wrapped(text: str, most: int) -> tuple[str, ...]:
    """Return text in one or two lines of at most `most` characters each; it has at most twice as many."""
    if len(text) <= most:
        return (text,)
    least = len(text) - most - 1  # of the first line, so that the rest fits
    at = text.rfind(" ", max(least, 1), most + 1)
    if at > 0:
        return text[:at], text[at + 1 :]
    cut = text.rfind("…", max(least, 1), most) + 1 or most
    return text[:cut], text[cut:]


def _without_common(labels: Sequence[str], most: int) -> dict[str, str]:
    """Return labels without words that all of as many words have in the same place."""
    by_length: dict[int, dict[str, list[str]]] = {}
    for label in labels:
        words = _WORD.findall(label)
        by_length.setdefault(len(words), {})[label] = words
    return {
        label: shortened(_cut(words, _common(list(alike.values())), most), most)
        for alike in by_length.values()
        for label, words in alike.items()
    }


def _common(labels: Sequence[list[str]]) -> list[bool]:
    return [len(set(words)) == 1 for words in zip(*labels, strict=True)]


def _cut(words: list[str], is_common: list[bool], most: int) -> str:
    """Return the words, runs of common ones replaced by an ellipsis until they fit."""
    pairs = zip(words, is_common, strict=True)
    runs = [
        ("".join(word for word, _ in run), common) for common, run in groupby(pairs, lambda pair: pair[1])
    ]
    texts = [text for text, _ in runs]
    droppable = sorted((n for n, (text, common) in enumerate(runs) if common), key=lambda n: -len(texts[n]))
    for n in droppable:
        over = len("".join(texts)) - most
        if over > 0:
            texts[n] = _hollow(texts[n], len(texts[n]) - over)
    return "".join(texts)


def _hollow(text: str, most: int) -> str:
    """Return as much of the two ends as there is room for, at least the ellipsis."""
    kept = max(most - 1, 0)
    return f"{text[: (kept + 1) // 2]}…{text[len(text) - kept // 2 :]}"
