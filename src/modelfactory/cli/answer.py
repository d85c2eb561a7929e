"""What a verb gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console


def _say_nothing(console: Console) -> None:
    """Print nothing: the verb wrote its own output."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The result of a verb: data for `--json`, words for a person, and the exit code."""

    data: Mapping[str, Any]
    """Plain JSON values."""
    text: Callable[[Console], None] = field(default=_say_nothing)
    """Prints the answer for a person."""
    code: int = 0
    """0 done, 1 work failed, 2 bad input."""
