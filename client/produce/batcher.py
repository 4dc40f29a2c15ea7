"""Gather messages for `linger` seconds, so that many are sent in one append.

A caller's thread only adds its message to the open batch of its topic. The connection's event loop takes batches that
are full or old enough, encodes each in one step and sends it. Back-pressure counts the bytes of the batches that are
taken and have no response yet.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal

from raymq.actors.errors import (
    BrokerUnavailable,
    BufferFull,
    ClientClosed,
    InvalidInput,
    NotStored,
    OutcomeUnknown,
    PermissionDenied,
    RayMQError,
    ServerBusy,
    TopicNotFound,
)
from raymq.actors.protocol import MessageQueue
from raymq.actors.sending.send_plan import SendParameters, is_unanswered
from raymq.actors.sending.sender import RecordSender, queue_of_sharding_key
from raymq.actors.sending.topic_creation import auto_create_topic
from raymq.client.connection import Connection
from raymq.client.message import Message, key_numbers
from raymq.client.produce.body_limits import BodyLimits, find_oversized
from raymq.client.produce.message_batch import MakeOutcomes, MessageBatch, OpenBatches, Outcome, PendingResult
from raymq.client.produce.message_encoder import encode_messages, packed_host
from raymq.client.produce.ordered_queue_sender import Encoded, KeyedMutex, OrderedQueueSender
from raymq.client.produce.outbox import QUEUE_ERRORS, belongs_in_outbox
from raymq.client.produce.sent_results import results_of

#: A batch of this size is sent at once.
BATCH_BYTES: Final = 1 << 20
#: The approximate size of a record without its body, used only for the bounds.
_OVERHEAD_BYTES: Final = 192

#: How many seconds the loop waits for the lock at once. A signal handler that waits for the loop may keep it.
_LOCK_SECONDS: Final = 0.02

#: The key of an open batch: a topic, or a topic, the terms and whether each message has a sharding key.
_Key = str | tuple[str, SendParameters, bool]
#: Messages whose order is kept across all terms: a topic's messages to one queue, or with None those with sharding
#: keys.
_Lane = tuple[str, MessageQueue | None]
#: Stores batches of a topic, each with its terms, to be sent later, and marks the error of their send accordingly.
Keep = Callable[[str, Sequence[tuple[bytearray, SendParameters]], RayMQError], Awaitable[None]]


class Batcher:
    """The open and unsent batches of one producer. Any thread may call `add` and `flush`."""

    def __init__(
        self,
        mq: Connection,
        sends: RecordSender,
        usual_terms: SendParameters,
        *,
        linger: float,
        buffer_bytes: int,
        when_full: Literal["block", "raise"],
        owner: object = None,
        keep: Keep | None = None,
    ) -> None:
        """Initialize the batcher.

        Args:
            linger: how many seconds a batch is gathered.
            when_full: what happens to a message while `buffer_bytes` or more wait for responses.
            owner: an object that has to be closed. The batcher refers to it, and the loop refers to the batcher while
                messages are gathered or in flight, so the owner is not garbage-collected meanwhile.
            keep: stores batches that `sends` could not send.
        """
        self._mq = mq
        self._owner = owner
        self._sends = sends
        self._keep = keep
        self._usual_terms = usual_terms
        self._linger = linger
        self._buffer_bytes = buffer_bytes
        self._batch_bytes = min(BATCH_BYTES, buffer_bytes)
        self._limits = BodyLimits(mq)
        self._block = when_full == "block"
        #: Reentrant: a signal handler may close the producer on the thread that it has interrupted here.
        self._lock = threading.RLock()
        self._answered = threading.Condition(self._lock)
        #: The open batches. Messages can be sent together if they have the same topic and terms, and all or none of
        #: them have a sharding key. The topic alone is the key of messages without sharding keys on the usual terms.
        self.open = OpenBatches(PendingResult, _OVERHEAD_BYTES, self._batch_bytes)
        #: The last batch of each lane, for messages whose order is kept. The lane's earlier batches are taken.
        self._last: dict[_Lane, MessageBatch] = {}
        #: The batches that the loop is not sending yet.
        self._gathered: set[MessageBatch] = set()
        self._taken_bytes = 0
        self._closed = False
        #: The batches that the loop is sending.
        self._sending: dict[MessageBatch, asyncio.Task[None]] = {}
        #: Sends the batches of one queue one after the other: the order of sending is the order of delivery.
        self._lines = OrderedQueueSender(self._store, BATCH_BYTES)
        #: By topic: the batches choose queues for their sharding keys one after the other, even if one takes longer
        #: than the next.
        self._choosing: KeyedMutex[str] = KeyedMutex()
        #: The batches that have not chosen queues for their sharding keys.
        self._choosers: set[MessageBatch] = set()
        self._ends = False

    def add(
        self, message: Message, terms: SendParameters | None = None, sharding_key: str | None = None
    ) -> PendingResult:
        """Add a message to its batch, after `open.add` has not done so.

        Args:
            terms: the terms without the sharding key; None = the usual ones.
            sharding_key: the message's sharding key, if it has one.

        Raises:
            BufferFull: there was no room for the message, at once or within its time budget.
            ClientClosed: `close` was called.
        """
        topic = message.topic
        key = topic if terms is None else (topic, terms, sharding_key is not None)
        size = len(message.body) + _OVERHEAD_BYTES
        with self._lock:
            if self._taken_bytes >= self._buffer_bytes:
                self._wait_for_room((terms or self._usual_terms).timeout)
            while True:
                if self._closed:
                    raise ClientClosed("the producer is closed")
                batch = self.open.get(key)
                if batch is None or batch.is_taken:
                    batch = self._begin(key, topic, terms)
                index = batch.count
                delivery = PendingResult(batch, index)
                # Interrupts, signal handlers and other threads run only after calls. From here to the end of the loop
                # there is one call, its last step. So they find either nothing of this message or all of it.
                if batch.count != index or batch.is_taken:
                    continue
                batch.count = index + 1
                batch.bytes += size
                if sharding_key is not None:
                    batch.sharding_keys += (sharding_key,)
                batch.messages.append(message)
                break
            if batch.bytes >= self._batch_bytes:
                self._take(batch)
        return delivery

    def _begin(self, key: _Key, topic: str, terms: SendParameters | None) -> MessageBatch:
        """Open a batch, which the loop takes in time even if the caller is interrupted.

        The lock must be held.
        """
        batch = MessageBatch(topic, terms or self._usual_terms, self._mq.callbacks)
        if self._closed:  # by a signal handler, just now
            raise ClientClosed("the producer is closed")
        self._gathered.add(batch)
        try:
            self._mq.loop.call_soon_threadsafe(self._close_later, key, batch)
        except RuntimeError:  # a signal handler has closed the connection
            raise ClientClosed("the connection to the cluster was closed") from None
        lane = _lane(key)
        if lane is not None:
            if (before := self._last.get(lane)) is not None:
                self._take(before)  # later messages on its terms come after this batch
            self._last[lane] = batch
        self.open[key] = batch
        return batch

    @property
    def buffered_messages(self) -> int:
        """Return the number of messages that are gathered or have no response. Any thread."""
        return sum(batch.count for batch in [*self._gathered.copy(), *self._sending.copy()])

    def flush(self, timeout: float) -> bool:
        """Send the gathered messages and wait for the responses.

        Return False if some are missing after `timeout` seconds. Messages that other threads send from now on are not
        awaited.
        """
        with self._lock:
            gathered = list(self._gathered)
            for batch in gathered:
                self._take(batch)
            pending = [
                *gathered,
                *list(self._sending),
            ]  # a batch only moves from left to right
            return self._answered.wait_for(lambda: all(batch.done for batch in pending), timeout)

    def begin_close(self) -> None:
        """Accept no further messages, and send the gathered ones at once."""
        with self._lock:
            self._closed = True
            self._answered.notify_all()
            for batch in list(self._gathered):
                self._take(batch)

    def close(self, timeout: float) -> bool:
        """Accept no further messages, and do `flush`."""
        self.begin_close()
        return self.flush(timeout)

    def _wait_for_room(self, timeout: float) -> None:
        """Wait for room in the buffer.

        The lock must be held. It is released while waiting.
        """
        if self._on_the_loop():
            return  # a callback of a result would wait for itself
        if not self._block or not self._answered.wait_for(self._has_room, timeout):
            raise BufferFull(f"{self._taken_bytes} bytes are waiting for their brokers' answers")
        if self._closed:
            raise ClientClosed("the producer was closed")

    def _has_room(self) -> bool:
        return self._closed or self._taken_bytes < self._buffer_bytes

    def _on_the_loop(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._mq.loop
        except RuntimeError:
            return False

    def _take(self, batch: MessageBatch) -> None:
        """Hand a batch to the loop. The lock must be held.

        Batches are sent in the order in which they are taken.
        """
        if not batch.is_taken:
            batch.is_taken = True  # first: until then messages are added without the lock
            self._taken_bytes += batch.bytes
            self.open.is_full = self._taken_bytes >= self._buffer_bytes
        with contextlib.suppress(RuntimeError):  # a signal handler has sent it and closed the connection
            self._mq.loop.call_soon_threadsafe(self._start, batch)

    # -- on the event loop ---------------------------------------------------------------------------------------

    async def end(self) -> None:
        """Wait until all batches have been given to `sends`, after `close`.

        By then `sends` sends nothing more and stores what it is given.
        """
        self._ends = True
        while self._sending:
            waited_for = [task for batch, task in self._sending.items() if batch not in self._choosers]
            if not waited_for:  # the batches before them are stored first, then these one by one
                waited_for = [next(iter(self._sending.values()))]
                waited_for[0].cancel()
            await asyncio.wait(waited_for)
            await asyncio.sleep(0)  # let `_ended` run, too

    def _close_later(self, key: _Key, batch: MessageBatch) -> None:
        self._mq.loop.call_later(self._linger, self._locked, self._close, key, batch)

    def _locked(self, work: Callable[..., None], *arguments: Any) -> None:
        """Do some work with the lock, later if the lock is not free soon."""
        if self._lock.acquire(timeout=_LOCK_SECONDS):
            try:
                work(*arguments)
            finally:
                self._lock.release()
        else:
            self._mq.loop.call_later(_LOCK_SECONDS, self._locked, work, *arguments)

    def _close(self, key: _Key, batch: MessageBatch) -> None:
        # Also if it is taken: the thread that took it may have been interrupted before the loop was notified.
        if batch in self._gathered:
            self._take(batch)
        if self.open.get(key) is batch:
            del self.open[key]
        lane = _lane(key)
        if lane is not None and self._last.get(lane) is batch:
            del self._last[lane]

    def _start(self, batch: MessageBatch) -> None:
        if batch not in self._gathered:
            return
        task = self._sending[batch] = self._mq.loop.create_task(self._send(batch))
        self._gathered.discard(batch)
        task.add_done_callback(partial(self._ended, batch))

    async def _send(self, batch: MessageBatch) -> None:
        try:
            if not batch.messages:  # the thread that opened it was interrupted
                batch.finish(tuple)
            elif batch.sharding_keys:
                await self._send_by_key(batch)
            else:
                terms = batch.terms
                deadline = 0.0 if terms.queue is None else time.monotonic() + terms.timeout
                batch.finish(await self._send_together(batch.messages, terms, deadline))
        except asyncio.CancelledError:
            batch.fail(OutcomeUnknown("closed before an answer came"))
            raise
        except Exception as error:  # noqa: BLE001 - any error is the outcome of the batch
            batch.fail(error)

    def _ended(self, batch: MessageBatch, _: asyncio.Task[None]) -> None:
        del self._sending[batch]
        if not batch.done:  # the task was cancelled before it began
            batch.fail(ClientClosed("closed before it was sent"))
        self._locked(self._free_room, batch.bytes)

    def _free_room(self, size_bytes: int) -> None:
        self._taken_bytes -= size_bytes
        self.open.is_full = self._taken_bytes >= self._buffer_bytes
        self._answered.notify_all()

    async def _send_together(self, messages: list[Message], terms: SendParameters, deadline: float) -> MakeOutcomes:
        """Send messages of one topic to one queue.

        Return the function that makes their results.

        Args:
            deadline: if `terms` fix a queue, the monotonic time until which the messages may wait and be sent.
        """
        encoded = self._encode(messages)
        if terms.queue is None:
            return await self._store(messages, encoded, terms)
        return await self._lines.send(terms.queue, messages, encoded, terms, deadline)

    def _encode(self, messages: list[Message]) -> Encoded:
        numbers = key_numbers(messages)
        return numbers, *encode_messages(messages, numbers, packed_host(self._mq.pool.local_host))

    async def _store(self, messages: list[Message], encoded: Encoded, terms: SendParameters) -> MakeOutcomes:
        """Send messages whose turn has come. Oversized messages fail alone."""
        numbers, records, sizes = encoded
        topic, queue = messages[0].topic, terms.queue
        limit = self._limits.known(topic, queue)
        long = {} if limit is None or int(sizes.max()) <= limit else find_oversized(messages, limit)
        began = time.monotonic()
        if not long:
            try:
                sent = await self._sends.send(topic, records, sizes, terms)
            except InvalidInput:  # the broker's limit was not known, or has changed
                if len(messages) > 1:
                    limit = await self._limits.learn(topic, queue, _left(terms, began), fresh=True)
                    long = {} if limit is None else find_oversized(messages, limit)
                if not long:
                    raise
            else:
                return lambda: results_of(sent, numbers)
        places = [place for place in range(len(messages)) if place not in long]
        if not places:
            return lambda: list(long.values())
        others = [messages[place] for place in places]
        terms = replace(terms, timeout=_left(terms, began))
        stored: MakeOutcomes | RayMQError
        try:
            stored = await self._store(others, self._encode(others), terms)
        except RayMQError as error:
            stored = error

        def outcomes() -> list[Outcome]:
            results = [stored] * len(places) if isinstance(stored, RayMQError) else stored()
            all_of_them: dict[int, Outcome] = {**long, **dict(zip(places, results, strict=True))}
            return [all_of_them[place] for place in range(len(messages))]

        return outcomes

    async def _queues(
        self, topic: str, terms: SendParameters, began: float, *, fresh: bool = False
    ) -> list[MessageQueue]:
        """Return the queues from which sharding keys choose.

        Raise NotStored, TopicNotFound or PermissionDenied if there are none. Looking up a route is not an attempt to
        send: it is repeated within the time budget of the send, which began at `began` by the monotonic clock. A name
        server that hangs gets only a share of the time, and a known route is used meanwhile.
        """
        plan = terms.plan(began)
        routes = self._mq.routes
        while True:
            tried_at = time.monotonic()
            try:
                try:
                    route = await routes.get(topic, fresh=fresh, timeout=plan.reach_timeout())
                except TopicNotFound:
                    route = await auto_create_topic(self._mq.pool, routes, topic, plan.reach_timeout())
                queues = routes.keyed(route) or routes.keyed(
                    await routes.get(topic, fresh=True, timeout=plan.reach_timeout())
                )
            except (BrokerUnavailable, ServerBusy) as error:
                # Only requests for a route or a topic can lack a response here: no message was sent.
                missed = BrokerUnavailable(topic, str(error)) if is_unanswered(error) else error
                wait = plan.failed(None, missed, time.monotonic() - tried_at)
                if wait is None:
                    raise plan.outcome() from error
                await asyncio.sleep(wait)
                continue
            if not queues:
                raise PermissionDenied(f"topic {topic} may not be written")
            return queues

    async def _send_by_key(self, batch: MessageBatch) -> None:
        """Split a batch by the queues of its sharding keys, and send the parts.

        Each part has its own outcome.
        """
        terms = batch.terms
        began = time.monotonic()
        deadline = began + terms.timeout
        everything = range(len(batch.sharding_keys))
        async with self._kept_if_refused(batch, everything), self._chooses(batch.topic, terms):
            queues = await self._queues(batch.topic, terms, began)
            self._choosers.discard(batch)
            sends = await self._begin_parts(batch, everything, queues, deadline, elsewhere=True)
        outcomes = await sends
        if refused := [index for index, outcome in outcomes.items() if isinstance(outcome, QUEUE_ERRORS)]:
            try:  # the route was stale: the keys belong to other queues now
                terms = replace(terms, timeout=max(0.0, deadline - time.monotonic()))
                async with self._kept_if_refused(batch, refused), self._chooses(batch.topic, terms):
                    queues = await self._queues(batch.topic, batch.terms, began, fresh=True)
                    self._choosers.discard(batch)
                    sends = await self._begin_parts(batch, refused, queues, deadline)
                outcomes |= await sends
            except RayMQError as error:
                outcomes |= dict.fromkeys(refused, error)
        batch.finish(lambda: [outcomes[index] for index in everything])

    async def _begin_parts(
        self,
        batch: MessageBatch,
        indices: Iterable[int],
        queues: list[MessageQueue],
        deadline: float,
        *,
        elsewhere: bool = False,
    ) -> Awaitable[dict[int, Outcome]]:
        """Start to send messages of a batch by their keys.

        Return an awaitable of the outcomes by index. `elsewhere` is as in `_send_part`.
        """
        members: dict[MessageQueue, list[int]] = {}
        for index in indices:
            members.setdefault(queue_of_sharding_key(queues, batch.sharding_keys[index]), []).append(index)
        parts = (self._send_part(batch, mine, queue, deadline, elsewhere=elsewhere) for queue, mine in members.items())
        sends = asyncio.gather(*parts, return_exceptions=True)
        try:
            await asyncio.sleep(0)  # let each part take its place behind the others of its queue
        except asyncio.CancelledError:
            sends.cancel()
            raise

        async def outcomes() -> dict[int, Outcome]:
            found: dict[int, Outcome] = {}
            for mine, result in zip(members.values(), await sends, strict=True):
                found |= zip(mine, [result] * len(mine) if isinstance(result, BaseException) else result, strict=True)
            return found

        return outcomes()

    async def _send_part(
        self, batch: MessageBatch, mine: Sequence[int], queue: MessageQueue, deadline: float, *, elsewhere: bool
    ) -> Sequence[Outcome]:
        """Send the messages of a batch whose keys belong to one queue.

        Failed messages go into the outbox with their keys, if there is one.

        Args:
            elsewhere: the caller sends messages that this queue does not accept to another queue, so they are not
                stored.
        """
        messages = [batch.messages[index] for index in mine]
        try:
            make_outcomes = await self._send_together(
                messages, replace(batch.terms, queue=queue, by_key=True), deadline
            )
            outcomes = list(make_outcomes())
        except RayMQError as error:
            outcomes = [error] * len(mine)
        if self._keep is not None:
            for failure in {id(each): each for each in outcomes if isinstance(each, RayMQError)}.values():
                if belongs_in_outbox(failure, batch.terms) and not (elsewhere and isinstance(failure, QUEUE_ERRORS)):
                    own_error = copy(failure)  # a copy: other messages share this error and may not be stored
                    its = [index for index, each in zip(mine, outcomes, strict=True) if each is failure]
                    with contextlib.suppress(RayMQError):
                        await self._keep_by_key(batch, own_error, its)
                    outcomes = [own_error if each is failure else each for each in outcomes]
        return outcomes

    @asynccontextmanager
    async def _kept_if_refused(self, batch: MessageBatch, indices: Sequence[int]) -> AsyncIterator[None]:
        """Store messages in the outbox by key if no queues can be found for them."""
        self._choosers.add(batch)
        try:
            yield
        except (NotStored, TopicNotFound, PermissionDenied) as error:
            self._choosers.discard(batch)
            await self._keep_by_key(batch, error, indices)
            raise
        except asyncio.CancelledError:
            if not self._ends or batch not in self._choosers:
                raise
            self._choosers.discard(batch)
            ended = NotStored("closed before the send began")
            await self._keep_by_key(batch, ended, indices)
            raise ended from None
        finally:
            self._choosers.discard(batch)

    async def _keep_by_key(self, batch: MessageBatch, error: RayMQError, indices: Iterable[int]) -> None:
        if self._keep is None:
            return
        by_key: dict[str, list[Message]] = {}
        for index in indices:
            by_key.setdefault(batch.sharding_keys[index], []).append(batch.messages[index])
        parts = [
            (self._encode(messages)[1], replace(batch.terms, sharding_key=sharding_key))
            for sharding_key, messages in by_key.items()
        ]
        await self._keep(batch.topic, parts, error)

    @asynccontextmanager
    async def _chooses(self, topic: str, terms: SendParameters) -> AsyncIterator[None]:
        """Wait for earlier batches of the topic to choose queues for their keys.

        Raise NotStored if that takes too long.
        """
        async with self._choosing.take(topic, terms.timeout) as in_time:
            if not in_time:
                raise NotStored("the timeout ended before the send began")
            yield


def _lane(key: _Key) -> _Lane | None:
    """Return the lane in which the messages of a batch keep their order.

    Return None if they are distributed over all queues.
    """
    if isinstance(key, str):
        return None
    topic, terms, have_sharding_keys = key
    return (topic, terms.queue) if have_sharding_keys or terms.queue is not None else None


def _left(terms: SendParameters, began: float) -> float:
    """Return how many seconds are left of a send's time, which began at `began`."""
    return max(0.0, terms.timeout - (time.monotonic() - began))
