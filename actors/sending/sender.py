"""Sending over sockets: routes, queue choice, tries within one budget. The producing side's only I/O.

Used by `raymq.client.Producer` in its own process and by the shared producer actor. Runs on one event loop.
"""

from __future__ import annotations

import asyncio
import random
import struct
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from raymq.actors.errors import (
    BrokerUnavailable,
    NotStored,
    PermissionDenied,
    ProtocolError,
    RayMQError,
    SequenceGap,
    TopicNotFound,
    WriteUnknown,
    queue_not_found,
)
from raymq.actors.protocol import MessageQueue, Placed, SendStatus, TopicRoute
from raymq.actors.routing import MOST_TOPICS, Routes
from raymq.actors.sending.isolation import Outcome, make_isolation
from raymq.actors.sending.isolation.shared import Shared
from raymq.actors.sending.longest_body import READ_BY_ALL_BYTES, limit_of, longest_body, refuse_longer
from raymq.actors.sending.probing import Prober
from raymq.actors.sending.selection import QueuePicker
from raymq.actors.sending.send_plan import (
    SendPlan,
    is_refusal_by_broker,
    is_unanswered,
    is_unknown,
    never_arrived,
)
from raymq.actors.sending.topic_creation import TopicsUnderWay, make_topic
from raymq.actors.wire.commands.append import append_command, read_appended
from raymq.actors.wire.commands.append_one import read_place
from raymq.actors.wire.connection import ConnectionPool
from raymq.actors.wire.frame import Buffer, Command
from raymq.storage.records.java_hash import java_hash
from raymq.storage.records.record import OFFSET_QUEUE_ID

Sizes = npt.NDArray[np.int32]
#: Chooses a try's queue; returns it with the sizes of the records.
Address = Callable[[TopicRoute], Awaitable[tuple[MessageQueue, Sizes]]]

_QUEUE_ID = struct.Struct(">i")


class Sent(NamedTuple):
    """The outcome of a send: `queue` is where it was sent, `placed` where it lies (delayed: the schedule topic).

    `doubtful` are other brokers that may hold it, too, because a try there was left unanswered.
    """

    status: SendStatus
    queue: MessageQueue
    address: str
    placed: Placed
    doubtful: tuple[str, ...] = ()

    def one(self) -> SentOne:
        """Of a send of one record."""
        topic, (queue_id,), (queue_offset,), (physical_offset,) = self.placed
        queue = self.queue
        if topic != queue.topic:
            queue = MessageQueue(topic, queue.broker, int(queue_id))
        return self.status, queue, self.address, int(queue_offset), int(physical_offset)


#: Where one record lies: status, queue, the broker's address, queue offset and physical offset. It costs less than
#: `Sent`, for there are as many of them as messages that are sent alone.
SentOne = tuple[SendStatus, MessageQueue, str, int, int]


@dataclass(frozen=True, slots=True)
class Terms:
    """How one send is made.

    Attributes:
        timeout: the one budget of all tries, seconds; 0 where it is used up already.
        retries: further tries after the first.
        queue, sharding_key: fix the queue; every try goes there.
        same_broker: a try behind one that may have stored something stays on its broker.
        delayed: the records carry a DELAY property and wait in the schedule topic first.
        insist_on_ok: a status other than SEND_OK is tried again elsewhere, too.
        by_key: `queue` is what sharding keys mean by a route. The caller finds another one where it takes nothing, and
            keeps with its keys what is to be kept.
        waits: a try that surely stored nothing is repeated while there is time, and does not count against `retries`;
            False: every try counts.
    """

    timeout: float
    retries: int
    queue: MessageQueue | None = None
    sharding_key: str | None = None
    same_broker: bool = False
    delayed: bool = False
    insist_on_ok: bool = False
    by_key: bool = False
    waits: bool = True

    def plan(self, began: float | None = None, *, repeats_are_recognised: bool = False) -> SendPlan:
        """The plan of a send that began then by the monotonic clock, None: that begins now."""
        left = self.timeout if began is None else began + self.timeout - time.monotonic()
        return SendPlan(
            time.monotonic,
            left,
            self.retries,
            queue_is_given=self.queue is not None,
            repeats_are_recognised=repeats_are_recognised,
            waits=self.waits,
        )

    def check_time(self) -> None:
        """NotStored if the budget was used up before the first try."""
        if self.timeout <= 0.0:
            raise NotStored("its time was over before it was its turn")

    def without_sharding_key(self) -> Terms:
        """The same for messages of any key."""
        return self if self.sharding_key is None else replace(self, sharding_key=None)


@dataclass(frozen=True, slots=True)
class Tried:
    """A try that failed after `elapsed` seconds; `queue` is None where none was chosen."""

    queue: MessageQueue | None
    error: RayMQError
    elapsed: float


@dataclass(frozen=True, slots=True)
class Failed:
    """A try that failed, and after which there is another one in `wait` seconds.

    `address` is that of the broker that was tried, as far as it is known.
    """

    queue: MessageQueue | None
    error: RayMQError
    wait: float
    address: str | None = None

    @property
    def may_be_stored(self) -> bool:
        """Whether this very try may have stored the message."""
        return is_unknown(self.error)


class Sends(Protocol):
    """What sends records: a `Sender`, one that numbers its batches, or the shared actor elsewhere."""

    async def send(self, topic: str, records: bytearray, sizes: Sizes, terms: Terms) -> Sent:
        """Send contiguous records of `topic`; see `Sender.send`."""


def make_sender(pool: ConnectionPool, routes: Routes, isolation: str | None) -> Sender:
    """A sender with the isolation strategy of that name; each starts its round robin somewhere else."""
    picker = QueuePicker(Shared(make_isolation(isolation, time.monotonic)), start=random.randrange(1 << 16))
    return Sender(pool, routes, picker)


#: Of so many queues of a topic whose brokers have left the routes it is known that there were such queues.
MOST_LEFT = 1_000


class Sender:
    """Sends batches of records of one topic, each batch to one queue."""

    def __init__(self, pool: ConnectionPool, routes: Routes, picker: QueuePicker) -> None:
        self._pool = pool
        self._routes = routes
        self._picker = picker
        self._listed: dict[str, tuple[TopicRoute, list[MessageQueue]]] = {}
        #: Every topic's queues, those of brokers included that are not in its route any more.
        self._seen: dict[str, set[MessageQueue]] = {}
        #: Above so many topics it is looked at which of them nobody sends to any more.
        self._most_topics = MOST_TOPICS
        #: Asks brokers that were silent whether they are back.
        self.prober = Prober(pool, picker.isolation)
        self._topics = TopicsUnderWay(partial(make_topic, pool, routes))

    async def send(self, topic: str, records: bytearray, sizes: Sizes, terms: Terms) -> Sent:
        """Send contiguous records of `topic`; `sizes` of each. The chosen queue's id is written into them in place.

        Raises:
            InvalidInput, QueueNotFound, TopicNotFound, PermissionDenied: refused before or by a broker; nothing is
                stored.
            NotStored, OutcomeUnknown: the tries ran out.
        """
        terms.check_time()
        return await self.go_on(terms.plan(), None, topic, records, sizes, terms)

    async def go_on(
        self, plan: SendPlan, begun: Tried | None, topic: str, records: bytearray, sizes: Sizes, terms: Terms
    ) -> Sent:
        """The tries of a send of which one may have failed elsewhere; raises as `send`."""
        last: MessageQueue | None = None
        stays = False
        if begun is not None:
            failed = self.failed(plan, begun)
            last, stays = failed.queue, failed.may_be_stored
            await self.pause(failed)

        async def address(route: TopicRoute) -> tuple[MessageQueue, Sizes]:
            return self.choose(route, terms, last, stays=stays), sizes

        while True:
            tried = await self.attempt(plan, topic, address, records, terms)
            if isinstance(tried, Sent):
                return tried
            last, stays = tried.queue or last, tried.may_be_stored
            await self.pause(tried)

    async def pause(self, failed: Failed) -> None:
        """Wait before the next try; a connection to the broker that was tried ends the wait."""
        if failed.address is None or not never_arrived(failed.error):
            await asyncio.sleep(failed.wait)
        else:
            await self._pool.wait_for_news(failed.address, failed.wait)

    async def attempt(
        self,
        plan: SendPlan,
        topic: str,
        address: Address,
        records: bytearray,
        terms: Terms,
        *,
        sequenced: bool = False,
    ) -> Sent | Failed:
        """One try within `plan`; raises what `send` raises once there is no further one.

        Args:
            sequenced: the first record says which batch of its producer it begins.
        """
        began = time.monotonic()
        queue: MessageQueue | None = None
        host_and_port: str | None = None
        try:
            route = await self._route(plan, topic, terms)
            queue, sizes = await address(route)
            host_and_port = route.addresses[queue.broker]
            if len(records) > READ_BY_ALL_BYTES:
                await self._check_bodies(plan, route, queue, longest_body(records, sizes))
            command = self.addressed(queue, records, sizes, terms, sequenced=sequenced)
            began_try = time.monotonic()
            answer = await self._pool.request(
                host_and_port, command, plan.try_timeout(), eager=True, reach_timeout=plan.reach_timeout()
            )
            sent = self.answered(queue, host_and_port, answer, len(sizes), time.monotonic() - began_try)
        except RayMQError as error:
            return self.failed(plan, Tried(queue, error, time.monotonic() - began), host_and_port)
        if terms.insist_on_ok and sent.status is not SendStatus.SEND_OK:
            again = plan.not_ok(queue, sent.status, time.monotonic() - began)
            if again is not None:
                return Failed(queue, again, 0.0)
        return sent._replace(doubtful=tuple(sorted(plan.doubtful - {queue.broker}))) if plan.in_doubt else sent

    async def _check_bodies(self, plan: SendPlan, route: TopicRoute, queue: MessageQueue, longest: int) -> None:
        """InvalidInput where the queue's broker takes no body of `longest` bytes, also by a route of just now."""
        if longest > limit_of(route, queue.broker):
            route = await self._routes.get(route.topic, fresh=True, timeout=plan.try_timeout())
            refuse_longer(longest, limit_of(route, queue.broker))

    def addressed(
        self,
        queue: MessageQueue,
        records: bytearray,
        sizes: Sizes,
        terms: Terms,
        *,
        sequenced: bool = False,
    ) -> Command:
        """The request that appends `records`, which are told their queue. Any thread."""
        _address_to(records, sizes, queue.queue_id)
        return append_command(queue.topic, queue.queue_id, records, sizes, delayed=terms.delayed, sequenced=sequenced)

    def answered_one(self, queue: MessageQueue, host_and_port: str, answer: Buffer, elapsed: float) -> SentOne:
        """`answered` of APPEND_ONE. Any thread."""
        try:
            status, queue_offset, physical_offset = read_place(answer)
        except ProtocolError as error:
            raise _not_understood(queue, error) from error
        self._picker.isolation.report(queue.broker, Outcome.ANSWERED, elapsed * 1000)
        return status, queue, host_and_port, queue_offset, physical_offset

    def answered(self, queue: MessageQueue, host_and_port: str, answer: Command, records: int, elapsed: float) -> Sent:
        """What an answer says that took `elapsed` seconds, to so many records. Any thread.

        Raises:
            WriteUnknown: it does not say where they lie.
        """
        try:
            status, placed = read_appended(answer, records)
        except ProtocolError as error:
            raise _not_understood(queue, error) from error
        self._picker.isolation.report(queue.broker, Outcome.ANSWERED, elapsed * 1000)
        return Sent(status, queue, host_and_port, placed)

    def failed(self, plan: SendPlan, tried: Tried, address: str | None = None) -> Failed:
        """Count a failed try at that address; raises what `send` raises if it was the last one."""
        if tried.queue is not None:
            self._blame(tried.queue.broker, tried.error, tried.elapsed)
        wait = plan.failed(tried.queue, tried.error, tried.elapsed)
        if wait is not None:
            return Failed(tried.queue, tried.error, wait, address)
        if plan.is_final_refusal(tried.error):
            if tried.queue is not None:
                tried.error.refused_by = tried.queue.broker
            raise tried.error
        raise plan.outcome() from tried.error

    def ready(self, route: TopicRoute, terms: Terms) -> tuple[MessageQueue, str] | None:
        """A first try's queue and its broker's address, where that is connected. Any thread; raises as `choose`."""
        queues = self._queues(route) if terms.queue is None and terms.sharding_key is None else None
        # One that backs off is not connected.
        queue = self._picker.pick(queues) if queues else self.choose(route, terms, None)
        address = route.addresses[queue.broker]
        return (queue, address) if self._pool.is_connected(address) else None

    def choose(
        self, route: TopicRoute, terms: Terms, last: MessageQueue | None, *, stays: bool = False
    ) -> MessageQueue:
        """The queue of the next try; `last` is the one that just failed. Any thread.

        Whether a broker has a chosen queue it says itself: a route may be old.

        Args:
            stays: the try that failed may have stored the message: with `same_broker` the next one goes there, too.

        Raises:
            QueueNotFound: it is chosen, and no broker of the topic that may be written can have it.
            BrokerUnavailable: it is chosen, or its sharding key's, and its broker is not there now.
            PermissionDenied: there is none that may be written.
        """
        queues = self._queues(route)
        if terms.queue is not None:
            if terms.queue in queues:
                return terms.queue
            if route.forbids(terms.queue):
                raise PermissionDenied(f"{terms.queue} may not be written", code=PermissionDenied.wire_code)
            if terms.queue.broker in route.addresses and route.lets_write(terms.queue.broker):
                return terms.queue
            known = terms.queue in self._seen.get(route.topic, ()) or terms.queue in self._routes.keyed(route)
            if known and terms.queue.broker not in route.addresses:
                raise BrokerUnavailable(terms.queue.broker, "it has left the routes")
            raise queue_not_found(terms.queue)
        if not queues and terms.sharding_key is None:
            raise PermissionDenied(f"topic {route.topic} may not be written", code=PermissionDenied.wire_code)
        if terms.sharding_key is not None:
            return self._queue_of_key(route, terms.sharding_key)
        if terms.same_broker and stays and last is not None:
            return self._picker.pick([mine for mine in queues if mine.broker == last.broker] or queues)
        if last is None:
            queue = self._picker.pick(queues)
            if not self._pool.is_backing_off(route.addresses[queue.broker]):
                return queue
        due = [queue for queue in queues if not self._pool.is_backing_off(route.addresses[queue.broker])]
        return self._picker.pick(due or queues, last)

    def _queue_of_key(self, route: TopicRoute, sharding_key: str) -> MessageQueue:
        """Its queue; BrokerUnavailable if that is on a broker that is not there now, for no other one may have it."""
        queues = self._routes.keyed(route)
        if not queues:
            raise PermissionDenied(f"topic {route.topic} may not be written", code=PermissionDenied.wire_code)
        queue = queue_of_sharding_key(queues, sharding_key)
        if queue.broker not in route.addresses:
            raise BrokerUnavailable(queue.broker, "it has left the routes")
        return queue

    async def _route(self, plan: SendPlan, topic: str, terms: Terms) -> TopicRoute:
        """The topic's route, a fresh one after a failure, and before it is said that there is no such queue."""
        try:
            fresh = bool(plan.attempts) or plan.route_is_old
            route = await self._routes.get(topic, fresh=fresh, timeout=plan.reach_timeout())
        except TopicNotFound:
            route = await self._topics.made(topic, plan.reach_timeout())
        queues = self._queues(route)
        if not plan.attempts and (not queues if terms.queue is None else terms.queue not in queues):
            return await self._routes.get(topic, fresh=True, timeout=plan.reach_timeout())
        return route

    def _queues(self, route: TopicRoute) -> list[MessageQueue]:
        """The route's writable queues; listing them anew for every message would cost more than the send."""
        known = self._listed.get(route.topic)
        if known is None or known[0] is not route:
            if known is None and len(self._listed) >= self._most_topics:
                self._forget_unused()
            known = self._listed[route.topic] = (route, route.writable())
            left = {queue for queue in self._seen.get(route.topic, ()) if queue.broker not in route.addresses}
            self._seen[route.topic] = {*sorted(left)[-MOST_LEFT:], *known[1]}
            for broker, address in route.addresses.items():
                self.prober.know(broker, address)
        return known[1]

    def _forget_unused(self) -> None:
        """Topics that the routes have forgotten. Any thread."""
        for topic in list(self._listed):
            if not self._routes.knows(topic):
                self._listed.pop(topic, None)
                self._seen.pop(topic, None)
                self._picker.forget(topic)
        self._most_topics = max(MOST_TOPICS, 2 * len(self._listed))

    def _blame(self, broker: str, error: RayMQError, elapsed: float) -> None:
        if is_unanswered(error) or never_arrived(error):
            outcome = Outcome.SILENT
        else:
            is_at_fault = is_refusal_by_broker(error) and not isinstance(error, SequenceGap)
            outcome = Outcome.REFUSED if is_at_fault else Outcome.ANSWERED
        self._picker.isolation.report(broker, outcome, elapsed * 1000)
        if outcome is Outcome.SILENT:
            self.prober.wake()


def _not_understood(queue: MessageQueue, error: ProtocolError) -> WriteUnknown:
    """What an answer is from which nobody can tell where the records lie: they may be stored."""
    return WriteUnknown(f"{queue.broker}: {error}")


def queue_of_sharding_key(queues: Sequence[MessageQueue], sharding_key: str) -> MessageQueue:
    """Where messages with that key go, as long as the topic has these queues."""
    return queues[abs(java_hash(sharding_key)) % len(queues)]


def address_one(record: bytearray, queue_id: int) -> None:
    """Write the queue id into a record; the body's CRC does not cover it."""
    _QUEUE_ID.pack_into(record, OFFSET_QUEUE_ID, queue_id)


def _address_to(records: bytearray, sizes: Sizes, queue_id: int) -> None:
    if len(sizes) == 1:
        address_one(records, queue_id)
        return
    starts = np.cumsum(sizes, dtype=np.int64) - sizes
    fields = np.ndarray((len(records) - _QUEUE_ID.size + 1,), ">i4", records, strides=(1,))
    fields[starts + OFFSET_QUEUE_ID] = queue_id
