"""Detect a dead connection that was never closed.

Examples are a firewall that dropped the connection, or a proxy that hangs. A connection without incoming bytes is
normal, since a request may be parked for as long as it specifies. A connection counts as dead when requests were not
answered in time and nothing else has arrived for a while either. This file does no I/O, and its clock is injected.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

#: A connection counts as dead so long after the first unanswered request, if nothing has arrived since.
SILENT_SECONDS: Final = 10.0


class DeadPeerDetector:
    """The detector of one connection. `clock` returns monotonic seconds.

    Attributes:
        receive_count: how often bytes have arrived; the receiver increments it.
    """

    __slots__ = ("_clock", "_seen_count", "_since", "receive_count")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.receive_count = 0
        #: The time of the first unanswered request since the last arrival, if `receive_count` is `_seen_count`.
        self._since = 0.0
        self._seen_count = -1

    def unanswered(self, asked_at: float, receive_count: int) -> bool:
        """Record a request that timed out; return True if the connection is dead.

        Args:
            asked_at: the time at which the request was sent.
            receive_count: the counter `receive_count` at that time.
        """
        if receive_count != self.receive_count:  # bytes arrived since the request: the peer is alive
            return False
        if self._seen_count != receive_count:
            self._seen_count, self._since = receive_count, asked_at
        self._since = min(self._since, asked_at)
        return self._clock() - self._since >= SILENT_SECONDS
