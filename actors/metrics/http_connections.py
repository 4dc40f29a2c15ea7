"""Bound the connections of a small HTTP server.

How many there are, and how long each may take to ask.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

_C = TypeVar("_C")


class HttpConnections(Generic[_C]):
    """The open connections of a server; any thread may call it."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Create the table of at most `most` connections."""
        self._most = most
        self._clock = clock
        self._lock = threading.Lock()
        #: The time at which each was opened; None once its request was read.
        self._opened: dict[_C, float | None] = {}

    def admit(self, connection: _C) -> bool:
        """Add a connection; return False if there are too many."""
        with self._lock:
            if len(self._opened) >= self._most:
                return False
            self._opened[connection] = self._clock()
            return True

    def request_read(self, connection: _C) -> None:
        """Note that a connection's request is complete, so that it is no longer waited for."""
        with self._lock:
            if connection in self._opened:
                self._opened[connection] = None

    def forget(self, connection: _C) -> None:
        """Remove a connection that is closed, or that was never admitted."""
        with self._lock:
            self._opened.pop(connection, None)

    def waiting(self, seconds: float) -> list[_C]:
        """Return the connections whose request has been incomplete for at least so long."""
        with self._lock:
            latest = self._clock() - seconds
            return [each for each, opened in self._opened.items() if opened is not None and opened <= latest]
