"""How the next token is chosen, as a value."""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass

from modelfactory.spec import check_types, require


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Settings of one call of `generate`; the defaults are greedy."""

    max_new_tokens: int
    """At least 1."""
    temperature: float = 0.0
    """0: the most probable token (the smallest id among equals). Else logits are divided by it."""
    top_k: int = 0
    """Only the k most probable tokens may be drawn; 0: all."""
    top_p: float = 1.0
    """Only the most probable tokens that together reach this share may be drawn; 1: all."""
    min_p: float = 0.0
    """Only tokens at least this times as probable as the best one may be drawn; 0: all.
    Nguyen et al. 2024, arXiv 2407.01082, section 3."""
    repetition_penalty: float = 1.0
    """Logits of tokens that the prompt or the completion holds are divided by this where above 0, multiplied
    below; 1: none. Before the temperature. Keskar et al. 2019, arXiv 1909.05858, section 4.1, as transformers
    has it; there logits below 0 are divided too, which would reward them. The token that every sequence
    starts with does not count: it is mostly the one that ends texts."""
    seed: int = 0
    """With the number of the prompt in its list, determines every draw."""
    stops: tuple[str, ...] = ()
    """A completion ends before the first of these strings."""
    stop_pattern: str = ""
    """A completion ends before the first match of this regular expression; empty: none."""

    stop_ids: tuple[int, ...] = ()
    """A completion ends before the first of these tokens, as it does before the end-of-text token."""

    def __post_init__(self) -> None:
        """Refuse settings without a meaning."""
        check_types(self)
        _at_least("max_new_tokens", self.max_new_tokens, 1)
        _at_least("temperature", self.temperature, 0)
        _at_least("top_k", self.top_k, 0)
        _at_least("seed", self.seed, 0)
        require(
            0 < self.top_p <= 1,
            place="Sampling.top_p",
            found=self.top_p,
            wanted="a share above 0, at most 1",
        )
        require(
            0 <= self.min_p <= 1,
            place="Sampling.min_p",
            found=self.min_p,
            wanted="a share from 0 to 1",
        )
        require(
            0 < self.repetition_penalty < math.inf,
            place="Sampling.repetition_penalty",
            found=self.repetition_penalty,
            wanted="a finite number above 0",
            remedy="1 penalises nothing; 1.2 is the value of its authors.",
        )
        self._refuse_without_effect()
        require("" not in self.stops, place="Sampling.stops", found=self.stops, wanted="no empty string")
        require(
            _is_pattern(self.stop_pattern),
            place="Sampling.stop_pattern",
            found=self.stop_pattern,
            wanted="a regular expression",
        )

    def _refuse_without_effect(self) -> None:
        """Where the best token is taken, none is kept out."""
        for name, nothing in (("top_k", 0), ("top_p", 1.0), ("min_p", 0.0)):
            require(
                self.temperature != 0 or getattr(self, name) == nothing,
                place=f"Sampling.{name}",
                found=getattr(self, name),
                wanted="none at temperature 0, which always takes the most probable token",
                remedy="Give a temperature above 0, or leave it out.",
            )

    def draw_seed(self, number: int) -> int:
        """Return the seed of prompt `number`: independent streams, the same in any batch."""
        digest = hashlib.sha256(f"{self.seed}:{number}".encode()).digest()
        return int.from_bytes(digest[:8], "big") >> 1  # torch takes 63 bits


def _at_least(name: str, value: float, least: int) -> None:
    require(value >= least, place=f"Sampling.{name}", found=value, wanted=f"at least {least}")


def _is_pattern(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True
