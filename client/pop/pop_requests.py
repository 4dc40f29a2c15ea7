"""Send a popping consumer's requests: pops, notifications, acknowledgements, lease changes and settlements.

The requests are sent on the connection's event loop.
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
from raymq.actors.protocol import SettleAction, Settlement, SettleResult
from raymq.actors.request_limits import MAX_SETTLED
from raymq.actors.sending.send_plan import is_unanswered
from raymq.actors.wire.commands.batch_ack_commands import STALE, batch_ack_command
from raymq.actors.wire.commands.pop_commands import read_handles, read_suspects
from raymq.actors.wire.commands.settle_commands import read_settled, settle_command
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.pop_headers import (
    ANY_QUEUE,
    FROM_MIN,
    AckMessage,
    ChangeInvisibleTime,
    Notification,
    PopMessage,
    ReceiptHandle,
)
from raymq.actors.wire.response_validation import read_number_field
from raymq.client.connection import Connection
from raymq.client.members.tag_filter import SqlSubscription, TagFilter
from raymq.client.message import ReceivedMessage
from raymq.client.receipt import Receipt
from raymq.client.requests.broker_requests import ask, request_via_topics, retry_while_unavailable
from raymq.client.requests.fetch_request import ANSWER_SECONDS
from raymq.storage.records.record import decode

_REQUEST_SECONDS = 5.0
#: The response to a pop is awaited for the length of the messages' lease, but no longer than this.
_LATE_SECONDS = 300.0
#: How long one notification waits at the broker before it is requested again.
_PARK_SECONDS = 15.0

#: A broker and one of the consumer's topics there.
PopSource = tuple[str, str]


_Waiting = tuple[Settlement, asyncio.Future[SettleResult]]


class PopRequests:
    """The requests of one consumer. They raise the errors of `ask`."""

    def __init__(
        self,
        mq: Connection,
        group: str,
        filters: Mapping[str, TagFilter | SqlSubscription],
        *,
        ordered: bool,
        max_reconsume_times: int | None,
        ahead: bool = False,
    ) -> None:
        """Initialize the requests of one consumer.

        Args:
            filters: the filters by topic.
            ordered: while a message of a queue is leased to a member, deliver no other message of that queue.
            max_reconsume_times: the limit of redeliveries. None is the group's.
            ahead: a popped message does not count as delivered before `SettleAction.RUN`, unless its pop has `begun`
                set.
        """
        self._mq = mq
        self._group = group
        self._filters = {**filters, retry_topic(group): TagFilter.parse("*")}
        self.ordered = ordered
        #: The client id that pops, under which the brokers register it as a member of the group.
        self.member: str | None = None
        self._max_reconsume_times = max_reconsume_times
        self._ahead = ahead
        #: The tasks that are renewing receipts, by the receipt's id. Other uses of the receipt wait for them.
        self._renewing: dict[int, asyncio.Task[bool]] = {}

    async def pop(
        self, source: PopSource, room: int, invisible_ms: int, *, begun: bool = False
    ) -> tuple[list[ReceivedMessage], list[ReceivedMessage]]:
        """Pop the messages that one broker has at once.

        Args:
            begun: a listener call begins with the wanted messages at once.

        Returns:
            the wanted messages, and the unwanted ones, whose tags have the same hash as a wanted tag.
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

    async def pass_over(self, source: PopSource, messages: Sequence[ReceivedMessage]) -> None:
        """Acknowledge unwanted messages.

        If that fails, they are delivered again and acknowledged then.
        """
        handles = [message.receipt.handle for message in messages if message.receipt is not None]
        with contextlib.suppress(RayMQError):
            await self._acknowledge(source, handles)

    async def notify(self, source: PopSource) -> None:
        """Wait until the source may have messages, or for 15 s."""
        broker, topic = source
        times = int(_PARK_SECONDS * 1000), int(time.time() * 1000)
        header = Notification(self._group, topic, ANY_QUEUE, *times, self.ordered, member=self.member)
        await ask(self._mq, topic, broker, header.command(), _PARK_SECONDS + ANSWER_SECONDS)

    async def acknowledge(self, messages: Sequence[ReceivedMessage], receipts: Sequence[Receipt]) -> bool:
        """Acknowledge messages. Return False if one of the handles was stale.

        If a repeated request finds a stale handle, and the earlier request got no response, the message counts as
        acknowledged by the earlier request, as long as its lease lasts.
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
        handles: dict[PopSource, list[ReceiptHandle]] = defaultdict(list)
        for message, receipt in zip(messages, receipts, strict=True):
            handles[message.queue.broker, message.queue.topic].append(receipt.handle)
        stale = await asyncio.gather(*(self._acknowledge(source, each) for source, each in handles.items()))
        return not any(stale)

    async def change_invisible(
        self, message: ReceivedMessage, receipt: Receipt, invisible_ms: int, *, undelivered: bool | None = None
    ) -> bool:
        """Lease a message for `invisible_ms` from now on, and renew its receipt.

        Return False if the handle was stale. If the caller is cancelled, the request goes on: the broker may have
        carried it out, and then the receipt must be renewed.
        """
        await self._renewed([receipt])
        renewing = asyncio.get_running_loop().create_task(
            self._renew(message, receipt, invisible_ms, undelivered=undelivered)
        )
        self._renewing[id(receipt)] = renewing
        renewing.add_done_callback(partial(self._is_renewed, receipt))
        return await asyncio.shield(renewing)

    async def _renewed(self, receipts: Sequence[Receipt]) -> None:
        """Wait until no task renews these receipts."""
        while renewing := [self._renewing[id(each)] for each in receipts if id(each) in self._renewing]:
            await asyncio.wait(renewing)

    def _is_renewed(self, receipt: Receipt, renewing: asyncio.Task[bool]) -> None:
        del self._renewing[id(receipt)]
        if not renewing.cancelled():
            renewing.exception()  # the caller may be gone, and asyncio logs errors that are never read

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
            start_offset=handle.offset, pop_time_ms=read_number_field(answer, "popTime"), invisible_ms=invisible_ms
        )
        return True

    async def _acknowledge(self, source: PopSource, handles: list[ReceiptHandle]) -> int:
        """Acknowledge messages at one broker, and return how many handles were stale."""
        broker, topic = source
        answer, unanswered = await self._ask(
            broker, topic, lambda: batch_ack_command(self._group, topic, handles), handles
        )
        stale = read_number_field(answer, STALE)
        if stale and unanswered is not None:
            if not _lease_left(handles):
                raise unanswered
            return 0
        return stale

    async def _ask(
        self, broker: str, topic: str, command: Callable[[], Command], handles: Sequence[ReceiptHandle]
    ) -> tuple[Command, BrokerUnavailable | None]:
        """Repeat an idempotent request for a while, as long as the broker is unreachable.

        It is not repeated after the end of a lease that it is about.

        Returns:
            the response, and the error of an earlier attempt without a response, which may have been carried out: a
                handle that is stale now may have become stale by that attempt.

        Raises:
            BrokerUnavailable: there was no response, or the handle is stale, perhaps by an earlier request without a
                response.
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
            return await retry_while_unavailable(once, min(_REQUEST_SECONDS, _lease_left(handles))), unanswered
        except StaleHandle as stale:
            if unanswered is not None:
                raise unanswered from stale
            raise


def _lease_left(handles: Sequence[ReceiptHandle]) -> float:
    """Return how many seconds the first of these leases still lasts, at least 0."""
    ends_ms = min((handle.pop_time_ms + handle.invisible_ms for handle in handles), default=0)
    return max(0.0, ends_ms / 1000 - time.time())


def _seconds_for_pop(invisible_ms: int) -> float:
    """Return how long to wait for the response to a pop.

    A receive skips a source that does not answer soon.
    """
    return max(_REQUEST_SECONDS, min(invisible_ms / 1000, _LATE_SECONDS))


class SettlementBatcher:
    """The settlements of one group. Runs on the connection's event loop.

    The settlements of a broker reach it in the order of the `settle` calls, unless one of its requests has failed.
    """

    def __init__(self, mq: Connection, group: str, topics: Sequence[str]) -> None:
        """Initialize the batcher.

        Args:
            topics: the topics by whose routes the brokers are found.
        """
        self._mq = mq
        self._group = group
        self._topics = topics
        self._waiting: defaultdict[str, list[_Waiting]] = defaultdict(list)
        self._requests: set[asyncio.Task[None]] = set()

    def settle(
        self, message: ReceivedMessage, action: SettleAction, argument: int = 0, reason: str = ""
    ) -> asyncio.Future[SettleResult]:
        """Request one settlement once, and return a future of its outcome.

        If the request fails, the future has the request's error.
        """
        assert message.receipt is not None
        queue, handle = message.queue, message.receipt.handle
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[SettleResult] = loop.create_future()
        settlement = Settlement(
            queue.topic, queue.queue_id, message.queue_offset, handle.pop_time_ms, action, argument, reason
        )
        if not self._waiting:
            loop.call_soon(self._send)
        self._waiting[queue.broker].append((settlement, outcome))
        return outcome

    async def idle(self) -> None:
        """Wait until every request has ended."""
        while self._waiting or self._requests:
            if self._requests:
                await asyncio.wait(self._requests)
            await asyncio.sleep(0)

    def _send(self) -> None:
        waiting, self._waiting = self._waiting, defaultdict(list)
        for broker, entries in waiting.items():
            for begin in range(0, len(entries), MAX_SETTLED):
                part = entries[begin : begin + MAX_SETTLED]
                request = asyncio.get_running_loop().create_task(self._ask(broker, part))
                self._requests.add(request)
                request.add_done_callback(self._requests.discard)

    async def _ask(self, broker: str, entries: list[_Waiting]) -> None:
        command = settle_command(self._group, [settlement for settlement, _ in entries])
        try:
            answer = await request_via_topics(self._mq, self._topics, broker, command, _REQUEST_SECONDS)
            outcomes = read_settled(answer)
        except RayMQError as error:
            for _, outcome in entries:
                if not outcome.done():
                    outcome.set_exception(error)
                    outcome.exception()  # the caller may be gone, and asyncio logs errors that are never read
            return
        for (_, outcome), result in zip(entries, outcomes, strict=True):
            if not outcome.done():
                outcome.set_result(result)
