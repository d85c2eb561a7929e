"""Text that is cut in its middle where a terminal is too narrow for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.measure import Measurement
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

LEAST = 8
"""Columns below which a column of labels is not squeezed."""


@dataclass(frozen=True)
class Shortened:
    """One line; where it does not fit its middle gives way: the end tells stages apart."""

    text: Text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield as much as fits."""
        yield middle_cut(self.text, options.max_width)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Ask for the whole line, and do with less."""
        whole = cell_len(self.text.plain)
        return Measurement(min(whole, LEAST), whole).clamp(max_width=options.max_width)


def middle_cut(text: Text, width: int) -> Text:
    """Return `text` in at most `width` columns: a third of them for its beginning, the rest for its end."""
    if cell_len(text.plain) <= width:
        return text
    if width < 2:
        return Text("…"[:width])
    head, tail = (width - 1) // 3, len(text.plain)
    while tail > 0 and cell_len(text.plain[tail - 1 :]) <= width - 1 - head:
        tail -= 1
    beginning = text[:0].copy()
    for end in range(1, len(text.plain) + 1):
        if cell_len(text.plain[:end]) > head:
            break
        beginning = text[:end]
    return Text.assemble(beginning, "…", text[tail:], no_wrap=True)
