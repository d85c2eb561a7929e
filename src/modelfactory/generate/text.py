"""Tokens to text while they come, and where a completion stops."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from modelfactory.generate.encoding import Encoder
from modelfactory.generate.sampling import Sampling

BROKEN = "\ufffd"
"""What a decoder writes for bytes that are no character (yet)."""
MAX_BROKEN = 3
"""How many of them an incomplete character can be: byte-fallback decoders write one for each byte."""


@dataclass
class Growing:
    """The text of a completion that grows by tokens.

    Only the tokens since the last whole character are decoded, so that a long completion costs linear time.
    """

    encoder: Encoder
    sampling: Sampling
    ids: list[int] = field(default_factory=list)
    text: str = ""
    """Whole characters so far, cut at a stop."""
    stopped: bool = False
    _anchor: int = 0
    """Tokens before this are in `text` and are not decoded again."""
    _whole: int = 0
    """Tokens before this end with a whole character. Some of them are decoded again with the next ones:
    there are decoders that treat the first token otherwise."""
    _n_known: int = 0
    """Characters of the tokens from `_anchor` on that are in `text`."""
    _given: int = 0

    def push(self, token: int) -> None:
        """Add one token; sets `stopped` once the text holds a stop."""
        self.ids.append(token)
        self._decode(flush=False)

    def finish(self) -> None:
        """Decode what was held back for want of the rest of a character."""
        if not self.stopped:
            self._decode(flush=True)

    def take(self, *, final: bool = False) -> str:
        """Return text that was not returned before and cannot become part of a stop any more."""
        end = len(self.text) if final or self.stopped else len(self.text) - self._undecided()
        start, self._given = self._given, max(self._given, end)
        return self.text[start : self._given]

    def _decode(self, *, flush: bool) -> None:
        decoded = self.encoder.decode(self.ids[self._anchor :])
        n_broken = len(decoded) - len(decoded.rstrip(BROKEN))
        fresh = decoded[self._n_known : len(decoded) - (0 if flush else min(n_broken, MAX_BROKEN))]
        self._n_known += len(fresh)
        self._extend(fresh)
        if not n_broken:
            self._anchor, self._whole = self._whole, len(self.ids)
            self._n_known = len(self.encoder.decode(self.ids[self._anchor :]))

    def _extend(self, fresh: str) -> None:
        n_before = len(self.text)
        self.text += fresh
        at = first_stop(self.text, self.sampling, n_before)
        if at is not None:
            self.text, self.stopped = self.text[:at], True

    def _undecided(self) -> int:
        """Return how many characters at the end may be the beginning of a stop.

        For a pattern this is the last line, from its line break on.
        """
        longest = max(
            (n for stop in self.sampling.stops for n in range(1, len(stop)) if self.text.endswith(stop[:n])),
            default=0,
        )
        if self.sampling.stop_pattern:
            longest = max(longest, len(self.text) - max(0, self.text.rfind("\n")))
        return longest


def first_stop(text: str, sampling: Sampling, n_known: int = 0) -> int | None:
    """Return where the earliest stop begins, given that there is none in the first `n_known` characters."""
    longest = max(map(len, sampling.stops), default=0)
    found = [text.find(stop, max(0, n_known - longest + 1)) for stop in sampling.stops]
    if sampling.stop_pattern:
        match = re.search(sampling.stop_pattern, text)
        found.append(match.start() if match else -1)
    return min((at for at in found if at >= 0), default=None)
