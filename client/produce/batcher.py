"""Gathering messages for `linger` seconds, so that many travel in one append.

A caller's thread only puts its message into the open batch of its topic. The connection's event loop takes batches that
are full or old enough, encodes each in one step and sends it. Back-pressure counts the bytes of the batches that are
taken and not answered yet.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Final, Literal

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
from raymq.actors.sending.send_plan import is_unanswered
from raymq.actors.sending.sender import Sends, Terms, queue_of_sharding_key
from raymq.actors.sending.topic_creation import make_topic
from raymq.client.connection import Connection
from raymq.client.message import Message, key_numbers
from raymq.client.produce.body_limits import BodyLimits, too_long_ones
from raymq.client.produce.encoding import encode_messages, packed_host
from raymq.client.produce.frames import is_within
from raymq.client.produce.message_batch import MakeOutcomes, MessageBatch, Outcome, PendingResult
from raymq.client.produce.outbox import NOT_THAT_QUEUE, is_to_be_kept
from raymq.client.produce.queue_lines import Encoded, QueueLines
from raymq.client.produce.sent_results import results_of
from raymq.client.produce.turns import KeyedTurns

#: A batch that holds this much is sent at once.
BATCH_BYTES: Final = 1 << 20
#: What a record has beside its body, roughly; only for the bounds.
_OVERHEAD_BYTES: Final = 192

#: A topic; or a topic, the terms, and whether each message has a sharding key.
_Key = str | tuple[str, Terms, bool]
#: What keeps its order over all terms: a topic's messages to one queue; with None those with sharding keys.
_Lane = tuple[str, MessageQueue | None]
#: Puts batches of a topic where they are sent from later, each on its terms, and says so in the error of their send.
Keep = Callable[[str, Sequence[tuple[bytearray, Terms]], RayMQError], Awaitable[None]]


class Batcher:
    """One producer's. `add` and `flush` from any thread."""

    def __init__(
        self,
        mq: Connection,
        sends: Sends,
        usual_terms: Terms,
        *,
        linger: float,
        buffer_bytes: int,
        when_full: Literal["block", "raise"],
        owner: object = None,
        keep: Keep | None = None,
    ) -> None:
        """`linger` in seconds; `when_full` is what happens to a message once `buffer_bytes` wait for answers.

        `owner`, which has to be closed, lives for as long as something is gathered or under way: the loop has this
        batcher then, also if nobody else has.

        `keep`: what `sends` does with batches that it could not send.
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
        #: A signal handler may send, too, on the thread that it has interrupted here.
        self._lock = threading.RLock()
        self._answered = threading.Condition(self._lock)
        #: What can travel together: a topic's messages on the same terms, all with a sharding key or none; by the topic
        #: alone those without on the usual terms.
        self._open: dict[_Key, MessageBatch] = {}
        #: Of those whose order counts: a lane's last one. What is before it is taken.
        self._last: dict[_Lane, MessageBatch] = {}
        #: The batches that the loop does not send yet.
        self._gathered: set[MessageBatch] = set()
        self._taken_bytes = 0
        self._closed = False
        #: Those that it sends.
        self._sending: dict[MessageBatch, asyncio.Task[None]] = {}
        #: What goes to one queue goes one after the other: order of sending is order of delivery.
        self._lines = QueueLines(self._store, BATCH_BYTES)
        #: By topic: keys get their queues one batch after the other, though it may take one longer than the next.
        self._choosing: KeyedTurns[str] = KeyedTurns()
        #: Those whose keys have no queues yet.
        self._choosers: set[MessageBatch] = set()
        self._ends = False

    def add(self, message: Message, terms: Terms | None = None, sharding_key: str | None = None) -> PendingResult:
        """Put a message into its batch.

        Args:
            terms: without a sharding key; None = the usual ones.

        Raises:
            BufferFull: there was no room for it, at once or within its budget.
            ClientClosed: `close` was called.
        """
        topic = message.topic
        key = topic if terms is None else (topic, terms, sharding_key is not None)
        size = len(message.body) + _OVERHEAD_BYTES
        with self._lock:
            if self._closed:
                raise ClientClosed("the producer is closed")
            if self._taken_bytes >= self._buffer_bytes:
                self._wait_for_room((terms or self._usual_terms).timeout)
            while True:
                batch = self._open.get(key)
                if batch is None or batch.is_taken:
                    batch = self._begin(key, topic, terms)
                index = batch.count
                delivery = PendingResult(batch, index)
                # Interrupts and signal handlers come behind calls, and from here to the end of the loop there is one,
                # its last step. A handler that sends or closes finds nothing of this message or all of it, and so does
                # who was interrupted.
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

    def _begin(self, key: _Key, topic: str, terms: Terms | None) -> MessageBatch:
        """With the lock held: a batch, which the loop takes in its time, whatever becomes of who has begun it."""
        batch = MessageBatch(topic, terms or self._usual_terms, self._mq.callbacks)
        self._gathered.add(batch)
        self._mq.loop.call_soon_threadsafe(self._close_later, key, batch)
        lane = _lane(key)
        # A signal handler may begin one, too: whichever is the lane's last one is so in one step.
        while lane is not None and (before := self._last.setdefault(lane, batch)) is not batch:
            self._take(before)  # whatever is sent to it on its terms from now on is behind this one
            self._take(self._last.pop(lane))
        self._open[key] = batch
        return batch

    def flush(self, timeout: float) -> bool:
        """Send what was gathered and wait for the answers; False if they are not all there after `timeout` seconds.

        What other threads send from now on is not waited for.
        """
        with self._lock:
            gathered = list(self._gathered)
            for batch in gathered:
                self._take(batch)
            pending = [*gathered, *list(self._sending)]  # first the former: none is in neither as it goes over
            return self._answered.wait_for(lambda: all(batch.done for batch in pending), timeout)

    def begin_close(self) -> None:
        """Take nothing more; what was gathered is sent at once."""
        with self._lock:
            self._closed = True
            self._answered.notify_all()
            for batch in list(self._gathered):
                self._take(batch)

    def close(self, timeout: float) -> bool:
        """Take nothing more, and `flush`."""
        self.begin_close()
        return self.flush(timeout)

    @property
    def is_interrupted(self) -> bool:
        """Whether the calling thread has the lock, as a signal handler finds it that has interrupted a call of this.

        It must not wait for the lock then.
        """
        return is_within(inspect.currentframe(), _LOCKING, self)

    def _wait_for_room(self, timeout: float) -> None:
        """With the lock held; it is free while waiting."""
        if self._on_the_loop():
            return  # a delivery's callback: it would wait for itself
        if not self._block or not self._answered.wait_for(self._has_room, timeout):
            raise BufferFull(f"{self._taken_bytes} bytes wait for their brokers' answers")
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
        """Hand a batch to the loop, with the lock held: batches are sent in the order in which they were taken."""
        if not batch.is_taken:
            batch.is_taken, self._taken_bytes = True, self._taken_bytes + batch.bytes
        self._mq.loop.call_soon_threadsafe(self._start, batch)

    # -- on the event loop ---------------------------------------------------------------------------------------

    async def end(self) -> None:
        """Once it is closed, and `sends` sends nothing more and keeps what it is given: see that it is given all."""
        self._ends = True
        while self._sending:
            waited_for = [task for batch, task in self._sending.items() if batch not in self._choosers]
            if not waited_for:  # what was before them is kept before them, and each before the next one
                waited_for = [next(iter(self._sending.values()))]
                waited_for[0].cancel()
            await asyncio.wait(waited_for)
            await asyncio.sleep(0)  # `_ended`, too

    def _close_later(self, key: _Key, batch: MessageBatch) -> None:
        self._mq.loop.call_later(self._linger, self._close, key, batch)

    def _close(self, key: _Key, batch: MessageBatch) -> None:
        with self._lock:
            if (
                batch in self._gathered
            ):  # also one that was taken: its taker may have been interrupted before this had it
                self._take(batch)
            if self._open.get(key) is batch:
                del self._open[key]
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
            if not batch.messages:  # who has begun it was interrupted
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
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what became of the batch
            batch.fail(error)

    def _ended(self, batch: MessageBatch, _: asyncio.Task[None]) -> None:
        del self._sending[batch]
        if not batch.done:  # it was cancelled before it began
            batch.fail(ClientClosed("closed before it was sent"))
        with self._lock:
            self._taken_bytes -= batch.bytes
            self._answered.notify_all()

    async def _send_together(self, messages: Sequence[Message], terms: Terms, deadline: float) -> MakeOutcomes:
        """Send messages of one topic to one queue; returns what makes their results.

        Args:
            deadline: where `terms` fix a queue: the monotonic time until which they may wait and be sent.
        """
        encoded = self._encode(messages)
        if terms.queue is None:
            return await self._store(messages, encoded, terms)
        return await self._lines.send(terms.queue, messages, encoded, terms, deadline)

    def _encode(self, messages: Sequence[Message]) -> Encoded:
        numbers = key_numbers(messages)
        return numbers, *encode_messages(messages, numbers, packed_host(self._mq.pool.local_host))

    async def _store(self, messages: Sequence[Message], encoded: Encoded, terms: Terms) -> MakeOutcomes:
        """`_send_together` when it is their turn. Bodies that are too long for the brokers fail alone."""
        numbers, records, sizes = encoded
        topic, queue = messages[0].topic, terms.queue
        limit = self._limits.known(topic, queue)
        long = {} if limit is None or int(sizes.max()) <= limit else too_long_ones(messages, limit)
        began = time.monotonic()
        if not long:
            try:
                sent = await self._sends.send(topic, records, sizes, terms)
            except InvalidInput:  # by a broker whose limit was not known, or is another one by now
                if len(messages) > 1:
                    limit = await self._limits.learn(topic, queue, _left(terms, began), fresh=True)
                    long = {} if limit is None else too_long_ones(messages, limit)
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

    async def _queues(self, topic: str, terms: Terms, began: float, *, fresh: bool = False) -> list[MessageQueue]:
        """What its sharding keys choose from; NotStored, TopicNotFound, PermissionDenied.

        Looking for a route is no try: it is repeated within the budget of the send, which began then by the monotonic
        clock. A name server that hangs has its share: a route that is known serves all the same.
        """
        plan = terms.plan(began)
        routes = self._mq.routes
        while True:
            tried_at = time.monotonic()
            try:
                try:
                    route = await routes.get(topic, fresh=fresh, timeout=plan.reach_timeout())
                except TopicNotFound:
                    route = await make_topic(self._mq.pool, routes, topic, plan.reach_timeout())
                queues = routes.keyed(route) or routes.keyed(
                    await routes.get(topic, fresh=True, timeout=plan.reach_timeout())
                )
            except (BrokerUnavailable, ServerBusy) as error:
                # What has no answer here is a request for a route or a topic: no message was sent.
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
        """Part a batch by the queues that its sharding keys mean; each part has an outcome of its own."""
        terms = batch.terms
        began = time.monotonic()
        deadline = began + terms.timeout
        everything = range(len(batch.sharding_keys))
        async with self._kept_if_refused(batch, everything), self._chooses(batch.topic, terms):
            queues = await self._queues(batch.topic, terms, began)
            self._choosers.discard(batch)
            sends = await self._begin_parts(batch, everything, queues, deadline, elsewhere=True)
        outcomes = await sends
        if refused := [index for index, outcome in outcomes.items() if isinstance(outcome, NOT_THAT_QUEUE)]:
            try:  # the route was old: the keys mean other queues now
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
        """Begin to send some of a batch by their keys; what comes to the outcomes. `elsewhere` as in `_send_part`."""
        members: dict[MessageQueue, list[int]] = {}
        for index in indices:
            members.setdefault(queue_of_sharding_key(queues, batch.sharding_keys[index]), []).append(index)
        parts = (self._send_part(batch, mine, queue, deadline, elsewhere=elsewhere) for queue, mine in members.items())
        sends = asyncio.gather(*parts, return_exceptions=True)
        try:
            await asyncio.sleep(0)  # each part has gone its first step, to its place behind the others of its queue
        except asyncio.CancelledError:
            sends.cancel()
            raise

        async def outcomes() -> dict[int, Outcome]:
            found: dict[int, Outcome] = {}
            for mine, made in zip(members.values(), await sends, strict=True):
                found |= zip(mine, [made] * len(mine) if isinstance(made, BaseException) else made, strict=True)
            return found

        return outcomes()

    async def _send_part(
        self, batch: MessageBatch, mine: Sequence[int], queue: MessageQueue, deadline: float, *, elsewhere: bool
    ) -> Sequence[Outcome]:
        """Send those of a batch whose keys mean this queue. What an outbox has to keep it has with the keys.

        Args:
            elsewhere: what such a queue does not take the caller sends to another one.
        """
        messages = [batch.messages[index] for index in mine]
        try:
            made = await self._send_together(messages, replace(batch.terms, queue=queue, by_key=True), deadline)
            outcomes = list(made())
        except RayMQError as error:
            outcomes = [error] * len(mine)
        if self._keep is not None:
            for failure in {id(each): each for each in outcomes if isinstance(each, RayMQError)}.values():
                if is_to_be_kept(failure, batch.terms) and not (elsewhere and isinstance(failure, NOT_THAT_QUEUE)):
                    told = copy(failure)  # of what went along to the queue it is the error, too, and may not be kept
                    its = [index for index, each in zip(mine, outcomes, strict=True) if each is failure]
                    with contextlib.suppress(RayMQError):
                        await self._keep_by_key(batch, told, its)
                    outcomes = [told if each is failure else each for each in outcomes]
        return outcomes

    @asynccontextmanager
    async def _kept_if_refused(self, batch: MessageBatch, indices: Sequence[int]) -> AsyncIterator[None]:
        """Where no queues can be found for these of a batch, and so they are not sent, the outbox has them by key."""
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
            ended = NotStored("closed before it was its turn")
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
    async def _chooses(self, topic: str, terms: Terms) -> AsyncIterator[None]:
        """Behind the batches of its topic that look for their keys' queues; NotStored where that takes too long."""
        async with self._choosing.take(topic, terms.timeout) as in_time:
            if not in_time:
                raise NotStored("its time was over before it was its turn")
            yield


def _lane(key: _Key) -> _Lane | None:
    """Where the messages of such a batch keep their order; None: they are spread over all queues."""
    if isinstance(key, str):
        return None
    topic, terms, have_sharding_keys = key
    return (topic, terms.queue) if have_sharding_keys or terms.queue is not None else None


#: What has the lock on a program's thread.
_LOCKING: Final = {Batcher.add.__code__, Batcher.flush.__code__, Batcher.begin_close.__code__}


def _left(terms: Terms, began: float) -> float:
    """What is left of a send's time that began then, seconds."""
    return max(0.0, terms.timeout - (time.monotonic() - began))
