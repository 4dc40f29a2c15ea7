"""Sending with numbers, so that a batch whose answer was lost can be sent again without being stored twice.

A batch that may be stored is sent again only to the queue that may hold it. One that surely is not may move to another.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from raymq.actors.errors import BrokerUnavailable, SequenceGap
from raymq.actors.protocol import MessageQueue, TopicRoute
from raymq.actors.sending.queue_turn import QueueTurn
from raymq.actors.sending.send_plan import SendPlan
from raymq.actors.sending.sender import Sender, Sent, Sizes, Terms, Tried
from raymq.actors.sending.sequencing import SequenceLane, SequenceLanes
from raymq.storage.records.producer_sequence import stamp

#: Of so many queues a producer knows what it has counted.
MOST_LANES: Final = 10_000


class IdempotentSender:
    """As `Sender`, on the same event loop. One batch at a time is under way per queue; others wait for their turn."""

    def __init__(self, sender: Sender) -> None:
        self.plain = sender
        self._lanes = SequenceLanes()
        self._at: dict[MessageQueue, tuple[QueueTurn, SequenceLane]] = {}

    async def send(self, topic: str, records: bytearray, sizes: Sizes, terms: Terms) -> Sent:
        """As `Sender.send`; the first record gets the batch's number. Waiting for the turn counts for the budget."""
        terms.check_time()
        plan = terms.plan(repeats_are_recognised=True)
        return await self._send(plan, _Hold(self, plan, records, sizes, terms), None, topic, records, terms)

    async def go_on(
        self, plan: SendPlan, begun: Tried, topic: str, records: bytearray, sizes: Sizes, terms: Terms, lane: HeldLane
    ) -> Sent:
        """The tries of a send of which one has failed elsewhere, by who has that queue's lane: it is ended here."""
        return await self._send(plan, _Hold(self, plan, records, sizes, terms, lane), begun, topic, records, terms)

    def queue_for(self, route: TopicRoute, terms: Terms, last: MessageQueue | None) -> MessageQueue:
        """Where a batch that is nowhere yet goes."""
        return self.plain.choose(route, terms, last)

    def lane(self, queue: MessageQueue) -> HeldLane:
        """What a batch to the queue has to hold. Any thread."""
        known = self._at.get(queue)
        if known is None:
            if len(self._at) >= MOST_LANES:
                self._forget_some()
            known = self._at.setdefault(queue, (QueueTurn(), self._lanes.of(queue)))
        return HeldLane(*known)

    def _forget_some(self) -> None:
        """The older half of the queues, as far as they are idle: who sends to one of them begins an epoch."""
        for queue, (turn, _) in list(self._at.items())[: MOST_LANES // 2]:
            if turn.is_free:
                self._at.pop(queue, None)
                self._lanes.forget(queue)

    async def _send(
        self, plan: SendPlan, hold: _Hold, begun: Tried | None, topic: str, records: bytearray, terms: Terms
    ) -> Sent:
        try:
            tried = None if begun is None else self.plain.failed(plan, begun)
            while True:
                if tried is not None:
                    if not plan.in_doubt and not (isinstance(tried.error, SequenceGap) and hold.begin_anew()):
                        hold.end(stored=False)
                    await self.plain.pause(tried)
                outcome = await self.plain.attempt(plan, topic, hold.take, records, terms, sequenced=True)
                if isinstance(outcome, Sent):
                    hold.end(stored=True)
                    return outcome
                tried = outcome
        finally:
            hold.end(stored=False)


class HeldLane:
    """One batch's hold on a queue: the turn, and the count, which is only for who has that.

    Wherever an interrupt comes, it ends when nobody has it any more: as that of a batch which may be stored.
    """

    __slots__ = ("_turn", "_who", "count")

    def __init__(self, turn: QueueTurn, count: SequenceLane) -> None:
        self.count = count
        self._turn = turn
        #: In whose name the turn is held: the turn must not keep this one alive. None: it is held no more.
        self._who: object | None = object()

    def take(self) -> bool:
        """Take it if nobody holds it and nobody waits."""
        return self._turn.take(self._who)

    async def wait(self) -> None:
        """Take it as soon as it is this one's turn."""
        await self._turn.wait(self._who)

    def stored(self, records: int) -> None:
        """So many records are in the log: let others pass."""
        self.count.stored(records)
        self.unused()

    def unused(self) -> None:
        """Nothing was sent: let others pass."""
        if self._who is not None:
            self._turn.release(self._who)
            self._who = None

    def end(self) -> None:
        """Let others pass, unless that was done: nobody will say that the batch is in the log."""
        if self._who is not None and self._turn.has(self._who):
            self.count.begin_epoch()  # Whatever became of it, its number is not given to another one.
            self._turn.release(self._who)

    def __del__(self) -> None:
        if getattr(self, "_who", None) is not None:  # or it was interrupted before it was one
            self.end()


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
    _lane: HeldLane | None = None
    _last: MessageQueue | None = None
    _is_anew: bool = False

    async def take(self, route: TopicRoute) -> tuple[MessageQueue, Sizes]:
        """The queue to send to and the records' sizes with the number in them.

        Raises:
            BrokerUnavailable: the broker that may hold the batch has left the routes, and no other one may have it; or
                earlier batches of the queue take too long. Else what `Sender.choose` raises.
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
            raise BrokerUnavailable(queue.broker, "it has left the routes, and may hold the batch")
        return queue, self._sizes

    def begin_anew(self) -> bool:
        """The broker has forgotten what was counted in the queue, so that the batch is surely not there: count anew.

        False: that was done before in this queue's turn, or it has none.
        """
        if self._lane is None or self._is_anew:
            return False
        self._is_anew = True
        self._lane.count.begin_epoch()
        self._sizes = stamp(self._records, self._sizes, self._lane.count.sequence(len(self._sizes)))
        return True

    def end(self, *, stored: bool) -> None:
        """Let others pass, if this one holds the turn: the batch is in the log, or nobody will say that it is."""
        lane, self._lane = self._lane, None
        self._is_anew = False
        if lane is not None:
            self._last = lane.count.queue
            if stored:
                lane.stored(len(self._sizes))
            else:
                lane.end()
