"""Remember recent recalls, so that a send still in progress does not store the message.

A try of a send without a response may reach the broker after another try was answered and that message was recalled. It
is then refused, so that a withdrawn message is never delivered. A client that sends the same message again is not
refused: the new message was born later than the withdrawn one, by the client's clock, and later than the recall, by the
broker's clock.

Nothing is stored on disk: a try in progress comes over a connection of this process, and ends with it.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from raymq.actors.broker.core.delay.timer_records import delete_key
from raymq.actors.errors import MessageIllegal

#: How long a try is assumed to be in progress: a connection that is stuck for longer is closed.
RECALL_WINDOW_SECONDS: Final = 600.0
#: The limit of remembered messages; the oldest are forgotten first.
MOST: Final = 100_000


class RecentRecalls:
    """The recently recalled messages of one broker. `clock` is wall time in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        #: By message: when it was withdrawn, and when the withdrawn copy was born; the oldest first.
        self._at: OrderedDict[bytes, tuple[float, int]] = OrderedDict()

    def add(self, topic: str, unique_key: str, born_timestamp_ms: int = 0) -> None:
        """Record that a message was recalled now.

        `born_timestamp_ms` is when the last withdrawn copy was born, by its client's clock.
        """
        key, now = _digest(topic, unique_key), self._clock()
        _, known_ms = self._at.get(key, (now, 0))
        self._at[key] = now, max(known_ms, born_timestamp_ms)
        self._at.move_to_end(key)
        while len(self._at) > MOST or next(iter(self._at.values()))[0] < now - RECALL_WINDOW_SECONDS:
            self._at.popitem(last=False)

    def forget(self, topic: str, unique_key: str) -> None:
        """Remove a message that was not recalled because it had been delivered."""
        self._at.pop(_digest(topic, unique_key), None)

    def check(self, topic: str, unique_key: str | None, born_timestamp_ms: int) -> None:
        """Raise MessageIllegal if the message was sent before it was recalled."""
        called_back = self._at.get(_digest(topic, unique_key)) if self._at else None
        if called_back is None:
            return
        at, born_ms = called_back
        if self._clock() - RECALL_WINDOW_SECONDS <= at and (
            born_timestamp_ms < at * 1000 or born_timestamp_ms <= born_ms
        ):
            raise MessageIllegal("unique_key", "the key of a message that was not recalled", unique_key)


def _digest(topic: str, unique_key: str | None) -> bytes:
    """Return the key of a message, of a fixed length.

    The unique key in a recall request may be as long as a frame.
    """
    key = delete_key(topic, unique_key).encode(errors="surrogatepass")
    return hashlib.blake2b(key, digest_size=16).digest()
