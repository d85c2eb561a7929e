"""Ctrl-C and SIGTERM, turned into a number that the run looks at between two events."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class StopRequests:
    """Counts how often the user asked to stop."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake` ends the wait that is going on; it is called in a signal handler."""
        self.n_asked = 0
        self._wake = wake

    def ask(self, *_: object) -> None:
        """Ask once more."""
        self.n_asked += 1
        self._wake()


@contextlib.contextmanager
def stop_requests(wake: Callable[[], None]) -> Iterator[StopRequests]:
    """Listen to SIGINT and SIGTERM for a while; only the main thread can."""
    requests = StopRequests(wake)
    if threading.current_thread() is not threading.main_thread():
        yield requests
        return
    before = {number: signal.signal(number, requests.ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield requests
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
