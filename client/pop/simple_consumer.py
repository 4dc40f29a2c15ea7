"""Receive messages under a lease, and acknowledge them within it.

A message that is not acknowledged before its lease ends is delivered again.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Final

from raymq.actors.errors import ClientClosed, InvalidInput, WrongType
from raymq.actors.naming import check_group
from raymq.client import arguments
from raymq.client.client_base import check_connection
from raymq.client.client_metrics import CLIENT_METRICS, SIMPLE_CONSUMER
from raymq.client.connection import Connection
from raymq.client.consumer_health import Health
from raymq.client.fork_hooks import keep_for_parent, register_child_reset
from raymq.client.members.tag_filter import Sql, check_missing_topics, expressions, parse_subscriptions
from raymq.client.message import ReceivedMessage
from raymq.client.pop.pop_buffer import ReceiveCall
from raymq.client.pop.pop_consumer_engine import PopConsumerEngine
from raymq.client.pop.pop_requests import PopRequests
from raymq.client.receipt import Receipt
from raymq.client.receiving_client import ReceivingClient

_MAX_INVISIBLE_SECONDS: Final = 12 * 3600.0
#: Seconds that closing may take in addition to the given time-out.
_CLOSE_SECONDS: Final = 5.0


class SimpleConsumer(ReceivingClient):
    """A member of a consumer group that receives messages on request.

    Thread-safe; a context manager. The members share messages, not queues: any member can receive any message. A
    received message is invisible to the other members for the requested duration. If it is acknowledged within that
    time, it is done. Otherwise it is delivered again, with `reconsume_times` one higher, also if the consumer or the
    broker was killed meanwhile.

    Args:
        mq: the connection to the cluster.
        group: the consumer group. All members must have the same subscriptions. A new group begins with the oldest
            messages.
        subscriptions: topic to tag expression: "*", "paid", "paid || shipped".
        ordered: while a message of a queue is leased to a member, deliver no other message of that queue.
        max_reconsume_times: a message that was redelivered this many times and fails once more goes to the dead
            letters.
        missing_topics: "wait": wait for a topic that does not exist, with one warning in the log, and receive from it
            within 2 s of its creation. "error": raise TopicNotFound.
        subscription_version: a number to increase when a deployment changes `subscriptions`. The highest version among
            the connected members is in force: members with a lower version receive no further messages, and can still
            acknowledge those that they have.

    The constructor joins the group. If an event loop runs on the constructing thread, the consumer joins at the
    beginning of `async with` or with the first call, which then raises the errors of joining.

    Raises:
        InvalidInput: a name, an expression or a number is not valid.
        SubscriptionMismatch, BrokerUnavailable: the consumer did not join the group.
        TopicNotFound: a topic does not exist, with `missing_topics="error"`.
    """

    KIND = "consumer"

    def __init__(
        self,
        mq: Connection,
        group: str,
        subscriptions: Mapping[str, str | Sql],
        ordered: bool = False,
        max_reconsume_times: int = 16,
        *,
        missing_topics: str = "wait",
        subscription_version: int = 0,
    ) -> None:
        check_connection(mq)
        self.group = check_group(group)
        filters = parse_subscriptions(subscriptions)
        for each in filters.values():
            each.check()
        arguments.whole("max_reconsume_times", max_reconsume_times, 0)
        arguments.flag("ordered", ordered)
        check_missing_topics(missing_topics)
        version = arguments.whole("subscription_version", subscription_version, 0)
        super().__init__(mq)
        self._filters = filters
        requests = PopRequests(mq, self.group, filters, ordered=ordered, max_reconsume_times=max_reconsume_times)
        self._pop_engine = PopConsumerEngine(
            mq, self.group, filters, requests, waits=missing_topics == "wait", version=version
        )
        self._open(self._pop_engine.start)
        #: Leaves the group if the consumer is garbage-collected without a `close`.
        self._dropped = weakref.finalize(self, _leave_behind, mq, self._pop_engine)
        self._dropped.atexit = False  # at exit the connection closes the consumer
        #: Held while the close begins. Reentrant, since a signal handler may close the consumer meanwhile.
        self._closing = threading.RLock()
        #: The future of leaving the group, once that has begun.
        self._leaving: Future[None] | None = None
        register_child_reset(self, SimpleConsumer._leave_to_parent)
        mq.adopt(self)

    def _shown(self) -> dict[str, object]:
        filters = vars(self).get("_filters")
        return super()._shown() | ({} if filters is None else {"subscriptions": expressions(filters)})

    @property
    def health(self) -> Health:
        """Return the consumer's health: background tasks, and unexpected failures that were retried."""
        supervisor = self._pop_engine.supervisor
        ended_by = self._pop_engine.ended_by
        running = not self._closed and self._opening is None and ended_by is None
        return Health(running=running, works=supervisor.works, failures=supervisor.failures, ended_by=ended_by)

    def receive(
        self, max_messages: int = 10, invisible_duration: float = 30.0, await_duration: float = 15.0
    ) -> list[ReceivedMessage]:
        """Wait for the first message and return the available ones, at most `max_messages`.

        Args:
            invisible_duration: seconds for which the messages are leased to this consumer, above 0 and at most 12 h.
            await_duration: seconds after which [] is returned if there is no message.

        Raises:
            InvalidInput: a number is not valid.
            BrokerUnavailable: no broker answered.
            TopicNotFound: with `missing_topics="error"`, none of the topics exists any more. If only some are deleted,
                messages of the others are received.
            SubscriptionMismatch: members of the group have a higher `subscription_version`.
            WorkFailed: an unexpected error occurred while messages from a broker were processed; `health` has the
                details.
            ClientClosed: the consumer or its connection was closed.
        """
        receiver, began_ns = ReceiveCall(), time.time_ns()
        try:
            found = self._run(self._receive(max_messages, invisible_duration, await_duration, receiver))
            self._pop_engine.arrived(receiver)
        except BaseException:
            self._given_up(receiver)
            raise
        return self._traced(found, began_ns)

    async def areceive(
        self, max_messages: int = 10, invisible_duration: float = 30.0, await_duration: float = 15.0
    ) -> list[ReceivedMessage]:
        """Do `receive` for asyncio code, on any event loop.

        If it is cancelled, the messages that it would have returned are left for the next call.
        """
        receiver, began_ns = ReceiveCall(), time.time_ns()
        try:
            found = await self._arun(self._receive(max_messages, invisible_duration, await_duration, receiver))
            self._pop_engine.arrived(receiver)
        except BaseException:
            self._given_up(receiver)
            raise
        return self._traced(found, began_ns)

    def _given_up(self, receiver: ReceiveCall) -> None:
        receiver.has_given_up = True  # set before the call below: a receive that has not begun yet may begin after it
        with contextlib.suppress(RuntimeError, ClientClosed):  # the loop is closed: the messages are delivered again
            self._mq.loop.call_soon_threadsafe(self._pop_engine.take_back, receiver)

    def ack(self, message: ReceivedMessage | Sequence[ReceivedMessage]) -> bool:
        """Acknowledge one or several messages, so that they are never delivered again.

        This holds even if any process is killed afterwards.

        Returns:
            False if a handle was stale: its lease has expired, or the message was acknowledged or reset before. The
                other messages are acknowledged.

        Raises:
            InvalidInput: a message was not received by a simple consumer.
            BrokerUnavailable: a broker did not answer, or left unanswered a request that may have ended the delivery.
                It is not known whether its messages are acknowledged.
        """
        return self._run(self._ack(message))

    async def aack(self, message: ReceivedMessage | Sequence[ReceivedMessage]) -> bool:
        """Do `ack` for asyncio code, on any event loop."""
        return await self._arun(self._ack(message))

    def change_invisible_duration(self, message: ReceivedMessage, seconds: float) -> bool:
        """Lease a message for `seconds` from now on, and renew its handle in place.

        Returns:
            False if the handle was stale. Nothing has changed then.

        Raises:
            InvalidInput: the duration is not above 0 and at most 12 h, or a simple consumer did not receive the
                message.
            BrokerUnavailable: the broker did not answer. It is not known whether the lease has changed.
        """
        return self._run(self._change(message, seconds))

    async def achange_invisible_duration(self, message: ReceivedMessage, seconds: float) -> bool:
        """Do `change_invisible_duration` for asyncio code, on any event loop.

        If it is cancelled, the change may still be made, and the handle is renewed then.
        """
        return await self._arun(self._change(message, seconds))

    def close(self, timeout: float = 10.0) -> None:
        """Leave the group, within `timeout` seconds.

        Messages that were received and not acknowledged are delivered again when their leases end. Messages on their
        way to a `receive` in another thread or task are available to other members at once, and that `receive` raises
        ClientClosed. If another thread is closing the consumer already, wait for it.
        """
        self.begin_close(arguments.duration("timeout", timeout))()

    def begin_close(self, timeout: float) -> Callable[[], None]:
        """Leave the group, and return a function that waits for the end of it.

        Messages that no caller has received are returned to the brokers.
        """
        self._closed, self._opening = True, None
        with self._closing:
            if self._leaving is None:
                self._dropped.detach()
                self._leaving = self._mq.submit(self._pop_engine.stop(timeout))
            return partial(self._wait_until_left, self._leaving, timeout + _CLOSE_SECONDS)

    def _wait_until_left(self, leaving: Future[None], timeout: float) -> None:
        with contextlib.suppress(TimeoutError):
            self._mq.wait(leaving, timeout)

    def _leave_to_parent(self) -> None:
        """Close this consumer in a forked child.

        The membership and the popped messages belong to the parent.
        """
        self._dropped.detach()
        keep_for_parent(self._pop_engine)
        self._closed = self._is_parents = True
        self._closing = threading.RLock()
        self._leaving = Future()
        self._leaving.set_result(None)

    async def _receive(
        self, max_messages: int, invisible_duration: float, await_duration: float, receiver: ReceiveCall
    ) -> list[ReceivedMessage]:
        arguments.whole("max_messages", max_messages, 1)
        arguments.duration("await_duration", await_duration)
        return await self._pop_engine.receive(
            max_messages, _invisible_ms("invisible_duration", invisible_duration), await_duration, receiver
        )

    async def _ack(self, message: ReceivedMessage | Sequence[ReceivedMessage]) -> bool:
        messages = [message] if isinstance(message, ReceivedMessage) else _several(message)
        receipts = [_receipt(each) for each in messages]
        is_done = await self._pop_engine.requests.acknowledge(messages, receipts)
        if not is_done:
            CLIENT_METRICS.consumed(SIMPLE_CONSUMER, self.group, messages[0].queue.topic).lease_losses += 1
        return is_done

    async def _change(self, message: ReceivedMessage, seconds: float) -> bool:
        receipt = _receipt(message)
        return await self._pop_engine.requests.change_invisible(message, receipt, _invisible_ms("seconds", seconds))


def _leave_behind(mq: Connection, popping: PopConsumerEngine) -> None:
    """Leave the group for a consumer that was garbage-collected, without waiting.

    Runs on any thread, possibly on the loop's.
    """
    with contextlib.suppress(ClientClosed, RuntimeError):  # its connection is closed, and its membership with it
        mq.submit(popping.stop(0.0))


def _invisible_ms(field: str, seconds: float) -> int:
    return max(1, int(arguments.duration(field, seconds, above=True, most=_MAX_INVISIBLE_SECONDS) * 1000))


def _several(messages: Sequence[ReceivedMessage]) -> list[ReceivedMessage]:
    if not isinstance(messages, Iterable):
        raise WrongType("message", "a received message, or a list of them", messages)
    return list(messages)


def _receipt(message: ReceivedMessage) -> Receipt:
    receipt = arguments.instance("message", message, ReceivedMessage).receipt
    if receipt is None:
        raise InvalidInput("message", "a message that a SimpleConsumer received", message.message_id)
    return receipt
