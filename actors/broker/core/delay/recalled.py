"""What was called back a moment ago: a try of its send that is still under way must not store it now.

A try without an answer may reach the broker after another one was answered and that message was called back. It is then
refused, so that what was withdrawn is never delivered. Who sends the same message again is not: it was born later, than
what was withdrawn, whose time is its client's as well, and than the call back, by our clock.

Nothing of this has to outlive the process: a try that is under way comes over one of its connections, and ends with it.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from raymq.actors.broker.core.delay.timer_records import delete_key
from raymq.actors.errors import MessageIllegal

#: The longest that a try is taken to be under way: a connection that is stuck for longer is given up.
UNDER_WAY_SECONDS: Final = 600.0
#: Of more the oldest are forgotten first.
MOST: Final = 100_000


class Recalled:
    """The messages of one broker. `clock` is wall time in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        #: By message: when it was withdrawn, and when what was withdrawn was born; the oldest first.
        self._at: OrderedDict[bytes, tuple[float, int]] = OrderedDict()

    def add(self, topic: str, unique_key: str, born_timestamp_ms: int = 0) -> None:
        """That message was called back now; of what was withdrawn the last one was born then, by its client's clock."""
        key, now = _digest(topic, unique_key), self._clock()
        _, known_ms = self._at.get(key, (now, 0))
        self._at[key] = now, max(known_ms, born_timestamp_ms)
        self._at.move_to_end(key)
        while len(self._at) > MOST or next(iter(self._at.values()))[0] < now - UNDER_WAY_SECONDS:
            self._at.popitem(last=False)

    def forget(self, topic: str, unique_key: str) -> None:
        """It was not: it had been delivered."""
        self._at.pop(_digest(topic, unique_key), None)

    def check(self, topic: str, unique_key: str | None, born_timestamp_ms: int) -> None:
        """MessageIllegal if that message was sent before it was called back."""
        called_back = self._at.get(_digest(topic, unique_key)) if self._at else None
        if called_back is None:
            return
        at, born_ms = called_back
        if self._clock() - UNDER_WAY_SECONDS <= at and (born_timestamp_ms < at * 1000 or born_timestamp_ms <= born_ms):
            raise MessageIllegal("unique_key", "that of a message that was not called back", unique_key)


def _digest(topic: str, unique_key: str | None) -> bytes:
    """What a message is known by: as long for any unique key, for that of a recall may be as long as a frame."""
    told = delete_key(topic, unique_key).encode(errors="surrogatepass")
    return hashlib.blake2b(told, digest_size=16).digest()
