"""Limit how far a queue is fetched ahead of its consumer. No I/O, no state.

A reset or skip forward takes effect only after the messages that were fetched before it, so their number must be
bounded. A consumer that fetched after each finished message would fetch messages one by one, so it waits until a fetch
is worthwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: Flow control per queue (RocketMQ's pullThreshold values): how many messages and bytes may be fetched and not
#: finished.
MAX_MESSAGES: Final = 1_000
MAX_BYTES: Final = 100 * 1024 * 1024
#: No more is fetched if the first and the last of these messages are this many offsets apart.
MAX_SPAN: Final = 2_000
#: Parked messages, which wait for a failed message of their key, do not count above. At most this many may be parked.
MAX_PARKED: Final = 2_000
#: While messages are parked, the span may grow to this. A consumer that crashes then gets this much again.
MAX_SPAN_PARKED: Final = 100_000
#: The next fetch starts when this share of the messages that may be fetched ahead is free. A smaller share costs up to
#: a tenth more CPU.
WORTH_PART: Final = 0.75


@dataclass(frozen=True, slots=True)
class FetchWindow:
    """The limits of a queue of which `messages` may be fetched and not finished.

    If `waiting_only` is set, only messages whose calls have not begun count.
    """

    messages: int = MAX_MESSAGES
    waiting_only: bool = False

    @property
    def worth(self) -> int:
        """Return how many messages make a fetch worthwhile."""
        return max(1, int(self.messages * WORTH_PART))

    def room(self, in_flight: int, parked: int, size_bytes: int, span: int, ready: int = 0) -> int:
        """Return for how many more messages there is room.

        Args:
            in_flight: how many messages are fetched and not finished.
            parked: how many of them are parked.
            size_bytes: how many bytes they have.
            span: how far the first of them is from the start of the next fetch.
            ready: how many of them wait for their calls.
        """
        if size_bytes >= MAX_BYTES or parked >= MAX_PARKED or span >= (MAX_SPAN_PARKED if parked else MAX_SPAN):
            return 0
        return max(0, self.messages - (ready if self.waiting_only else in_flight - parked))

    def worth_below(self, room: int) -> int:
        """Return the number of messages in flight above which a fetch is not worthwhile.

        Parked messages do not count.
        """
        # If there is no room, the reason may be the bytes or the span, so each finished message may make room. If only
        # waiting messages count, each call that begins may make room, too.
        return self.messages - self.worth if room and not self.waiting_only else MAX_SPAN_PARKED
