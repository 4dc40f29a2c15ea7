"""Send with sequence numbers, so that a repeated batch is not stored twice.

A batch whose answer was lost may be stored, and is sent again only to the same queue. A batch that is surely not stored
may be sent to another queue.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from raymq.actors.errors import BrokerUnavailable, SequenceGap
from raymq.actors.protocol import MessageQueue, TopicRoute
from raymq.actors.sending.partition_sequence import PartitionSequence, PartitionSequences
from raymq.actors.sending.queue_mutex import QueueMutex
from raymq.actors.sending.send_plan import SendPlan
from raymq.actors.sending.sender import FailedAttempt, Sender, SendOutcome, SendParameters, Sizes
from raymq.storage.records.producer_sequence import stamp

#: The most queues whose sequence a producer keeps.
MAX_SEQUENCES: Final = 10_000


class IdempotentSender:
    """A sender with sequence numbers, on the event loop of its `Sender`.

    One batch at a time is in progress per queue; the others wait for the queue's mutex.
    """

    def __init__(self, sender: Sender) -> None:
        self.plain = sender
        self._lanes = PartitionSequences()
        self._at: dict[MessageQueue, tuple[QueueMutex, PartitionSequence]] = {}

    async def send(self, topic: str, records: bytearray, sizes: Sizes, terms: SendParameters) -> SendOutcome:
        """Send records, as `Sender.send`; the first record gets the batch's sequence number.

        The budget includes the wait for the queue's mutex.
        """
        terms.check_time()
        plan = terms.plan(is_idempotent=True)
        return await self._send(plan, _BatchSequence(self, plan, records, sizes, terms), None, topic, records, terms)

    async def resume(
        self,
        plan: SendPlan,
        begun: FailedAttempt,
        topic: str,
        records: bytearray,
        sizes: Sizes,
        terms: SendParameters,
        lane: HeldSequence,
    ) -> SendOutcome:
        """Continue a send whose first try, made elsewhere, has failed.

        The caller passes the held sequence of that try's queue, which is released here.
        """
        return await self._send(
            plan, _BatchSequence(self, plan, records, sizes, terms, lane), begun, topic, records, terms
        )

    def queue_for(self, route: TopicRoute, terms: SendParameters, last: MessageQueue | None) -> MessageQueue:
        """Return the queue for a batch that is not stored anywhere."""
        return self.plain.choose(route, terms, last)

    def lane(self, queue: MessageQueue) -> HeldSequence:
        """Return a new hold on the queue's sequence, for one batch. Any thread."""
        known = self._at.get(queue)
        if known is None:
            if len(self._at) >= MAX_SEQUENCES:
                self._forget_some()
            known = self._at.setdefault(queue, (QueueMutex(), self._lanes.of(queue)))
        return HeldSequence(*known)

    def _forget_some(self) -> None:
        """Drop the older half of the queues, as far as they are idle.

        The next batch to such a queue begins an epoch.
        """
        for queue, (turn, _) in list(self._at.items())[: MAX_SEQUENCES // 2]:
            if turn.is_free:
                self._at.pop(queue, None)
                self._lanes.forget(queue)

    async def _send(
        self,
        plan: SendPlan,
        hold: _BatchSequence,
        begun: FailedAttempt | None,
        topic: str,
        records: bytearray,
        terms: SendParameters,
    ) -> SendOutcome:
        try:
            tried = None if begun is None else self.plain.failed(plan, begun)
            while True:
                if tried is not None:
                    if not plan.is_in_doubt and not (isinstance(tried.error, SequenceGap) and hold.restart_epoch()):
                        hold.end(stored=False)
                    await self.plain.pause(tried)
                outcome = await self.plain.attempt(plan, topic, hold.take, records, terms, sequenced=True)
                if isinstance(outcome, SendOutcome):
                    hold.end(stored=True)
                    return outcome
                tried = outcome
        finally:
            hold.end(stored=False)


class HeldSequence:
    """One batch's hold on a queue: the mutex, and the sequence that it protects.

    If the hold is garbage-collected, for example after an interrupt at any place, it ends as that of a batch that may
    be stored.
    """

    __slots__ = ("_turn", "_who", "count")

    def __init__(self, turn: QueueMutex, count: PartitionSequence) -> None:
        self.count = count
        self._turn = turn
        #: The holder object for the mutex, which must not reference this hold. None: the mutex is released.
        self._who: object | None = object()

    def take(self) -> bool:
        """Take the mutex if it is free and no batch waits for it."""
        return self._turn.take(self._who)

    async def wait(self) -> None:
        """Wait for the mutex in turn, and take it."""
        await self._turn.wait(self._who)

    def stored(self, records: int) -> None:
        """Count the records that are in the log, and release the mutex."""
        self.count.stored(records)
        self.unused()

    def unused(self) -> None:
        """Release the mutex after nothing was sent."""
        if self._who is not None:
            self._turn.release(self._who)
            self._who = None

    def end(self) -> None:
        """Release the mutex, if it is held, after a batch that may be stored."""
        if self._who is not None and self._turn.has(self._who):
            self.count.begin_epoch()  # The batch may be stored: its number must not be used again.
            self._turn.release(self._who)

    def __del__(self) -> None:
        if getattr(self, "_who", None) is not None:  # it lacks `_who` if `__init__` was interrupted
            self.end()


@dataclass(slots=True)
class _BatchSequence:
    """One batch's hold on a queue.

    The batch's first try takes it, and the batch keeps it as long as the batch may be stored there. `_lane` is the hold
    on the queue whose sequence number the records have.
    """

    _sender: IdempotentSender
    _plan: SendPlan
    _records: bytearray
    _sizes: Sizes
    _terms: SendParameters
    _lane: HeldSequence | None = None
    _last: MessageQueue | None = None
    _is_anew: bool = False

    async def take(self, route: TopicRoute) -> tuple[MessageQueue, Sizes]:
        """Return the queue to send to, and the records' sizes with the number stamped.

        Raises:
            BrokerUnavailable: the broker that may have stored the batch has left the routes, so no other one may
                receive it; or earlier batches of the queue take too long. Else the errors of `Sender.choose`.
        """
        if self._lane is None:
            queue = self._sender.queue_for(route, self._terms, self._last)
            lane = self._sender.lane(queue)
            try:
                async with asyncio.timeout(self._plan.reach_timeout()):
                    await lane.wait()
            except TimeoutError:
                raise BrokerUnavailable(queue.broker, "earlier batches of this queue are still under way") from None
            self._lane = lane
            self._sizes = stamp(self._records, self._sizes, lane.count.sequence(len(self._sizes)))
        queue = self._lane.count.queue
        if queue.broker not in route.addresses:
            raise BrokerUnavailable(queue.broker, "it has left the routes, and may have stored the batch")
        return queue, self._sizes

    def restart_epoch(self) -> bool:
        """Begin an epoch and number the batch again; return False if that is not possible.

        It is for a broker that has forgotten the queue's sequence, so that the batch is surely not stored there. Return
        False if the batch has done so before on this queue, or holds no queue.
        """
        if self._lane is None or self._is_anew:
            return False
        self._is_anew = True
        self._lane.count.begin_epoch()
        self._sizes = stamp(self._records, self._sizes, self._lane.count.sequence(len(self._sizes)))
        return True

    def end(self, *, stored: bool) -> None:
        """Release the queue, if it is held.

        `stored`: the batch is in the log; False: it may be stored, or was not sent.
        """
        lane, self._lane = self._lane, None
        self._is_anew = False
        if lane is not None:
            self._last = lane.count.queue
            if stored:
                lane.stored(len(self._sizes))
            else:
                lane.end()
