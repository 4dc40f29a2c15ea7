"""Sending with numbers, so that a batch whose answer was lost can be sent again without being stored twice.

A batch that may be stored is sent again only to the queue that may hold it. One that surely is not may move to another.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from raymq.actors.errors import BrokerUnavailable
from raymq.actors.protocol import MessageQueue, TopicRoute
from raymq.actors.sending.queue_turn import QueueTurn
from raymq.actors.sending.send_plan import SendPlan
from raymq.actors.sending.sender import Sender, Sent, Sizes, Terms, Tried
from raymq.actors.sending.sequencing import SequenceLane, SequenceLanes
from raymq.storage.records.producer_sequence import stamp


class IdempotentSender:
    """As `Sender`, on the same event loop. One batch at a time is under way per queue; others wait for their turn."""

    def __init__(self, sender: Sender) -> None:
        self.plain = sender
        self._lanes = SequenceLanes()
        self._at: dict[MessageQueue, tuple[QueueTurn, SequenceLane]] = {}

    async def send(self, topic: str, records: bytearray, sizes: Sizes, terms: Terms) -> Sent:
        """As `Sender.send`; the first record gets the batch's number. Waiting for the turn counts for the budget."""
        terms.check_time()
        plan = SendPlan(time.monotonic, terms.timeout, terms.retries)
        return await self._send(plan, _Hold(self, plan, records, sizes, terms), None, topic, records, terms)

    async def go_on(
        self, plan: SendPlan, begun: Tried, topic: str, records: bytearray, sizes: Sizes, terms: Terms
    ) -> Sent:
        """The tries of a send of which one has failed elsewhere, by the holder of that queue's turn: it ends here."""
        assert begun.queue is not None
        hold = _Hold(self, plan, records, sizes, terms, self.at(begun.queue)[1])
        return await self._send(plan, hold, begun, topic, records, terms)

    def queue_for(self, route: TopicRoute, terms: Terms, last: MessageQueue | None) -> MessageQueue:
        """Where a batch that is nowhere yet goes."""
        return self.plain.choose(route, terms, last)

    def at(self, queue: MessageQueue) -> tuple[QueueTurn, SequenceLane]:
        """The turn of who sends to the queue, and the count, which is only for its holder. Any thread."""
        known = self._at.get(queue)
        return self._at.setdefault(queue, (QueueTurn(), self._lanes.of(queue))) if known is None else known

    async def _send(
        self, plan: SendPlan, hold: _Hold, begun: Tried | None, topic: str, records: bytearray, terms: Terms
    ) -> Sent:
        try:
            tried = None if begun is None else self.plain.failed(plan, begun)
            while True:
                if tried is not None:
                    if not plan.in_doubt:
                        hold.end(stored=False)
                    await asyncio.sleep(tried.wait)
                outcome = await self.plain.attempt(plan, topic, hold.take, records, terms, sequenced=True)
                if isinstance(outcome, Sent):
                    hold.end(stored=True)
                    return outcome
                tried = outcome
        finally:
            hold.end(stored=False)


@dataclass(slots=True)
class _Hold:
    """One batch's hold on a queue: taken by its first try, kept as long as the batch may be stored there.

    `_lane` is that of the queue whose turn it has, and whose number the records have.
    """

    _sender: IdempotentSender
    _plan: SendPlan
    _records: bytearray
    _sizes: Sizes
    _terms: Terms
    _lane: SequenceLane | None = None
    _last: MessageQueue | None = None

    async def take(self, route: TopicRoute) -> tuple[MessageQueue, Sizes]:
        """The queue to send to and the records' sizes with the number in them."""
        if self._lane is None:
            queue = self._sender.queue_for(route, self._terms, self._last)
            turn, lane = self._sender.at(queue)
            try:
                async with asyncio.timeout(self._plan.try_timeout()):
                    await turn.wait()
            except TimeoutError:
                raise BrokerUnavailable(queue.broker, "earlier batches of this queue are still under way") from None
            self._lane = lane
            self._sizes = stamp(self._records, self._sizes, self._lane.sequence(len(self._sizes)))
        return self._lane.queue, self._sizes

    def end(self, *, stored: bool) -> None:
        """Let others pass, if this one holds the turn: the batch is in the log, or nobody will say that it is."""
        if self._lane is not None:
            if stored:
                self._lane.stored(len(self._sizes))
            else:  # Whatever became of it, its number is not given to another one.
                self._lane.begin_epoch()
            self._last = self._lane.queue
            self._lane = None
            self._sender.at(self._last)[0].release()
