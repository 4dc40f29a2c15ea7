"""How much of a queue is fetched ahead of its consumer. No I/O, no state.

A reset or a skip that goes forward takes effect behind what was fetched before it, so that has to be bounded. And who
fetched as soon as one message is done would ask for them one by one: it waits until a fetch is worth its while.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: Flow control per queue (RocketMQ's pullThreshold values): so much is fetched and not finished, at most,
MAX_MESSAGES: Final = 1_000
MAX_BYTES: Final = 100 * 1024 * 1024
#: and nothing more is fetched where the first of it and the last one are so far apart.
MAX_SPAN: Final = 2_000
#: Messages that wait aside for one of their key do not count above, but so many of them at most,
MAX_PARKED: Final = 2_000
#: and while there are some the span may grow to this; it is what a consumer that dies then gets again.
MAX_SPAN_PARKED: Final = 100_000
#: More is fetched when this part of the messages that may be fetched ahead is free: less costs up to a tenth more CPU.
WORTH_PART: Final = 0.75


@dataclass(frozen=True, slots=True)
class FetchWindow:
    """Of a queue of which `messages` may be fetched and not finished.

    `waiting_only`: they are those whose calls have not begun; what calls have does not count.
    """

    messages: int = MAX_MESSAGES
    waiting_only: bool = False

    @property
    def worth(self) -> int:
        """So many messages are worth a fetch."""
        return max(1, int(self.messages * WORTH_PART))

    def room(self, in_flight: int, parked: int, size_bytes: int, span: int, ready: int = 0) -> int:
        """How many messages more there is room for.

        Args:
            in_flight: how many are fetched and not finished, and how many bytes (`size_bytes`) they have.
            parked: how many of them wait aside.
            span: how far the first of them is from where the next fetch begins.
            ready: how many of them wait for their calls.
        """
        if size_bytes >= MAX_BYTES or parked >= MAX_PARKED or span >= (MAX_SPAN_PARKED if parked else MAX_SPAN):
            return 0
        return max(0, self.messages - (ready if self.waiting_only else in_flight - parked))

    def worth_below(self, room: int) -> int:
        """A fetch is not worth its while before as few messages, or fewer, are in flight (those aside not counted)."""
        # Where there is none it may be for their bytes, or for the span: each message that is done may end that. So may
        # each call that begins, where only what waits counts.
        return self.messages - self.worth if room and not self.waiting_only else MAX_SPAN_PARKED
