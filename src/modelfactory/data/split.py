"""The split into training and held-out documents."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

from modelfactory.spec import check_types, require


@dataclass(frozen=True, kw_only=True)
class Split:
    """One part of all documents, told by their content alone.

    A document is held out when the SHA-256 of `salt`, a newline and its id, read as a fraction of 1, lies
    below `held_out_share`. So a document never moves when others come or go, equal documents are always in
    one part, and a larger share only moves documents from `train` to `held_out`. The id is that of the text
    as it was read, before any filter or deduplication. Documents that differ in a single space may be in
    different parts.
    """

    part: Literal["train", "held_out"]
    held_out_share: float
    """Expected share of documents (not of bytes) that is held out, from 0 to 1."""
    salt: str = ""
    """Any text; another salt draws another split."""

    def __post_init__(self) -> None:
        """Check types, and that the part can hold anything."""
        check_types(self)
        share = self.held_out_share
        train = self.part == "train"
        require(
            isinstance(share, float) and (0 <= share < 1 if train else 0 < share <= 1),
            place="Split.held_out_share",
            found=share,
            wanted=f"{'at least 0 and below 1' if train else 'above 0 and at most 1'} for {self.part!r}",
            remedy="It is a share, not per cent.",
        )

    def holds(self, document_id: str) -> bool:
        """Say whether the document with this id, the SHA-256 of its text, is in this part."""
        drawn = hashlib.sha256(f"{self.salt}\n{document_id}".encode()).digest()[:8]
        held_out = int.from_bytes(drawn, "big") < self.held_out_share * 2**64
        return held_out == (self.part == "held_out")
