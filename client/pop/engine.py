"""The engine of a consumer that pops: membership, pops from all brokers, waiting for the first message.

Runs on the connection's event loop. Messages are taken by pops that are answered at once; what waits is a notification
per broker and topic, which takes nothing. What a pop brings is kept until a receive returns it. So a receive that is
given up, that several brokers could serve, or that one of them answers late, leaves no message in nobody's hands.
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
from raymq.actors.supervision import Supervisor, is_meant
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.commands.group import Member
from raymq.actors.wire.commands.pop import MAX_MESSAGES
from raymq.actors.wire.connection import WireConnection
from raymq.actors.wire.frame import Command
from raymq.client.connection import Connection
from raymq.client.members.membership import Membership
from raymq.client.members.subscription import SqlWanted, TagFilter
from raymq.client.message import ReceivedMessage
from raymq.client.pop.kept import KeptMessage, KeptMessages
from raymq.client.pop.receiver import Receiver
from raymq.client.pop.requests import PopRequests, Source
from raymq.storage.clock import boottime

#: A broker that does not answer is asked again after this.
_PAUSE_SECONDS = 0.5
#: A source that has not answered a pop after this is passed over for the next one; its answer is taken when it comes.
_PATIENCE_SECONDS = 0.25
#: A loop's timers may be early by so much.
_TIMER_SECONDS = 0.005
#: Who leaves takes at least so long to say so.
_FAREWELL_SECONDS = 0.5
#: A receiver that was given something says so soon whether it has it, unless its thread or its loop stands still.
_HANDOVER_SECONDS = 1.0
_LOOK_SECONDS = 0.01

_log = logging.getLogger(__name__)


class Popping:
    """One running consumer. Made and used on the connection's loop."""

    def __init__(
        self,
        mq: Connection,
        group: str,
        filters: Mapping[str, TagFilter | SqlWanted],
        requests: PopRequests,
        *,
        waits: bool = True,
        version: int = 0,
        retry_max_times: int | None = None,
        owner: str = "simple consumer",
    ) -> None:
        """Make the engine; `start` joins the group.

        Args:
            filters: by topic.
            waits: whether topics that do not exist are waited for.
            version: of `filters`.
            retry_max_times: what this member sets for its group; None leaves it as it is.
            owner: what the log calls the consumer.
        """
        self._mq = mq
        self._waits = waits
        self._group = group
        self.topics = [*filters, retry_topic(group)]
        #: What it asks of brokers.
        self.requests = requests
        requests.member = f"{mq.pool.local_host}@{uuid.uuid4().hex}"
        self.membership = Membership(
            mq,
            Member(
                requests.member,
                group,
                {topic: wanted.subscription(topic) for topic, wanted in filters.items()},
                consume_type="CONSUME_POP",
                version=version,
            ),
            clock=boottime,
            retry_max_times=retry_max_times,
            on_found=lambda _: self._look_now.set(),
            on_superseded=self._superseded,
        )
        #: Why nothing is received any more: a subscription of a higher version is in force.
        self.ended_by: SubscriptionMismatch | None = None
        #: Called with that error, on the loop.
        self.on_superseded: Callable[[SubscriptionMismatch], None] = lambda _: None
        #: The routes of topics; one that is waited for is not asked for again and again.
        self._routes = self.membership.routes if waits else mq.routes.get_all
        #: Who waits looks again: topics that were missing exist now, or it has ended.
        self._look_now = asyncio.Event()
        self.supervisor = Supervisor(f"{owner} of {group}")
        self._turn = itertools.count()
        self._notifications: dict[Source, asyncio.Task[None]] = {}
        #: Pops under way, one at most per source; what they bring is kept here until somebody receives it.
        self._pops: dict[Source, asyncio.Task[int]] = {}
        #: When each of them was begun.
        self._asked_at: dict[Source, float] = {}
        self._kept = KeptMessages(boottime)
        #: What was returned and has not arrived yet, by who receives it.
        self._handed: dict[Receiver, list[KeptMessage]] = {}
        #: When the kept are looked after, and what does it: one timer, for the first of them that will be late.
        self._look_at = math.inf
        self._look: asyncio.TimerHandle | None = None
        self._stopped = asyncio.Event()
        self._heartbeats: asyncio.Task[None] | None = None
        #: Messages that go back, or whose time is made longer.
        self._returns: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Join the group.

        Raises:
            TopicNotFound, SubscriptionMismatch, BrokerUnavailable: it could not join, and may try again.
            ClientClosed: it was stopped meanwhile.
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
        """Leave the group, within `timeout` seconds; what nobody has received is there for others at once.

        Pops under way are waited for: what a broker gives for one that nobody waits for any more stays hidden.
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
            with contextlib.suppress(TimeoutError):  # a broker that hangs finds out by itself
                async with asyncio.timeout(seconds):
                    handover = min(_HANDOVER_SECONDS, seconds / 2)
                    await asyncio.gather(self._give_all_back(handover), self.membership.leave())
        finally:
            for task in [*self._pops.values(), *self._returns]:
                task.cancel()

    async def _give_all_back(self, handover: float) -> None:
        """What was popped and not received, and what pops under way and receivers that give up bring of it.

        A receiver that was given something and does not say within `handover` seconds that it has it, has it not.
        """
        loop = asyncio.get_running_loop()
        handed_until = loop.time() + handover
        while True:
            left = self._kept.empty()
            if loop.time() >= handed_until:
                left += self._handed_to_nobody()
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

    def _handed_to_nobody(self) -> list[ReceivedMessage]:
        """What is on its way to receivers of which none has said that it has it. They have it no more."""
        left: list[ReceivedMessage] = []
        for receiver in list(self._handed):  # one may say so now, on a thread of its own
            left += [popped.message for popped in self._handed.pop(receiver, ())]
        return left

    async def receive(
        self,
        max_messages: int,
        invisible_ms: int,
        wait_seconds: float,
        receiver: Receiver,
        *,
        begun: bool = False,
    ) -> list[ReceivedMessage]:
        """Take what is there, at most `max_messages`, or wait for the first; [] when `wait_seconds` are over.

        Args:
            begun: calls begin with the messages at once, for all that the brokers know.
            receiver: says with `arrived` that it has what this returned, or has given up, and then it gets nothing.

        Raises:
            BrokerUnavailable: no broker has answered.
            ClientClosed: the consumer was closed.
            WorkFailed: what nobody expected came of taking what a broker gave; it may be tried again.
            RayMQError: a broker refused, or the only message that is there is damaged.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_seconds
        while not receiver.has_given_up:
            self._check_running()
            self._look_now.clear()
            # One that has ended says that there may be something: it has to be looked for after that, not before.
            self._notifications = {s: task for s, task in self._notifications.items() if not task.done()}
            # Those that were empty and have not said that something came are asked last.
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
            self.membership.greet_all()  # a member may have brought a subscription of a higher version

    def _superseded(self, error: SubscriptionMismatch) -> None:
        """A subscription of a higher version is in force: leave what was not received to its members."""
        self.ended_by = error
        self._spawn(self._leave_superseded())
        self._look_now.set()
        self.on_superseded(error)

    async def _leave_superseded(self) -> None:
        """Not before its pops have ended: who is no member any more is not refused."""
        if self._pops:
            await asyncio.wait(self._pops.values())
        await asyncio.gather(self._give_back(self._kept.empty()), self.membership.leave())

    def _check_running(self) -> None:
        if self._stopped.is_set():
            raise ClientClosed("the consumer is closed")
        if self.ended_by is not None:
            raise copy(self.ended_by)

    async def _wait_for_one(self, waiting: Sequence[asyncio.Task[Any]], seconds: float) -> None:
        """Until one of them has ended, a missing topic exists now, or the consumer is closed."""
        loop = asyncio.get_running_loop()
        events = [loop.create_task(event.wait()) for event in (self._stopped, self._look_now)]
        try:
            await asyncio.wait([*events, *waiting], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for event in events:
                event.cancel()

    # -- taking --------------------------------------------------------------------------------------------------

    async def _sources(self) -> list[Source]:
        """Every broker of every topic that is there, each time another one first.

        Raises:
            TopicNotFound: none of them is, and they are not waited for.
        """
        sources: list[Source] = []
        away: BrokerUnavailable | None = None
        gone: dict[str, TopicNotFound] = {}
        for topic, route in (await self._routes(self.topics)).items():
            if isinstance(route, TopicNotFound):
                gone[topic] = route
            elif isinstance(route, BrokerUnavailable):  # that is not the other topics' trouble
                away = route
            elif isinstance(route, RayMQError):
                raise route
            else:
                sources += [(broker, topic) for broker in sorted({queue.broker for queue in route.readable()})]
        if away is not None and not sources:
            raise away
        if self._waits:
            gone.clear()
        lacking = [error for topic, error in gone.items() if topic != retry_topic(self._group)]
        if lacking and len(lacking) == len(self.topics) - 1:
            raise lacking[0]
        first = next(self._turn) % max(1, len(sources))
        return sources[first:] + sources[:first]

    async def _ask_all(
        self, sources: Sequence[Source], max_messages: int, invisible_ms: int, *, begun: bool = False
    ) -> list[RayMQError]:
        """Ask the sources for what they have until there are enough messages; what went wrong with some of them.

        A broker that does not answer soon is not waited for, whatever else it is asked for: what it brings is there for
        whoever looks then.
        """
        failures: list[RayMQError] = []
        slow: set[str] = set()
        for source in sources:
            while (room := max_messages - self._kept.count(invisible_ms)) > 0 and source not in self._pops:
                if self._stopped.is_set() or self.ended_by is not None:
                    return failures
                asked = min(MAX_MESSAGES, room)
                self._asked_at[source] = time.monotonic()
                pop = self._pops[source] = asyncio.get_running_loop().create_task(
                    self._keep_popped(source, asked, invisible_ms, begun=begun)
                )
                pop.add_done_callback(partial(self._popped, source))
                await asyncio.wait((pop,), timeout=0.0 if source[0] in slow else _PATIENCE_SECONDS)
                if not pop.done() or pop.cancelled():
                    slow.add(source[0])
                    break
                error = pop.exception()
                if isinstance(error, TopicNotFound):  # the routes tell soon, too: the other topics go on
                    self._mq.routes.outdate(source[1])
                    self.membership.doubt(source[1], error)
                    break
                if isinstance(error, SubscriptionMismatch) and error.in_force is not None:
                    self.membership.supersede(error)
                if isinstance(error, RayMQError):
                    failures.append(error)
                    break
                if not pop.result() and not self._stopped.is_set():
                    self._notification(source)
                if pop.result() < asked:
                    break
        return failures

    def _silent(self, sources: Sequence[Source]) -> list[Source]:
        """Those that were asked, by whomever, and have not answered for longer than one is patient."""
        now = time.monotonic()
        return sorted(s for s in sources if s in self._pops and now - self._asked_at[s] >= _PATIENCE_SECONDS)

    def _popped(self, source: Source, pop: asyncio.Task[int]) -> None:
        del self._pops[source], self._asked_at[source]
        if not pop.cancelled():
            pop.exception()  # who asked may have given up: somebody has to look, or asyncio complains

    async def _keep_popped(self, source: Source, room: int, invisible_ms: int, *, begun: bool = False) -> int:
        """Pop from one source; how many messages it gave. They are kept until somebody receives them."""
        asked_at = boottime()
        try:
            messages, unwanted = await self.requests.pop(source, room, invisible_ms, begun=begun)
        except RayMQError:
            raise
        except BaseException as error:
            if is_meant(error):
                raise
            failure = self.supervisor.report("pop", error)
            raise WorkFailed("pop", repr(error), failure.in_a_row) from error
        self.supervisor.succeeded("pop")
        if unwanted:
            self._spawn(self.requests.pass_over(source, unwanted))
        if messages:
            self._look_again_at(self._kept.add(messages, asked_at, invisible_ms))
        return len(messages) + len(unwanted)

    def _received(self, max_messages: int, invisible_ms: int, receiver: Receiver) -> list[ReceivedMessage]:
        if receiver.has_given_up:  # it has `take_back` called perhaps before this: nobody would look any more
            return []
        found = self._kept.take(max_messages, invisible_ms)
        if found:
            self._handed[receiver] = found
            # In order nothing follows before what is given here is done: the broker sees to that, and has to have it.
            if self.requests.ordered and (rest := self._kept.rest_of(found)):
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
        """Nobody has received them in time: they are renewed for a while, then anybody's again."""
        self._look_no_more()
        renewed, given_back = self._kept.late()
        if self.requests.ordered:  # each renewal ends in its own time: others would overtake it
            renewed, given_back = [], renewed + given_back
        if given_back:
            self._spawn(self._give_back([popped.message for popped in given_back]))
        for popped in renewed:
            self._spawn(self._renew(popped))
        if (late_at := self._kept.first_late_at) is not None:
            self._look_again_at(late_at)

    async def _renew(self, popped: KeptMessage) -> None:
        message, asked_at = popped.message, boottime()
        assert message.receipt is not None
        with contextlib.suppress(RayMQError):  # it comes again when its time is over
            if await self.requests.change_invisible(message, message.receipt, popped.invisible_ms):
                self._look_again_at(self._kept.renewed(popped, asked_at))

    def arrived(self, receiver: Receiver) -> Sequence[KeptMessage]:
        """A receiver has what was returned to it, which this returns with its times. Any thread."""
        return self._handed.pop(receiver, ())

    def take_back(self, receiver: Receiver) -> None:
        """A receiver has given up: if something was on its way to it already, the next one gets that."""
        if not (popped := self._handed.pop(receiver, ())):
            return
        if self._stopped.is_set():
            self._spawn(self._give_back([each.message for each in popped]))
        else:
            self._kept.put_back(popped)
            self._look_again_at(min(each.late_at for each in popped))

    def release(self) -> None:
        """Let what was popped and not received be given out again at once."""
        if left := self._kept.empty():
            self._spawn(self._give_back(left))

    async def _give_back(self, messages: Sequence[ReceivedMessage]) -> None:
        """Let messages that nobody has received be given out again at once; that is no failed delivery."""
        gone = [
            self.requests.change_invisible(message, message.receipt, 1, undelivered=True)
            for message in messages
            if message.receipt
        ]
        await asyncio.gather(*gone, return_exceptions=True)

    # -- waiting -------------------------------------------------------------------------------------------------

    def _notification(self, source: Source) -> asyncio.Task[None]:
        """What ends when the source may have something. It goes on over the end of a receive, for the next one."""
        task = self._notifications.get(source)
        if task is None:
            task = self._notifications[source] = asyncio.get_running_loop().create_task(self._notified(source))
        return task

    async def _notified(self, source: Source) -> None:
        """Ends when the source may have something, and after a pause where it could not be asked."""
        try:
            await self.requests.notify(source)
        except RayMQError as error:
            _log.debug("notification of %s: %s", source, error)
        except BaseException as error:
            if is_meant(error):
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
