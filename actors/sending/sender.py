"""Send over sockets: find the route, choose the queue, and try within one budget.

It is the only I/O of the producing side. `raymq.client.Producer` uses it in its own process, and so does the shared
producer actor. It runs on one event loop.
"""

from __future__ import annotations

import asyncio
import random
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from raymq.actors.errors import (
    BrokerUnavailable,
    PermissionDenied,
    ProtocolError,
    RayMQError,
    SequenceGap,
    TopicNotFound,
    WriteUnknown,
    queue_not_found,
)
from raymq.actors.protocol import MessageQueue, RecordPositions, SendStatus, TopicRoute
from raymq.actors.route_cache import MAX_TOPICS, RouteCache
from raymq.actors.sending.body_size import ALWAYS_READABLE_BYTES, body_limit, check_body_size, longest_body
from raymq.actors.sending.broker_prober import BrokerProber
from raymq.actors.sending.isolation import QueuePicker, SynchronizedIsolation, TryOutcome, make_isolation
from raymq.actors.sending.partition_sequence import HeldSequence, PartitionSequences
from raymq.actors.sending.send_counts import SendCounts
from raymq.actors.sending.send_plan import (
    SendParameters,
    SendPlan,
    is_refusal_by_broker,
    is_unanswered,
    is_unknown,
    was_never_sent,
)
from raymq.actors.sending.topic_creation import TopicCreator, auto_create_topic
from raymq.actors.wire.commands.append_commands import append_command, read_append_answer
from raymq.actors.wire.commands.append_one_commands import read_append_position
from raymq.actors.wire.connection_pool import ConnectionPool
from raymq.actors.wire.frame import Buffer, Command
from raymq.storage.records.java_hash import java_hash
from raymq.storage.records.producer_sequence import stamp
from raymq.storage.records.record import OFFSET_QUEUE_ID

Sizes = npt.NDArray[np.int32]
_QUEUE_ID = struct.Struct(">i")
#: The most queues that are tried for one without a batch in progress. A fixed queue is just tried again.
_PICKS = 2


class SendOutcome(NamedTuple):
    """The outcome of a send.

    `queue` is the queue that it was sent to, and `placed` the positions in the log (if delayed, in the schedule topic).
    `doubtful` are other brokers that may have stored the message as well, because a try there was not answered.
    """

    status: SendStatus
    queue: MessageQueue
    address: str
    placed: RecordPositions
    doubtful: tuple[str, ...] = ()

    def one(self) -> SingleSendOutcome:
        """Return the outcome of a send of one record."""
        topic, (queue_id,), (queue_offset,), (physical_offset,) = self.placed
        queue = self.queue
        if topic != queue.topic:
            queue = MessageQueue(topic, queue.broker, int(queue_id))
        return self.status, queue, self.address, int(queue_offset), int(physical_offset)


#: The position of one record: status, queue, the broker's address, queue offset and physical offset. A tuple costs less
#: than `SendOutcome`, and every message that is sent alone needs one.
SingleSendOutcome = tuple[SendStatus, MessageQueue, str, int, int]


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """A try that failed after `elapsed` seconds; `queue` is None if none was chosen."""

    queue: MessageQueue | None
    error: RayMQError
    elapsed: float


@dataclass(frozen=True, slots=True)
class PendingRetry:
    """A failed try that is followed by another one in `wait` seconds.

    `address` is that of the broker that was tried, if it is known.
    """

    queue: MessageQueue | None
    error: RayMQError
    wait: float
    address: str | None = None


@dataclass(slots=True)
class BatchSend:
    """A batch on its way, from try to try.

    Attributes:
        held: the sequence whose number the records have. An idempotent send keeps it as long as that queue may have
            stored the batch.
        last: the queue of the last try.
        stays: the last try may have stored the batch.
        is_renumbered: the batch got another number on the held queue, because the broker had lost the sequence.
        began: when the send began, by the monotonic clock.
    """

    topic: str
    records: bytearray
    sizes: Sizes
    terms: SendParameters
    plan: SendPlan
    held: HeldSequence | None = None
    last: MessageQueue | None = None
    stays: bool = False
    is_renumbered: bool = False
    began: float = field(default_factory=time.monotonic)

    def number(self) -> None:
        """Write the number of the held sequence into the records."""
        if self.held is not None:
            self.sizes = stamp(self.records, self.sizes, self.held.count.sequence(len(self.sizes)))

    def failed(self, tried: PendingRetry) -> None:
        """Record a failed try, and release the queue unless it may have stored the batch."""
        self.last, self.stays = tried.queue or self.last, is_unknown(tried.error)
        if self.held is None or self.plan.is_in_doubt:
            return
        if isinstance(tried.error, SequenceGap) and not self.is_renumbered:  # the broker lost the sequence
            self.is_renumbered = True
            self.held.count.begin_epoch()
            self.number()
        else:
            self.end(stored=False)

    def end(self, *, stored: bool) -> None:
        """Release the queue, if it is held.

        `stored`: the batch is in the log; False: it may be stored, or was not sent.
        """
        held, self.held, self.is_renumbered = self.held, None, False
        if held is not None and stored:
            held.stored(len(self.sizes))
        elif held is not None:
            held.end()


class RecordSender(Protocol):
    """A sender of records: a `Sender`, or a layer around one."""

    async def send(self, topic: str, records: bytearray, sizes: Sizes, terms: SendParameters) -> SendOutcome:
        """Send contiguous records of `topic`; see `Sender.send`."""


def make_sender(
    pool: ConnectionPool, routes: RouteCache, isolation: str | None, counts: SendCounts | None = None
) -> Sender:
    """Return a sender with that isolation strategy, which counts its sends in `counts`.

    Each sender starts its round robin at a random queue.
    """
    picker = QueuePicker(
        SynchronizedIsolation(make_isolation(isolation, time.monotonic)), start=random.randrange(1 << 16)
    )
    return Sender(pool, routes, picker, counts)


#: The most queues per topic that are remembered after their brokers have left the routes.
MAX_DEPARTED_QUEUES = 1_000


class Sender:
    """A sender of batches of records, each to one queue of one topic."""

    def __init__(
        self, pool: ConnectionPool, routes: RouteCache, picker: QueuePicker, counts: SendCounts | None = None
    ) -> None:
        self._pool = pool
        self.counts = counts
        self._routes = routes
        self._picker = picker
        self._listed: dict[str, tuple[TopicRoute, list[MessageQueue]]] = {}
        #: By topic: its queues, including those of brokers that have left its route.
        self._seen: dict[str, set[MessageQueue]] = {}
        #: With this many topics, those that the route cache has dropped are dropped here as well.
        self._most_topics = MAX_TOPICS
        #: Probes the brokers that did not answer.
        self.prober = BrokerProber(pool, picker.isolation)
        self._topics = TopicCreator(partial(auto_create_topic, pool, routes))
        self._sequences = PartitionSequences()

    async def send(self, topic: str, records: bytearray, sizes: Sizes, terms: SendParameters) -> SendOutcome:
        """Send contiguous records of `topic`, and return the outcome.

        `sizes` are the sizes of the records. The chosen queue's id is written into the records in place.

        Raises:
            InvalidInput, QueueNotFound, TopicNotFound, PermissionDenied: refused locally or by a broker; nothing is
                stored.
            NotStored, OutcomeUnknown: no tries or no time are left.
        """
        terms.check_time()
        return await self.resume(BatchSend(topic, records, sizes, terms, terms.plan()))

    async def resume(self, batch: BatchSend, begun: FailedAttempt | None = None) -> SendOutcome:
        """Make the tries of a send; raise as `send`.

        `begun` is a try that has failed elsewhere, or None.
        """
        counts = self.counts
        try:
            tried = None if begun is None else self.failed(batch.plan, begun)
            while True:
                if tried is not None:
                    batch.failed(tried)
                    await self.pause(tried)
                    if counts is not None:
                        counts.retried(batch.topic)
                outcome = await self.attempt(batch)
                if isinstance(outcome, SendOutcome):
                    batch.end(stored=True)
                    if counts is not None:
                        counts.stored(batch.topic, len(batch.sizes), time.monotonic() - batch.began)
                    return outcome
                tried = outcome
        except RayMQError as error:
            if counts is not None:
                counts.failed(batch.topic, len(batch.sizes), error)
            raise
        finally:
            batch.end(stored=False)

    async def pause(self, failed: PendingRetry) -> None:
        """Wait before the next try, or until the broker that was tried is connected."""
        if failed.address is None or not was_never_sent(failed.error):
            await asyncio.sleep(failed.wait)
        else:
            await self._pool.wait_for_connection(failed.address, failed.wait)

    async def attempt(self, batch: BatchSend) -> SendOutcome | PendingRetry:
        """Make one try within the batch's plan.

        Raise as `send` if it was the last one.
        """
        plan, terms = batch.plan, batch.terms
        began = time.monotonic()
        queue: MessageQueue | None = None
        host_and_port: str | None = None
        try:
            route = await self._route(plan, batch.topic, terms)
            queue = await self._queue(route, batch)
            host_and_port = route.addresses[queue.broker]
            if len(batch.records) > ALWAYS_READABLE_BYTES:
                await self._check_bodies(plan, route, queue, longest_body(batch.records, batch.sizes))
            command = self.build_append(queue, batch.records, batch.sizes, terms)
            began_try = time.monotonic()
            answer = await self._pool.request(
                host_and_port, command, plan.try_timeout(), eager=True, reach_timeout=plan.reach_timeout()
            )
            sent = self.answered(queue, host_and_port, answer, len(batch.sizes), time.monotonic() - began_try)
        except RayMQError as error:
            return self.failed(plan, FailedAttempt(queue, error, time.monotonic() - began), host_and_port)
        if terms.require_send_ok and sent.status is not SendStatus.SEND_OK:
            again = plan.record_bad_status(queue, sent.status, time.monotonic() - began)
            if again is not None:
                return PendingRetry(queue, again, 0.0)
        return sent._replace(doubtful=tuple(sorted(plan.doubtful - {queue.broker}))) if plan.is_in_doubt else sent

    async def _queue(self, route: TopicRoute, batch: BatchSend) -> MessageQueue:
        """Return the queue of the next try.

        An idempotent batch holds its sequence then and has its number.

        Raises:
            BrokerUnavailable: the broker that may have stored the batch has left the routes, so no other one may
                receive it; or earlier batches of the queue take too long. Else the errors of `choose`.
        """
        if batch.held is None:
            queue = self.choose(route, batch.terms, batch.last, stays=batch.stays)
            if not batch.terms.idempotent:
                return queue
            held = self._sequences.hold(queue)
            try:
                async with asyncio.timeout(batch.plan.reach_timeout()):
                    await held.wait()
            except TimeoutError:
                raise BrokerUnavailable(queue.broker, "earlier batches of this queue are still under way") from None
            batch.held = held
            batch.number()
        queue = batch.held.count.queue
        if queue.broker not in route.addresses:
            raise BrokerUnavailable(queue.broker, "it has left the routes, and may have stored the batch")
        return queue

    async def _check_bodies(self, plan: SendPlan, route: TopicRoute, queue: MessageQueue, longest: int) -> None:
        """Raise InvalidInput if the queue's broker accepts no body of `longest` bytes.

        The limit is checked again with a fresh route before the error is raised.
        """
        if longest > body_limit(route, queue.broker):
            route = await self._routes.get(route.topic, fresh=True, timeout=plan.try_timeout())
            check_body_size(longest, body_limit(route, queue.broker))

    def isolated_brokers(self) -> list[str]:
        """Return the brokers that the picker avoids now. Any thread."""
        brokers = {queue.broker for _, queues in list(self._listed.values()) for queue in queues}
        return sorted(broker for broker in brokers if self._picker.isolation.rank(broker))

    def build_append(self, queue: MessageQueue, records: bytearray, sizes: Sizes, terms: SendParameters) -> Command:
        """Return the request that appends `records`. Any thread.

        It writes the queue id into the records.
        """
        _write_queue_ids(records, sizes, queue.queue_id)
        return append_command(
            queue.topic, queue.queue_id, records, sizes, delayed=terms.delayed, sequenced=terms.idempotent
        )

    def read_single_answer(
        self, queue: MessageQueue, host_and_port: str, answer: Buffer, elapsed: float
    ) -> SingleSendOutcome:
        """Return the outcome in an answer to APPEND_ONE, as `answered`. Any thread."""
        try:
            status, queue_offset, physical_offset = read_append_position(answer)
        except ProtocolError as error:
            raise _not_understood(queue, error) from error
        self._picker.isolation.report(queue.broker, TryOutcome.ANSWERED, elapsed * 1000)
        return status, queue, host_and_port, queue_offset, physical_offset

    def answered(
        self, queue: MessageQueue, host_and_port: str, answer: Command, records: int, elapsed: float
    ) -> SendOutcome:
        """Return the outcome in an answer to an append of so many records. Any thread.

        The answer arrived after `elapsed` seconds.

        Raises:
            WriteUnknown: the answer has no valid positions.
        """
        try:
            status, placed = read_append_answer(answer, records)
        except ProtocolError as error:
            raise _not_understood(queue, error) from error
        self._picker.isolation.report(queue.broker, TryOutcome.ANSWERED, elapsed * 1000)
        return SendOutcome(status, queue, host_and_port, placed)

    def failed(self, plan: SendPlan, tried: FailedAttempt, address: str | None = None) -> PendingRetry:
        """Count a failed try at that address; raise as `send` after the last one."""
        if tried.queue is not None:
            self._blame(tried.queue.broker, tried.error, tried.elapsed)
        wait = plan.failed(tried.queue, tried.error, tried.elapsed)
        if wait is not None:
            return PendingRetry(tried.queue, tried.error, wait, address)
        if plan.is_final_refusal(tried.error):
            if tried.queue is not None:
                tried.error.refused_by = tried.queue.broker
            raise tried.error
        raise plan.outcome() from tried.error

    def ready(self, topic: str, terms: SendParameters) -> tuple[MessageQueue, str, HeldSequence | None] | None:
        """Return the first try's queue, address, and held sequence.

        Return None if the first try has to wait: for a route, a connection, or earlier batches of the queue. Any
        thread.
        """
        route = None if terms.require_send_ok else self._routes.known(topic)
        if route is None:
            return None
        for _ in range(_PICKS if terms.idempotent else 1):
            try:
                queues = self._queues(route) if terms.queue is None and terms.sharding_key is None else None
                # A broker whose connection backs off is not connected.
                queue = self._picker.pick(queues) if queues else self.choose(route, terms, None)
            except RayMQError:
                return None  # a fresh route may have a queue
            address = route.addresses[queue.broker]
            if not self._pool.is_connected(address):
                return None
            if not terms.idempotent:
                return queue, address, None
            held = self._sequences.hold(queue)
            if held.take():
                return queue, address, held
        return None

    def choose(
        self, route: TopicRoute, terms: SendParameters, last: MessageQueue | None, *, stays: bool = False
    ) -> MessageQueue:
        """Return the queue of the next try, after `last` has just failed. Any thread.

        The route may be old, so the broker itself checks whether it has a queue that the caller has fixed.

        Args:
            stays: the failed try may have stored the message; with `same_broker` the next try goes to the same broker.

        Raises:
            QueueNotFound: the queue is fixed, and no writable broker of the topic can have it.
            BrokerUnavailable: the queue is fixed, or belongs to the sharding key, and its broker has left the routes.
            PermissionDenied: no queue is writable.
        """
        queues = self._queues(route)
        if terms.queue is not None:
            if terms.queue in queues:
                return terms.queue
            if route.forbids_write(terms.queue):
                raise PermissionDenied(f"{terms.queue} may not be written", code=PermissionDenied.wire_code)
            if terms.queue.broker in route.addresses and route.is_writable_on(terms.queue.broker):
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
        """Return the queue of a sharding key.

        Raise BrokerUnavailable if its broker has left the routes, because no other queue may take the key.
        """
        queues = self._routes.keyed(route)
        if not queues:
            raise PermissionDenied(f"topic {route.topic} may not be written", code=PermissionDenied.wire_code)
        queue = queue_of_sharding_key(queues, sharding_key)
        if queue.broker not in route.addresses:
            raise BrokerUnavailable(queue.broker, "it has left the routes")
        return queue

    async def _route(self, plan: SendPlan, topic: str, terms: SendParameters) -> TopicRoute:
        """Return the topic's route.

        It is fetched again after a failure, and before the sender reports that a queue does not exist.
        """
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
        """Return the route's writable queues, cached because listing them costs more than a send."""
        known = self._listed.get(route.topic)
        if known is None or known[0] is not route:
            if known is None and len(self._listed) >= self._most_topics:
                self._forget_unused()
            known = self._listed[route.topic] = (route, route.writable())
            departed = {queue for queue in self._seen.get(route.topic, ()) if queue.broker not in route.addresses}
            self._seen[route.topic] = {*sorted(departed)[-MAX_DEPARTED_QUEUES:], *known[1]}
            for broker, address in route.addresses.items():
                self.prober.set_address(broker, address)
        return known[1]

    def _forget_unused(self) -> None:
        """Drop topics that the route cache has dropped. Any thread."""
        for topic in list(self._listed):
            if not self._routes.knows(topic):
                self._listed.pop(topic, None)
                self._seen.pop(topic, None)
                self._picker.forget(topic)
        self._most_topics = max(MAX_TOPICS, 2 * len(self._listed))

    def _blame(self, broker: str, error: RayMQError, elapsed: float) -> None:
        if is_unanswered(error) or was_never_sent(error):
            outcome = TryOutcome.SILENT
        else:
            is_at_fault = is_refusal_by_broker(error) and not isinstance(error, SequenceGap)
            outcome = TryOutcome.REFUSED if is_at_fault else TryOutcome.ANSWERED
        self._picker.isolation.report(broker, outcome, elapsed * 1000)
        if outcome is TryOutcome.SILENT:
            self.prober.wake()


def _not_understood(queue: MessageQueue, error: ProtocolError) -> WriteUnknown:
    """Return the error for an answer without valid positions: the records may be stored."""
    return WriteUnknown(f"{queue.broker}: {error}")


def queue_of_sharding_key(queues: Sequence[MessageQueue], sharding_key: str) -> MessageQueue:
    """Return the queue of messages with that sharding key.

    It is the same queue as long as `queues` are the same.
    """
    return queues[abs(java_hash(sharding_key)) % len(queues)]


def write_queue_id(record: bytearray, queue_id: int) -> None:
    """Write the queue id into a record; the body's CRC does not cover it."""
    _QUEUE_ID.pack_into(record, OFFSET_QUEUE_ID, queue_id)


def _write_queue_ids(records: bytearray, sizes: Sizes, queue_id: int) -> None:
    if len(sizes) == 1:
        write_queue_id(records, queue_id)
        return
    starts = np.cumsum(sizes, dtype=np.int64) - sizes
    fields = np.ndarray((len(records) - _QUEUE_ID.size + 1,), ">i4", records, strides=(1,))
    fields[starts + OFFSET_QUEUE_ID] = queue_id
