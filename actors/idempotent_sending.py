"""Sending with numbers, so that a batch whose answer was lost can be sent again without being stored twice.

A batch that may be stored is sent again only to the queue that may hold it. One that surely is not may move to another.
"""

from __future__ import annotations

import asyncio
import time

from raymq.actors.core.producing import SendPlan
from raymq.actors.core.sequencing import SequenceLane, SequenceLanes
from raymq.actors.errors import BrokerUnavailable, RayMQError, SequenceGap
from raymq.actors.protocol import MessageQueue, TopicRoute
from raymq.actors.sending import Sender, Sent, Sizes, Terms
from raymq.storage.producer_sequence import stamp


class IdempotentSender:
    """As `Sender`, on the same event loop. One batch at a time is under way per queue; others wait for their turn."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._lanes = SequenceLanes()
        self._turns: dict[MessageQueue, asyncio.Lock] = {}

    async def send(self, topic: str, records: bytearray, sizes: Sizes, terms: Terms) -> Sent:
        """As `Sender.send`; the first record gets the batch's number. Waiting for the turn counts for the budget."""
        plan = SendPlan(time.monotonic, terms.timeout, terms.retries)
        turn = _Turn(self, plan, records, sizes, terms)
        try:
            while True:
                tried = await self._sender.attempt(plan, topic, turn.take, records, terms, sequenced=True)
                if isinstance(tried, Sent):
                    turn.stored()
                    return tried
                if not plan.in_doubt:
                    turn.give_up(tried.error)
                await asyncio.sleep(tried.wait)
        finally:
            turn.end(in_doubt=plan.in_doubt)

    def queue_for(self, route: TopicRoute, terms: Terms, last: MessageQueue | None) -> MessageQueue:
        """Where a batch that is nowhere yet goes."""
        return self._sender.choose(route, terms, last)

    def lane(self, queue: MessageQueue) -> SequenceLane:
        """The count of a queue; only for the holder of its turn."""
        return self._lanes.of(queue)

    def turn_of(self, queue: MessageQueue) -> asyncio.Lock:
        """Held by the batch that is under way in the queue; handed on in the order of asking."""
        return self._turns.setdefault(queue, asyncio.Lock())


class _Turn:
    """One batch's hold on a queue: taken by its first try, kept as long as the batch may be stored there."""

    def __init__(
        self, sender: IdempotentSender, plan: SendPlan, records: bytearray, sizes: Sizes, terms: Terms
    ) -> None:
        self._sender = sender
        self._plan = plan
        self._records = records
        self._sizes = sizes
        self._terms = terms
        self._lane: SequenceLane | None = None
        self._last: MessageQueue | None = None

    async def take(self, route: TopicRoute) -> tuple[MessageQueue, Sizes]:
        """The queue to send to and the records' sizes with the number in them."""
        if self._lane is None:
            queue = self._sender.queue_for(route, self._terms, self._last)
            try:
                async with asyncio.timeout(self._plan.try_timeout()):
                    await self._sender.turn_of(queue).acquire()
            except TimeoutError:
                raise BrokerUnavailable(queue.broker, "earlier batches of this queue are still under way") from None
            self._lane = self._sender.lane(queue)
            self._sizes = stamp(self._records, self._sizes, self._lane.sequence(len(self._sizes)))
        return self._lane.queue, self._sizes

    def stored(self) -> None:
        """The batch is in the log."""
        assert self._lane is not None
        self._lane.stored(len(self._sizes))
        self._release()

    def give_up(self, error: RayMQError) -> None:
        """The batch surely is not in this queue: let others pass, and choose anew."""
        if self._lane is not None and isinstance(error, SequenceGap):
            self._lane.begin_epoch()
        self._release()

    def end(self, *, in_doubt: bool) -> None:
        """The send is over, well or not."""
        if self._lane is not None and in_doubt:
            self._lane.begin_epoch()
        self._release()

    def _release(self) -> None:
        if self._lane is not None:
            self._last = self._lane.queue
            self._lane = None
            self._sender.turn_of(self._last).release()
