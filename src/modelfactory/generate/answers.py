"""What the engine answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple


class Score(NamedTuple):
    """Log-likelihood of a continuation."""

    logprob: float
    """Sum over its tokens, in nats."""
    is_greedy: bool
    """Whether each of its tokens is the most probable one."""
    n_tokens: int
    """Tokens scored, at least 1."""
    n_cut: int = 0
    """Tokens of the context that did not fit and were left out, oldest first."""


class RollingScore(NamedTuple):
    """Log-likelihood of a whole text, each token counted once."""

    logprob: float
    """In nats."""
    n_tokens: int


@dataclass(frozen=True, kw_only=True)
class Completion:
    """What a model wrote after a prompt."""

    text: str
    """Without the stop string and what follows it; bytes that are no UTF-8 as U+FFFD."""
    ids: tuple[int, ...]
    """All tokens made, also those of the stop string; without the end-of-text token."""
    finish: Literal["stop", "eos", "length"]
    """Why it ended: a stop string, the end-of-text token or one of stop_ids, or max_new_tokens."""
    n_cut: int = 0
    """Tokens of the prompt that did not fit and were left out, oldest first."""
    n_moves: int = 0
    """How often the context was full, so that its older half was forgotten."""
