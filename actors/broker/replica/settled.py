"""Who waits until what was appended or changed may be acknowledged."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, TypeVar

from raymq.actors.broker.replication.acknowledging import NOT_MASTER, AckOutcome, AckRule
from raymq.actors.broker.replication.positions import StreamPosition
from raymq.actors.errors import WriteUnknown
from raymq.actors.protocol import SendStatus
from raymq.actors.wire.prompt_future import PromptFuture

#: A message that replicas in sync do not have after so long is answered as what it is (RocketMQ's syncFlush to slaves).
SLAVE_SECONDS: Final = 3.0

_T = TypeVar("_T")


class Settled:
    """Those who wait, in the order of the stream. Belongs to the broker's loop.

    Attributes:
        rule: says when; may be replaced by another one, which `wake_all` makes known.
    """

    def __init__(self, rule: AckRule, clock: Callable[[], float], seconds: float = SLAVE_SECONDS) -> None:
        self.rule = rule
        self._clock = clock
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        #: Up to where, until when, and what is called then; it waits anew where that was too early.
        self._waiting: deque[tuple[StreamPosition, float, Callable[[], None]]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait(self, end: StreamPosition) -> SendStatus:
        """What may be said of what ends at `end`.

        Raises:
            WriteUnknown: this broker may not speak for the group any more.
        """
        return await self.when(end, lambda status: status)

    def when(self, end: StreamPosition, make: Callable[[SendStatus], _T]) -> PromptFuture[_T]:
        """What `make` makes of the status of what ends at `end`, or WriteUnknown, or what it raises."""
        made: PromptFuture[_T] = PromptFuture(loop=self._loop)
        deadline = self._clock() + self._seconds

        def look() -> None:
            if made.done():
                return  # who waited has gone
            outcome = self.rule.outcome(end)
            try:
                if outcome is AckOutcome.SAFE:
                    made.set_result(make(SendStatus.SEND_OK))
                elif outcome is AckOutcome.UNKNOWN:
                    made.set_exception(WriteUnknown(f"stored, but {NOT_MASTER}: the next master has it, or not"))
                elif self._clock() >= deadline:
                    made.set_result(make(self.rule.timed_out()))
                else:
                    self._waiting.append((end, deadline, look))
            except Exception as error:  # noqa: BLE001 - it is the answer
                made.set_exception(error)

        look()
        return made

    def look(self, confirmed: StreamPosition) -> None:
        """More is confirmed: whose turn it is looks."""
        waiting = self._waiting
        for _ in range(len(waiting)):
            if not confirmed.covers(waiting[0][0]):
                return
            waiting.popleft()[2]()

    def sweep(self) -> None:
        """Have those look whose time is over; call it a few times a second."""
        now = self._clock()
        if any(deadline <= now for _, deadline, _ in self._waiting):
            self.wake_all()

    def wake_all(self) -> None:
        """Something else has changed that all of them go by."""
        waiting, self._waiting = self._waiting, deque()
        for _, _, look in waiting:
            look()
