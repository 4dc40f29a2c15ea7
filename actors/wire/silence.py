"""When a connection is dead although nobody has said so: a firewall forgot it, or who passes its bytes on hangs.

A connection on which nothing comes is nothing unusual: a request may be parked for as long as it likes. One is dead
when requests went unanswered, and nothing else came either for a while. No I/O, injected clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

#: So long after the first request that went unanswered, with nothing heard since, a connection is given up.
SILENT_SECONDS: Final = 10.0


class Silence:
    """One connection's. `clock` is monotonic seconds.

    Attributes:
        heard: how many times something came; whoever receives counts it up.
    """

    __slots__ = ("_clock", "_heard", "_since", "heard")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.heard = 0
        #: Since when nothing has come to requests that went unanswered, if `heard` is what it was then.
        self._since = 0.0
        self._heard = -1

    def unanswered(self, asked_at: float, heard: int) -> bool:
        """The time for a request of `asked_at` is over, when so much had been heard. Whether the connection is dead."""
        if heard != self.heard:  # something came since it was asked: somebody is there
            return False
        if self._heard != heard:
            self._heard, self._since = heard, asked_at
        self._since = min(self._since, asked_at)
        return self._clock() - self._since >= SILENT_SECONDS
