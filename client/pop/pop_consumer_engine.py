"""Run a consumer that pops: membership, pops from all brokers, waiting for messages.

The engine runs on the connection's event loop. It takes messages by pops to which the broker responds at once. It waits
with one notification per broker and topic, which takes no message. Popped messages are buffered until a receive returns
them. So no message is lost to its lease if a receive is given up, if several brokers have messages for it, or if one of
them responds late.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any

from raymq.actors.errors import (
    BrokerUnavailable,
    ClientClosed,
    RayMQError,
    SubscriptionMismatch,
    TopicNotFound,
    WorkFailed,
)
from raymq.actors.naming import retry_topic
from raymq.actors.supervisor import Supervisor, is_own_cancellation
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.commands.group_commands import Member
from raymq.actors.wire.commands.pop_commands import MAX_MESSAGES
from raymq.actors.wire.connection_pool import WireConnection
from raymq.actors.wire.frame import Command
from raymq.client.connection import Connection
from raymq.client.members.membership import Membership
from raymq.client.members.tag_filter import SqlSubscription, TagFilter
from raymq.client.message import ReceivedMessage
from raymq.client.pop.pop_buffer import BufferedMessage, PopBuffer, ReceiveCall
from raymq.client.pop.pop_requests import PopRequests, PopSource
from raymq.storage.clock import boottime

#: The pause before a broker that does not respond is asked again.
_PAUSE_SECONDS = 0.5
#: If a source has not responded to a pop after this time, the next source is asked. The response is processed when it
#: comes.
_PATIENCE_SECONDS = 0.25
#: How early the timers of an event loop may fire.
_TIMER_SECONDS = 0.005
#: The least time for leaving the group.
_FAREWELL_SECONDS = 0.5
#: How long to wait for receivers to confirm the messages that were handed to them. A receiver confirms soon unless its
#: thread or its loop is blocked.
_HANDOVER_SECONDS = 1.0
_LOOK_SECONDS = 0.01

_log = logging.getLogger(__name__)


class PopConsumerEngine:
    """One running consumer. Created and used on the connection's loop."""

    def __init__(
        self,
        mq: Connection,
        group: str,
        filters: Mapping[str, TagFilter | SqlSubscription],
        requests: PopRequests,
        *,
        waits: bool = True,
        version: int = 0,
        retry_max_times: int | None = None,
        owner: str = "simple consumer",
    ) -> None:
        """Initialize the engine; `start` joins the group.

        Args:
            filters: the filters by topic.
            waits: whether to wait for topics that do not exist.
            version: the version of `filters`.
            retry_max_times: the limit of retries that this member sets for its group; None leaves it as it is.
            owner: the name of the consumer's kind in the log.
        """
        self._mq = mq
        self._waits = waits
        self._group = group
        self.topics = [*filters, retry_topic(group)]
        #: The requests to brokers.
        self.requests = requests
        requests.member = f"{mq.pool.local_host}@{uuid.uuid4().hex}"
        self.membership = Membership(
            mq,
            Member(
                requests.member,
                group,
                {topic: each.subscription(topic) for topic, each in filters.items()},
                consume_type="CONSUME_POP",
                version=version,
            ),
            clock=boottime,
            retry_max_times=retry_max_times,
            on_found=lambda _: self._look_now.set(),
            on_superseded=self._superseded,
        )
        #: The error with which receiving has ended, since a subscription of a higher version is in force.
        self.ended_by: SubscriptionMismatch | None = None
        #: Called with that error on the loop.
        self.on_superseded: Callable[[SubscriptionMismatch], None] = lambda _: None
        #: The function that returns the routes of topics. A missing topic is not requested again and again.
        self._routes = self.membership.routes if waits else mq.routes.get_all
        #: Wakes the waiting receives: a missing topic exists now, or the consumer has ended.
        self._look_now = asyncio.Event()
        self.supervisor = Supervisor(f"{owner} of {group}")
        self._turn = itertools.count()
        self._notifications: dict[PopSource, asyncio.Task[None]] = {}
        #: The pops in flight, at most one per source. Their messages are buffered until a receive returns them.
        self._pops: dict[PopSource, asyncio.Task[int]] = {}
        #: When each of these pops began.
        self._asked_at: dict[PopSource, float] = {}
        self._kept = PopBuffer(boottime)
        #: The messages that were returned to a receive and not confirmed by it, by the receive.
        self._handed: dict[ReceiveCall, list[BufferedMessage]] = {}
        #: When the buffered messages are checked next, by one timer for the first message that will be late.
        self._look_at = math.inf
        self._look: asyncio.TimerHandle | None = None
        self._stopped = asyncio.Event()
        self._heartbeats: asyncio.Task[None] | None = None
        #: The tasks that give messages back or renew their leases.
        self._returns: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Join the group.

        Raises:
            TopicNotFound, SubscriptionMismatch, BrokerUnavailable: the engine could not join. It may try again.
            ClientClosed: the engine was stopped meanwhile.
        """
        try:
            await self._join()
            self._check_running()
        except BaseException:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FAREWELL_SECONDS):
                    await self.membership.leave()
            raise
        self._mq.listen(self._pushed)
        self._heartbeats = self.supervisor.keep(
            "heartbeat", partial(self.membership.keep, partial(self.supervisor.succeeded, "heartbeat"))
        )

    async def _join(self) -> None:
        subscribed = [topic for topic in self.topics if topic != retry_topic(self._group)]
        for found in (await self._routes(subscribed, fresh=True)).values():
            if isinstance(found, RayMQError) and not (self._waits and isinstance(found, TopicNotFound)):
                raise found
        await self.membership.heartbeat(strict=True)

    async def stop(self, timeout: float) -> None:
        """Leave the group within `timeout` seconds, and give unreceived messages back.

        Other members can receive these messages at once. Pops in flight are awaited, since messages that a broker gives
        to an abandoned pop would stay invisible until their leases end.
        """
        self._stopped.set()
        self._mq.unlisten(self._pushed)
        if self._heartbeats is not None:
            self._heartbeats.cancel()
        for notification in self._notifications.values():
            notification.cancel()
        self._look_no_more()
        seconds = max(timeout, _FAREWELL_SECONDS)
        try:
            with contextlib.suppress(TimeoutError):  # the lease of a member expires at a broker that hangs
                async with asyncio.timeout(seconds):
                    handover = min(_HANDOVER_SECONDS, seconds / 2)
                    await asyncio.gather(self._give_all_back(handover), self.membership.leave())
        finally:
            for task in [*self._pops.values(), *self._returns]:
                task.cancel()

    async def _give_all_back(self, handover: float) -> None:
        """Give back all popped messages that no receiver has.

        These include the messages of pops in flight and of receives that are given up. A receive that does not confirm
        its messages within `handover` seconds does not have them.
        """
        loop = asyncio.get_running_loop()
        handed_until = loop.time() + handover
        while True:
            left = self._kept.empty()
            if loop.time() >= handed_until:
                left += self._take_unclaimed()
            if left:
                self._spawn(self._give_back(left))
            under_way: set[asyncio.Task[Any]] = {*self._pops.values(), *self._returns}
            is_handed = bool(self._handed)
            if under_way:
                await asyncio.wait(
                    under_way, timeout=_LOOK_SECONDS if is_handed else None, return_when=asyncio.FIRST_COMPLETED
                )
            elif is_handed:
                await asyncio.sleep(_LOOK_SECONDS)
            else:
                return

    def _take_unclaimed(self) -> list[ReceivedMessage]:
        """Remove and return the messages whose receivers have not confirmed them."""
        left: list[ReceivedMessage] = []
        for receiver in list(self._handed):  # a receiver may confirm now, on another thread
            left += [popped.message for popped in self._handed.pop(receiver, ())]
        return left

    async def receive(
        self,
        max_messages: int,
        invisible_ms: int,
        wait_seconds: float,
        receiver: ReceiveCall,
        *,
        begun: bool = False,
    ) -> list[ReceivedMessage]:
        """Return the available messages, at most `max_messages`, or wait for the first.

        Return [] after `wait_seconds` without a message.

        Args:
            begun: report to the brokers that calls begin with the messages at once.
            receiver: the receiver of the messages. Its caller confirms them with `arrived`, or sets `has_given_up` and
                gets no messages then.

        Raises:
            BrokerUnavailable: no broker has responded.
            ClientClosed: the consumer was closed.
            WorkFailed: an unexpected error occurred while a broker's messages were processed. The call may be repeated.
            RayMQError: a broker refused, or the only available message is damaged.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_seconds
        while not receiver.has_given_up:
            self._check_running()
            self._look_now.clear()
            # A notification that has ended means that there may be messages, so pop after this line, not before.
            self._notifications = {s: task for s, task in self._notifications.items() if not task.done()}
            # Sources that were empty and have sent no notification since are asked last.
            sources = sorted(await self._sources(), key=self._notifications.__contains__)
            failures = await self._ask_all(sources, max_messages, invisible_ms, begun=begun)
            refusals = [error for error in failures if not isinstance(error, BrokerUnavailable)]
            self._check_running()
            if found := self._received(max_messages, invisible_ms, receiver):
                return found
            if refusals:
                raise refusals[0]
            left = deadline - loop.time()
            if left <= 0:
                silent = self._silent(sources)
                if sources and len(failures) + len(silent) == len(sources):
                    raise failures[0] if failures else BrokerUnavailable(silent[0][0], "it has not answered yet")
                return []
            waiting = [self._pops.get(source) or self._notification(source) for source in sources]
            await self._wait_for_one(waiting, left if waiting else min(left, _PAUSE_SECONDS))
        return []

    def _pushed(self, _: WireConnection, command: Command) -> None:
        is_change = command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
        if is_change and command.fields.get("consumerGroup") == self._group:
            self.membership.heartbeat_all()  # a new member may have a subscription of a higher version

    def _superseded(self, error: SubscriptionMismatch) -> None:
        """Leave the unreceived messages to the members with a higher subscription version."""
        self.ended_by = error
        self._spawn(self._leave_superseded())
        self._look_now.set()
        self.on_superseded(error)

    async def _leave_superseded(self) -> None:
        """Give the buffered messages back and leave the group, once the pops have ended.

        A broker does not refuse the pops of a client that is no member, so leaving must come after them.
        """
        if self._pops:
            await asyncio.wait(self._pops.values())
        await asyncio.gather(self._give_back(self._kept.empty()), self.membership.leave())

    def _check_running(self) -> None:
        if self._stopped.is_set():
            raise ClientClosed("the consumer is closed")
        if self.ended_by is not None:
            raise copy(self.ended_by)

    async def _wait_for_one(self, waiting: Sequence[asyncio.Task[Any]], seconds: float) -> None:
        """Wait until one task has ended, a missing topic exists, or the consumer is closed."""
        loop = asyncio.get_running_loop()
        events = [loop.create_task(event.wait()) for event in (self._stopped, self._look_now)]
        try:
            await asyncio.wait([*events, *waiting], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for event in events:
                event.cancel()

    # -- taking --------------------------------------------------------------------------------------------------

    async def _sources(self) -> list[PopSource]:
        """Return every broker of every existing topic, with another one first each time.

        Raises:
            TopicNotFound: no topic exists, and the engine does not wait for missing topics.
        """
        sources: list[PopSource] = []
        away: BrokerUnavailable | None = None
        missing: dict[str, TopicNotFound] = {}
        for topic, route in (await self._routes(self.topics)).items():
            if isinstance(route, TopicNotFound):
                missing[topic] = route
            elif isinstance(route, BrokerUnavailable):  # the other topics are not affected
                away = route
            elif isinstance(route, RayMQError):
                raise route
            else:
                sources += [(broker, topic) for broker in sorted({queue.broker for queue in route.readable()})]
        if away is not None and not sources:
            raise away
        if self._waits:
            missing.clear()
        lacking = [error for topic, error in missing.items() if topic != retry_topic(self._group)]
        if lacking and len(lacking) == len(self.topics) - 1:
            raise lacking[0]
        first = next(self._turn) % max(1, len(sources))
        return sources[first:] + sources[:first]

    async def _ask_all(
        self, sources: Sequence[PopSource], max_messages: int, invisible_ms: int, *, begun: bool = False
    ) -> list[RayMQError]:
        """Pop from the sources until there are enough messages. Return the errors.

        A broker that does not respond soon is not awaited for its other topics either. The messages of a late response
        are buffered for the next receive.
        """
        failures: list[RayMQError] = []
        slow: set[str] = set()
        for source in sources:
            while (room := max_messages - self._kept.count(invisible_ms)) > 0 and source not in self._pops:
                if self._stopped.is_set() or self.ended_by is not None:
                    return failures
                requested = min(MAX_MESSAGES, room)
                self._asked_at[source] = time.monotonic()
                pop = self._pops[source] = asyncio.get_running_loop().create_task(
                    self._keep_popped(source, requested, invisible_ms, begun=begun)
                )
                pop.add_done_callback(partial(self._popped, source))
                await asyncio.wait((pop,), timeout=0.0 if source[0] in slow else _PATIENCE_SECONDS)
                if not pop.done() or pop.cancelled():
                    slow.add(source[0])
                    break
                error = pop.exception()
                if isinstance(error, TopicNotFound):  # the routes will show it soon; the other topics go on
                    self._mq.routes.invalidate(source[1])
                    self.membership.doubt(source[1], error)
                    break
                if isinstance(error, SubscriptionMismatch) and error.in_force is not None:
                    self.membership.supersede(error)
                if isinstance(error, RayMQError):
                    failures.append(error)
                    break
                if not pop.result() and not self._stopped.is_set():
                    self._notification(source)
                if pop.result() < requested:
                    break
        return failures

    def _silent(self, sources: Sequence[PopSource]) -> list[PopSource]:
        """Return the sources with a pop that has had no response for `_PATIENCE_SECONDS`."""
        now = time.monotonic()
        return sorted(s for s in sources if s in self._pops and now - self._asked_at[s] >= _PATIENCE_SECONDS)

    def _popped(self, source: PopSource, pop: asyncio.Task[int]) -> None:
        del self._pops[source], self._asked_at[source]
        if not pop.cancelled():
            pop.exception()  # the caller may be gone, and asyncio logs errors that are never read

    async def _keep_popped(self, source: PopSource, room: int, invisible_ms: int, *, begun: bool = False) -> int:
        """Pop from one source, buffer the messages and return how many there were."""
        asked_at = boottime()
        try:
            messages, unwanted = await self.requests.pop(source, room, invisible_ms, begun=begun)
        except RayMQError:
            raise
        except BaseException as error:
            if is_own_cancellation(error):
                raise
            failure = self.supervisor.report("pop", error)
            raise WorkFailed("pop", repr(error), failure.in_a_row) from error
        self.supervisor.succeeded("pop")
        if unwanted:
            self._spawn(self.requests.pass_over(source, unwanted))
        if messages:
            self._look_again_at(self._kept.add(messages, asked_at, invisible_ms))
        return len(messages) + len(unwanted)

    def _received(self, max_messages: int, invisible_ms: int, receiver: ReceiveCall) -> list[ReceivedMessage]:
        if receiver.has_given_up:  # `take_back` may have run before this, so nothing would return the messages
            return []
        found = self._kept.take(max_messages, invisible_ms)
        if found:
            self._handed[receiver] = found
            # In order, no later message of these queues may be received before these are done. The broker ensures it if
            # it has the later messages back.
            if self.requests.ordered and (rest := self._kept.take_rest(found)):
                self._spawn(self._give_back(rest))
        return [popped.message for popped in found]

    def _look_again_at(self, late_at: float) -> None:
        if late_at >= self._look_at or self._stopped.is_set():
            return
        self._look_no_more()
        self._look_at = late_at
        seconds = max(0.0, late_at - boottime()) + _TIMER_SECONDS
        self._look = asyncio.get_running_loop().call_later(seconds, self._look_after_the_kept)

    def _look_no_more(self) -> None:
        self._look_at = math.inf
        if self._look is not None:
            self._look.cancel()
            self._look = None

    def _look_after_the_kept(self) -> None:
        """Renew the leases of late messages for a while, then give them back."""
        self._look_no_more()
        renewed, given_back = self._kept.late()
        if self.requests.ordered:  # renewals end at different times, so messages could overtake each other
            renewed, given_back = [], renewed + given_back
        if given_back:
            self._spawn(self._give_back([popped.message for popped in given_back]))
        for popped in renewed:
            self._spawn(self._renew(popped))
        if (late_at := self._kept.next_late_at) is not None:
            self._look_again_at(late_at)

    async def _renew(self, popped: BufferedMessage) -> None:
        message, asked_at = popped.message, boottime()
        assert message.receipt is not None
        with contextlib.suppress(RayMQError):  # it is delivered again when its lease ends
            if await self.requests.change_invisible(message, message.receipt, popped.invisible_ms):
                self._look_again_at(self._kept.renewed(popped, asked_at))

    def arrived(self, receiver: ReceiveCall) -> Sequence[BufferedMessage]:
        """Confirm that a receiver has its messages. Return them with their times.

        Any thread may call this.
        """
        return self._handed.pop(receiver, ())

    def take_back(self, receiver: ReceiveCall) -> None:
        """Keep the unconfirmed messages of a receiver that has given up for the next one."""
        if not (popped := self._handed.pop(receiver, ())):
            return
        if self._stopped.is_set():
            self._spawn(self._give_back([each.message for each in popped]))
        else:
            self._kept.put_back(popped)
            self._look_again_at(min(each.late_at for each in popped))

    def release(self) -> None:
        """Give buffered messages back, so that other members can receive them at once."""
        if left := self._kept.empty():
            self._spawn(self._give_back(left))

    async def _give_back(self, messages: Sequence[ReceivedMessage]) -> None:
        """Give unreceived messages back to their brokers.

        Other members can receive them at once. This does not count as a failed delivery.
        """
        requests = [
            self.requests.change_invisible(message, message.receipt, 1, undelivered=True)
            for message in messages
            if message.receipt
        ]
        await asyncio.gather(*requests, return_exceptions=True)

    # -- waiting -------------------------------------------------------------------------------------------------

    def _notification(self, source: PopSource) -> asyncio.Task[None]:
        """Return the task that ends when the source may have messages.

        The task continues after the end of a receive, for the next one.
        """
        task = self._notifications.get(source)
        if task is None:
            task = self._notifications[source] = asyncio.get_running_loop().create_task(self._notified(source))
        return task

    async def _notified(self, source: PopSource) -> None:
        """Wait until the source may have messages. After an error, return after a pause."""
        try:
            await self.requests.notify(source)
        except RayMQError as error:
            _log.debug("notification of %s: %s", source, error)
        except BaseException as error:
            if is_own_cancellation(error):
                raise
            self.supervisor.report("notification", error)
        else:
            self.supervisor.succeeded("notification")
            return
        await asyncio.sleep(_PAUSE_SECONDS)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.supervisor.once("return of messages", work)
        self._returns.add(task)
        task.add_done_callback(self._returns.discard)
