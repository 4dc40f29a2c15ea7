"""Hold the requests that wait until an append or change may be acknowledged."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Generic, NamedTuple, TypeVar

from raymq.actors.broker.replication.ack_rule import NOT_MASTER, AckOutcome, AckRule
from raymq.actors.broker.replication.stream_position import StreamPosition
from raymq.actors.errors import WriteUnknown
from raymq.actors.protocol import SendStatus
from raymq.actors.wire.sync_callback_future import SyncCallbackFuture

#: A message that in-sync replicas lack for this long is answered with a time-out status (RocketMQ's syncFlush to
#: slaves).
SLAVE_SECONDS: Final = 3.0

_T = TypeVar("_T")


class _PendingAck(NamedTuple, Generic[_T]):
    """A request whose data end at `end`, and what makes its answer."""

    end: StreamPosition
    deadline: float
    make: Callable[[SendStatus], _T]
    future: SyncCallbackFuture[_T]


class PendingAcks:
    """The waiting requests, in the order of the stream. Belongs to the broker's loop.

    Attributes:
        rule: decides when; may be replaced, and `wake_all` then applies the new one.
    """

    def __init__(self, rule: AckRule, clock: Callable[[], float], seconds: float = SLAVE_SECONDS) -> None:
        self.rule = rule
        self._clock = clock
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_PendingAck[Any]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait(self, end: StreamPosition) -> SendStatus:
        """Return the status of the data that end at `end`, once it is known.

        Raises:
            WriteUnknown: this broker is no longer surely the master of the group.
        """
        return await self.when(end, lambda status: status)

    def when(self, end: StreamPosition, make: Callable[[SendStatus], _T]) -> SyncCallbackFuture[_T]:
        """Return a future of `make`'s result for the status at `end`.

        That is the status of the data that end at this position. The future fails with WriteUnknown as `wait` does, or
        with the error that `make` raises.
        """
        waiting = _PendingAck(end, self._clock() + self._seconds, make, SyncCallbackFuture(loop=self._loop))
        self._answer(waiting)
        return waiting.future

    def _answer(self, waiting: _PendingAck[Any]) -> None:
        """Answer a request, or let it wait on if its data are not safe yet."""
        future = waiting.future
        if future.done():
            return  # the request was cancelled
        outcome = self.rule.outcome(waiting.end)
        try:
            if outcome is AckOutcome.SAFE:
                future.set_result(waiting.make(SendStatus.SEND_OK))
            elif outcome is AckOutcome.UNKNOWN:
                future.set_exception(WriteUnknown(f"stored, but {NOT_MASTER}: the next master may or may not have it"))
            elif self._clock() >= waiting.deadline:
                future.set_result(waiting.make(self.rule.timed_out()))
            else:
                self._waiting.append(waiting)
        except Exception as error:  # noqa: BLE001 - the error is the answer
            future.set_exception(error)

    def advance(self, confirmed: StreamPosition) -> None:
        """Check the requests up to `confirmed`, the new high watermark."""
        waiting = self._waiting
        for _ in range(len(waiting)):
            if not confirmed.covers(waiting[0].end):
                return
            self._answer(waiting.popleft())

    def sweep(self) -> None:
        """Check requests whose time-out has passed; call it a few times a second."""
        now = self._clock()
        if any(each.deadline <= now for each in self._waiting):
            self.wake_all()

    def wake_all(self) -> None:
        """Check all requests, because something that concerns all of them has changed."""
        waiting, self._waiting = self._waiting, deque()
        for each in waiting:
            self._answer(each)
