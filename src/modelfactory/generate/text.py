"""Tokens to text while they come, and where a completion stops."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from modelfactory.generate.encoding import Encoder
from modelfactory.generate.sampling import Sampling

BROKEN = "\ufffd"
"""What a decoder writes for bytes that are no character (yet)."""
MAX_HELD = 4
"""Tokens held back while a character is incomplete: UTF-8 has four bytes at most, a token one at least."""


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
    """Tokens from here to `_decoded` are in `text`, and are decoded again before new ones: some decoders
    treat the first token otherwise."""
    _decoded: int = 0
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
        before = self.encoder.decode(self.ids[self._anchor : self._decoded])
        both = self.encoder.decode(self.ids[self._anchor :])
        if both.endswith(BROKEN) and not flush and len(self.ids) - self._decoded < MAX_HELD:
            return
        self._anchor, self._decoded = self._decoded, len(self.ids)
        n_before = len(self.text)
        self.text += both[len(before) :]
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
