"""Detect name servers that hang, so that clients can go on with cached routes.

The module performs no I/O, and has an injected clock. A name server that refuses a connection fails at once. One that
hangs takes the whole time-out of each request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from raymq.actors.backoff import Backoff

#: A request that fails sooner was refused, or had a short time-out.
HANGING_SECONDS: Final = 0.5
#: The longest pause between two probes in seconds; the first one is 1 s.
_LONGEST_SECONDS: Final = 5.0


class NameServerHealth:
    """The outcomes of one client's requests to name servers.

    `clock` returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._backoff = Backoff(cap=_LONGEST_SECONDS)
        self._ask_again_at = 0.0
        #: Whether the last request got no answer from any name server.
        self.is_hanging = False

    @property
    def is_probe_due(self) -> bool:
        """Return True if the name servers hang and it is time to probe them again."""
        return self.is_hanging and self._clock() >= self._ask_again_at

    def unanswered(self, seconds: float, timeout: float) -> None:
        """Record a request without an answer after `seconds` of its `timeout`."""
        if seconds < min(HANGING_SECONDS, 0.9 * timeout):
            self.answered()
            return
        self.is_hanging = True
        self._ask_again_at = self._clock() + self._backoff.next_delay()

    def answered(self) -> None:
        """Record a request that was answered or refused."""
        self.is_hanging = False
        self._backoff.reset()
