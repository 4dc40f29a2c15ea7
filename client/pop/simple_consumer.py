"""Consuming by asking: messages are lent for a time, and come again unless they are acknowledged within it."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Final

from raymq.actors.errors import ClientClosed, InvalidInput, WrongType
from raymq.actors.naming import check_group
from raymq.client import arguments
from raymq.client.client_base import ClientBase, check_connection
from raymq.client.connection import Connection
from raymq.client.forking import leave_to_parent, renew_in_child
from raymq.client.health import Health
from raymq.client.members.subscription import Sql, check_missing_topics, expressions, parse_subscriptions
from raymq.client.message import ReceivedMessage
from raymq.client.pop.engine import Popping
from raymq.client.pop.receiver import Receiver
from raymq.client.pop.requests import PopRequests
from raymq.client.receipt import Receipt

_MAX_INVISIBLE_SECONDS: Final = 12 * 3600.0
#: What closing may take beyond the time that was given.
_CLOSE_SECONDS: Final = 5.0


class SimpleConsumer(ClientBase):
    """A member of a consumer group that takes messages when it wants to. Thread-safe; a context manager.

    The members share the messages, not the queues: any of them gets any message. One that is received is invisible to
    the others for the time that was asked for. Acknowledged within it, it is done; otherwise it comes again, with
    `reconsume_times` one higher, also if the consumer or the broker was killed meanwhile.

    Args:
        mq: the connection to the cluster.
        group: all its members must subscribe to the same. A new group begins with the oldest messages.
        subscriptions: topic to tag expression: "*", "paid", "paid || shipped".
        ordered: of a queue nothing is given out while something of it is with a member.
        max_reconsume_times: a message that came again so often and fails once more goes to the dead letters.
        missing_topics: "wait": a topic that does not exist is waited for, with one warning in the log, and received
            from within 2 s of its creation; "error": it is refused with TopicNotFound.
        subscription_version: raise it where a deployment changes `subscriptions`. The highest version of the connected
            members is in force: members of a lower one receive nothing more, and acknowledge what they have.

    It joins the group as it is made. Where an event loop runs on that thread it does so at the beginning of `async
    with`, or with the first call; that raises then what the constructor raises elsewhere.

    Raises:
        InvalidInput: a name, an expression or a number breaks its rule.
        SubscriptionMismatch, BrokerUnavailable: it did not join the group.
        TopicNotFound: so with `missing_topics="error"`.
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
        for wanted in filters.values():
            wanted.check()
        arguments.whole("max_reconsume_times", max_reconsume_times, 0)
        arguments.flag("ordered", ordered)
        check_missing_topics(missing_topics)
        version = arguments.whole("subscription_version", subscription_version, 0)
        super().__init__(mq)
        self._filters = filters
        requests = PopRequests(mq, self.group, filters, ordered=ordered, max_reconsume_times=max_reconsume_times)
        self._popping = Popping(mq, self.group, filters, requests, waits=missing_topics == "wait", version=version)
        self._open(self._popping.start)
        #: One that is dropped without a close leaves its group all the same.
        self._dropped = weakref.finalize(self, _leave_behind, mq, self._popping)
        self._dropped.atexit = False  # its connection closes it then
        #: Held by who begins to close it; a signal handler may do that while it is begun.
        self._closing = threading.RLock()
        #: Its leaving of the group, once that was begun.
        self._leaving: Future[None] | None = None
        renew_in_child(self, SimpleConsumer._leave_to_parent)
        mq.adopt(self)

    def _shown(self) -> dict[str, object]:
        filters = vars(self).get("_filters")
        return super()._shown() | ({} if filters is None else {"subscriptions": expressions(filters)})

    @property
    def health(self) -> Health:
        """How it fares: what runs for it, and what failed although nobody expected that, and was done anew."""
        supervisor = self._popping.supervisor
        ended_by = self._popping.ended_by
        running = not self._closed and self._opening is None and ended_by is None
        return Health(running=running, works=supervisor.works, failures=supervisor.failures, ended_by=ended_by)

    def receive(
        self, max_messages: int = 10, invisible_duration: float = 30.0, await_duration: float = 15.0
    ) -> list[ReceivedMessage]:
        """The messages that are there, at most `max_messages`; waits for the first one.

        Args:
            invisible_duration: seconds for which they are this consumer's, above 0, at most 12 h.
            await_duration: seconds after which [] is returned.

        Raises:
            InvalidInput: a number breaks its rule.
            BrokerUnavailable: no broker answered.
            TopicNotFound: with `missing_topics="error"`, none of the topics is there any more; one that is gone does
                not hold up the others.
            SubscriptionMismatch: members of the group have a higher `subscription_version`.
            WorkFailed: what nobody expected came of taking what a broker gave; `health` tells.
            ClientClosed: the consumer or its connection was closed.
        """
        receiver = Receiver()
        try:
            found = self._run(self._receive(max_messages, invisible_duration, await_duration, receiver))
            self._popping.arrived(receiver)
        except BaseException:
            self._given_up(receiver)
            raise
        return found

    async def areceive(
        self, max_messages: int = 10, invisible_duration: float = 30.0, await_duration: float = 15.0
    ) -> list[ReceivedMessage]:
        """`receive` for asyncio code, on any event loop. Cancelled, it leaves to the next one what it was to return."""
        receiver = Receiver()
        try:
            found = await self._arun(self._receive(max_messages, invisible_duration, await_duration, receiver))
            self._popping.arrived(receiver)
        except BaseException:
            self._given_up(receiver)
            raise
        return found

    def _given_up(self, receiver: Receiver) -> None:
        receiver.has_given_up = True  # before it is told: what was not begun yet may begin behind that
        with contextlib.suppress(RuntimeError, ClientClosed):  # the loop is gone: they come again
            self._mq.loop.call_soon_threadsafe(self._popping.take_back, receiver)

    def ack(self, message: ReceivedMessage | Sequence[ReceivedMessage]) -> bool:
        """One or several messages are done: they never come again, whatever is killed.

        Returns:
            False if a handle was stale: its time is over, or it was acknowledged or reset. The others are done.

        Raises:
            InvalidInput: one was not received by a simple consumer.
            BrokerUnavailable: a broker did not answer, or not to a request that may have ended the delivery: unknown
                whether its messages are done.
        """
        return self._run(self._ack(message))

    async def aack(self, message: ReceivedMessage | Sequence[ReceivedMessage]) -> bool:
        """`ack` for asyncio code, on any event loop."""
        return await self._arun(self._ack(message))

    def change_invisible_duration(self, message: ReceivedMessage, seconds: float) -> bool:
        """From now on the message is this consumer's for `seconds`; its handle is renewed in place.

        Returns:
            False if its handle was stale; nothing has changed then.

        Raises:
            InvalidInput: the duration is not above 0 and at most 12 h, or the message was not received so.
            BrokerUnavailable: no answer; unknown whether it was done.
        """
        return self._run(self._change(message, seconds))

    async def achange_invisible_duration(self, message: ReceivedMessage, seconds: float) -> bool:
        """`change_invisible_duration` for asyncio code, on any event loop.

        Cancelled, it may be done all the same, and the handle is renewed then.
        """
        return await self._arun(self._change(message, seconds))

    def close(self, timeout: float = 10.0) -> None:
        """Leave the group, within `timeout` seconds. What was received and not acknowledged comes again in time.

        What was on its way to a `receive` in another thread or task is there for other members at once, and that
        `receive` raises ClientClosed. Who closes it while somebody else does waits for that.
        """
        self.begin_close(arguments.duration("timeout", timeout))()

    def begin_close(self, timeout: float) -> Callable[[], None]:
        """As any client's; it leaves the group at once, and gives back what nobody has received."""
        self._closed, self._opening = True, None
        with self._closing:
            if self._leaving is None:
                self._dropped.detach()
                self._leaving = self._mq.submit(self._popping.stop(timeout))
            return partial(self._wait_until_left, self._leaving, timeout + _CLOSE_SECONDS)

    def _wait_until_left(self, leaving: Future[None], timeout: float) -> None:
        with contextlib.suppress(TimeoutError):
            self._mq.wait(leaving, timeout)

    def _leave_to_parent(self) -> None:
        """In a forked child: the membership, and what was popped, is the parent's."""
        self._dropped.detach()
        leave_to_parent(self._popping)
        self._closed = self._is_parents = True
        self._closing = threading.RLock()
        self._leaving = Future()
        self._leaving.set_result(None)

    async def _receive(
        self, max_messages: int, invisible_duration: float, await_duration: float, receiver: Receiver
    ) -> list[ReceivedMessage]:
        arguments.whole("max_messages", max_messages, 1)
        arguments.duration("await_duration", await_duration)
        return await self._popping.receive(
            max_messages, _invisible_ms("invisible_duration", invisible_duration), await_duration, receiver
        )

    async def _ack(self, message: ReceivedMessage | Sequence[ReceivedMessage]) -> bool:
        messages = [message] if isinstance(message, ReceivedMessage) else _several(message)
        receipts = [_receipt(each) for each in messages]
        return await self._popping.requests.acknowledge(messages, receipts)

    async def _change(self, message: ReceivedMessage, seconds: float) -> bool:
        receipt = _receipt(message)
        return await self._popping.requests.change_invisible(message, receipt, _invisible_ms("seconds", seconds))


def _leave_behind(mq: Connection, popping: Popping) -> None:
    """Of a consumer that nobody has any more. Any thread, the loop's too; nobody waits for it."""
    with contextlib.suppress(ClientClosed, RuntimeError):  # its connection has ended, and its membership with that
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
        raise InvalidInput("message", "one that a SimpleConsumer received", message.message_id)
    return receipt
