"""What a consumer that pops asks of brokers: pops, notifications, acknowledgements, other times of being hidden.

Runs on the connection's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from raymq.actors.errors import BrokerUnavailable, NothingToPop, RayMQError, StaleHandle
from raymq.actors.naming import retry_topic
from raymq.actors.sending.send_plan import is_unanswered
from raymq.actors.wire.commands.batch_ack import STALE, batch_ack_command
from raymq.actors.wire.commands.pop import read_handles, read_suspects
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.pop import (
    ANY_QUEUE,
    FROM_MIN,
    AckMessage,
    ChangeInvisibleTime,
    Handle,
    Notification,
    PopMessage,
)
from raymq.actors.wire.told import number_in
from raymq.client.connection import Connection
from raymq.client.members.subscription import SqlWanted, TagFilter
from raymq.client.message import ReceivedMessage
from raymq.client.receipt import Receipt
from raymq.client.requests.asking import ask, patiently
from raymq.client.requests.fetching import ANSWER_SECONDS
from raymq.storage.records.record import decode

_REQUEST_SECONDS = 5.0
#: The answer to a pop is waited for as long as what it brings is hidden from others, but no longer than this.
_LATE_SECONDS = 300.0
#: One notification waits so long; then it is asked for anew.
_PARK_SECONDS = 15.0

#: A broker and one of the consumer's topics there.
Source = tuple[str, str]


class PopRequests:
    """Those of one consumer. They raise what `ask` raises."""

    def __init__(
        self,
        mq: Connection,
        group: str,
        filters: Mapping[str, TagFilter | SqlWanted],
        *,
        ordered: bool,
        max_reconsume_times: int | None,
        ahead: bool = False,
    ) -> None:
        """Make the requests of one consumer.

        Args:
            filters: by topic.
            ordered: of a queue nothing is given out while something of it is with a member.
            max_reconsume_times: None is the group's.
            ahead: what is popped does not count as delivered before `SettleAction.RUN`, unless its pop says `begun`.
        """
        self._mq = mq
        self._group = group
        self._filters = {**filters, retry_topic(group): TagFilter.parse("*")}
        self.ordered = ordered
        #: The client id that pops, as brokers know it as a member of the group.
        self.member: str | None = None
        self._max_reconsume_times = max_reconsume_times
        self._ahead = ahead
        #: What renews a receipt just now, by the receipt's id: whoever uses it waits for that.
        self._renewing: dict[int, asyncio.Task[bool]] = {}

    async def pop(
        self, source: Source, room: int, invisible_ms: int, *, begun: bool = False
    ) -> tuple[list[ReceivedMessage], list[ReceivedMessage]]:
        """The messages that one broker gave at once: the wanted ones, and others whose tags have the same hash.

        `begun`: a call begins with the wanted ones at once.
        """
        broker, topic = source
        tag_filter = self._filters[topic]
        subscription = tag_filter.subscription(topic)
        header = PopMessage(
            consumer_group=self._group,
            topic=topic,
            queue_id=ANY_QUEUE,
            max_msg_nums=room,
            invisible_time=invisible_ms,
            poll_time=0,
            born_time=int(time.time() * 1000),
            init_mode=FROM_MIN,
            exp_type=subscription.kind,
            exp=subscription.expression,
            order=self.ordered,
            max_reconsume_times=self._max_reconsume_times,
            member=self.member,
            ahead=self._ahead and not begun,
            begun=begun,
        )
        try:
            answer = await ask(self._mq, topic, broker, header.command(), _seconds_for_pop(invisible_ms))
        except NothingToPop:
            return [], []
        handle_of, suspects = read_handles(header, broker, answer), read_suspects(answer)
        body = memoryview(answer.body)
        wanted: list[ReceivedMessage] = []
        unwanted: list[ReceivedMessage] = []
        at = 0
        while at < len(body):
            record = decode(body, at)
            at += record.size
            place = record.queue_id, record.queue_offset
            receipt = Receipt(handle_of(*place), place in suspects, is_begun=begun)
            message = ReceivedMessage.from_record(record, broker, receipt)
            (wanted if tag_filter.passes(message.tags) else unwanted).append(message)
        return wanted, unwanted

    async def pass_over(self, source: Source, messages: Sequence[ReceivedMessage]) -> None:
        """Acknowledge what nobody wants; where that fails they come again, and are passed over then."""
        handles = [message.receipt.handle for message in messages if message.receipt is not None]
        with contextlib.suppress(RayMQError):
            await self._acknowledge(source, handles)

    async def notify(self, source: Source) -> None:
        """Ends when the source may have something, or after 15 s."""
        broker, topic = source
        times = int(_PARK_SECONDS * 1000), int(time.time() * 1000)
        header = Notification(self._group, topic, ANY_QUEUE, *times, self.ordered, member=self.member)
        await ask(self._mq, topic, broker, header.command(), _PARK_SECONDS + ANSWER_SECONDS)

    async def acknowledge(self, messages: Sequence[ReceivedMessage], receipts: Sequence[Receipt]) -> bool:
        """End the deliveries; False if one of the handles was stale.

        A handle that is stale for a request which is repeated behind one without an answer counts as acknowledged by
        that one, as long as its delivery lasts.
        """
        await self._renewed(receipts)
        if len(messages) == 1:
            queue, handle = messages[0].queue, receipts[0].handle
            command = AckMessage(self._group, queue.topic, queue.queue_id, str(handle), handle.offset)
            try:
                await self._ask(queue.broker, queue.topic, command.command, [handle])
            except StaleHandle:
                return False
            except BrokerUnavailable as error:
                if not isinstance(error.__cause__, StaleHandle) or not _lease_left([handle]):
                    raise
            return True
        handles: dict[Source, list[Handle]] = defaultdict(list)
        for message, receipt in zip(messages, receipts, strict=True):
            handles[message.queue.broker, message.queue.topic].append(receipt.handle)
        stale = await asyncio.gather(*(self._acknowledge(source, each) for source, each in handles.items()))
        return not any(stale)

    async def change_invisible(
        self, message: ReceivedMessage, receipt: Receipt, invisible_ms: int, *, undelivered: bool | None = None
    ) -> bool:
        """Let the delivery last so long from now on, and renew its receipt; False if the handle was stale.

        Who gives it up does not end it: the broker may have done it, and then the receipt has to say so.
        """
        await self._renewed([receipt])
        renewing = asyncio.get_running_loop().create_task(
            self._renew(message, receipt, invisible_ms, undelivered=undelivered)
        )
        self._renewing[id(receipt)] = renewing
        renewing.add_done_callback(partial(self._is_renewed, receipt))
        return await asyncio.shield(renewing)

    async def _renewed(self, receipts: Sequence[Receipt]) -> None:
        """When nothing renews these receipts any more."""
        while renewing := [self._renewing[id(each)] for each in receipts if id(each) in self._renewing]:
            await asyncio.wait(renewing)

    def _is_renewed(self, receipt: Receipt, renewing: asyncio.Task[bool]) -> None:
        del self._renewing[id(receipt)]
        if not renewing.cancelled():
            renewing.exception()  # who asked may have given up: somebody has to look, or asyncio complains

    async def _renew(
        self, message: ReceivedMessage, receipt: Receipt, invisible_ms: int, *, undelivered: bool | None
    ) -> bool:
        queue, handle = message.queue, receipt.handle
        header = ChangeInvisibleTime(
            self._group, queue.topic, queue.queue_id, str(handle), handle.offset, invisible_ms, undelivered
        )
        try:
            answer, _ = await self._ask(queue.broker, queue.topic, header.command, [handle])
        except StaleHandle:
            return False
        receipt.handle = handle._replace(
            start_offset=handle.offset, pop_time_ms=number_in(answer, "popTime"), invisible_ms=invisible_ms
        )
        return True

    async def _acknowledge(self, source: Source, handles: list[Handle]) -> int:
        """Acknowledge at one broker; how many handles were stale."""
        broker, topic = source
        answer, unanswered = await self._ask(
            broker, topic, lambda: batch_ack_command(self._group, topic, handles), handles
        )
        stale = number_in(answer, STALE)
        if stale and unanswered is not None:
            if not _lease_left(handles):
                raise unanswered
            return 0
        return stale

    async def _ask(
        self, broker: str, topic: str, command: Callable[[], Command], handles: Sequence[Handle]
    ) -> tuple[Command, BrokerUnavailable | None]:
        """Repeat a request while the broker is unreachable, for a while: what it does it does once.

        It is not repeated after the end of a delivery that it is about.

        Returns:
            the answer, and why an earlier one did not come, where it may have been carried out nevertheless: a handle
            that is stale now may have become so by that.

        Raises:
            BrokerUnavailable: no answer; or the handle is stale, perhaps by a request of before that was not answered.
        """
        unanswered: BrokerUnavailable | None = None

        async def once() -> Command:
            nonlocal unanswered
            try:
                return await ask(self._mq, topic, broker, command(), _REQUEST_SECONDS)
            except BrokerUnavailable as error:
                if is_unanswered(error):
                    unanswered = error
                raise

        try:
            return await patiently(once, min(_REQUEST_SECONDS, _lease_left(handles))), unanswered
        except StaleHandle as stale:
            if unanswered is not None:
                raise unanswered from stale
            raise


def _lease_left(handles: Sequence[Handle]) -> float:
    """How long the first of these deliveries lasts yet, seconds; at least 0."""
    ends_ms = min((handle.pop_time_ms + handle.invisible_ms for handle in handles), default=0)
    return max(0.0, ends_ms / 1000 - time.time())


def _seconds_for_pop(invisible_ms: int) -> float:
    """How long the answer to a pop is waited for. A receive passes over a source that does not answer soon."""
    return max(_REQUEST_SECONDS, min(invisible_ms / 1000, _LATE_SECONDS))
