"""The board on stderr: redrawn in place on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Self

from rich.console import Console, Group
from rich.live import Live as RichLive
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from modelfactory.live.board import Board, Row, duration, how_far, named
from modelfactory.live.shortened import Shortened
from modelfactory.run import RunBegan, RunEnded, StageBroke

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from modelfactory.run import Event

LINE_EVERY_S = 5.0
"""Where nothing can be redrawn, a line is printed at most this often, failures aside."""
_REDRAWN_PER_S = 4
_MOST_ROWS = 16
BAR_WIDTH = 8
"""On 80 columns a wider bar leaves too little for the name of a stage."""


class Live:
    """Shows a run; pass it to `carry_out` as `on_event`, inside a `with` block."""

    def __init__(
        self,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        failures: bool = True,
    ) -> None:
        """Draw nothing yet.

        Args:
            console: where to draw; stderr by default.
            clock: seconds, of which only differences count.
            failures: whether each failure gets a line; false where the caller names them at the end.
        """
        self._console = console or Console(stderr=True, highlight=False)
        self._clock = clock
        self._failures = failures
        self._board = Board(clock)
        self._lock = threading.Lock()  # the terminal is redrawn by a thread of its own
        self._next_line = clock() + LINE_EVERY_S
        self._drawn = RichLive(
            console=self._console,
            get_renderable=self._picture,
            refresh_per_second=_REDRAWN_PER_S,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> Self:
        """Begin to draw, where it can be redrawn."""
        if self._console.is_terminal:
            self._drawn.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the drawing away; what is worth keeping stays above it."""
        if self._console.is_terminal:
            self._drawn.stop()

    def __call__(self, event: Event) -> None:
        """Take an event in."""
        with self._lock:
            line = self._board.note(event)
        if line and (self._failures or not isinstance(event, StageBroke)):
            self._print(line)
        if not self._console.is_terminal:
            self._print_in_between(event)

    def _print_in_between(self, event: Event) -> None:
        if isinstance(event, RunBegan | RunEnded):
            return
        if self._clock() >= self._next_line:
            self._next_line = self._clock() + LINE_EVERY_S
            running = "; ".join(filter(None, map(_in_words, self._board.rows.values())))
            self._print(self._summary() + (f" | {running}" if running else ""))

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, soft_wrap=True)

    def _summary(self) -> str:
        board = self._board
        parts = [f"{board.n_settled():,} of {board.n_stages:,} stages", f"{len(board.rows)} running"]
        for number, name in ((board.n_failed, "failed"), (board.n_blocked, "blocked")):
            parts += [f"{number:,} {name}"] if number else []
        if board.awaited:
            parts.append(f"{len(board.awaited):,} made by another process")
        if board.stopping:
            parts.append("stopping")
        elif board.rows or board.awaited:
            parts.append(f"about {duration(board.seconds_left())} left")
        return ", ".join(parts)

    def _picture(self) -> Group:
        with self._lock:
            rows = list(self._board.rows.values())[:_MOST_ROWS]
            total = Text(self._summary(), style="bold")
            return Group(self._table(rows), total)

    def _table(self, rows: list[Row]) -> Table:
        table = Table.grid(padding=(0, 1), expand=True)
        table.add_column(ratio=4, no_wrap=True)
        table.add_column(width=BAR_WIDTH, no_wrap=True)
        table.add_column(ratio=3, no_wrap=True, overflow="ellipsis")
        table.add_column(justify="right", no_wrap=True)
        for row in rows:
            label = Text.assemble((row.stage.kind, "cyan"), " ", row.stage.label)
            table.add_row(Shortened(label), _bar(row), Text(how_far(row)), duration(self._board.elapsed(row)))
        return table


def _bar(row: Row) -> ProgressBar:
    found = row.progress
    known = found is not None and found.total > 0
    if found is None or not known:
        return ProgressBar(total=None, width=BAR_WIDTH, pulse=True)
    return ProgressBar(total=found.total, completed=found.done, width=BAR_WIDTH)


def _in_words(row: Row) -> str:
    far = how_far(row)
    return f"{named(row.stage)}: {far}" if far else named(row.stage)
