"""The engine of a push consumer: membership, assignment, fetching, listener calls, send-back, commits.

Runs on the connection's event loop; listeners run on a thread pool and hand their outcome back to the loop. One fetch
per broker covers all queues there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from raymq.actors.core.backoff import Backoff
from raymq.actors.core.fetching import Wanted
from raymq.actors.core.retry import DEFAULT_MAX_RECONSUME_TIMES
from raymq.actors.errors import MessageExpired, MessageNotFound, OffsetOutOfRange, RayMQError
from raymq.actors.naming import retry_topic
from raymq.actors.protocol import MessageQueue
from raymq.actors.wire import send as wire_send
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.connection import Connection as WireConnection
from raymq.actors.wire.frame import Command
from raymq.actors.wire.pull import MAX_ANSWER_BYTES, Fetched
from raymq.client import rebalance
from raymq.client.connection import Connection
from raymq.client.consumer_settings import ConsumerSettings, MessageModel
from raymq.client.fetching import address_of, fetch
from raymq.client.listener import ListenerRunner
from raymq.client.membership import Membership
from raymq.client.message import ReceivedMessage
from raymq.client.offsets import GroupOffsets
from raymq.client.process_queue import MAX_MESSAGES, ProcessQueue
from raymq.client.subscription import TagFilter
from raymq.storage.record import decode

REBALANCE_SECONDS = 20.0
_TICK_SECONDS = 1.0
_COMMIT_SECONDS = 0.5
_PARK_SECONDS = 15.0
_REQUEST_SECONDS = 5.0

_log = logging.getLogger(__name__)


class Consuming:
    """One running consumer. Made and used on the connection's loop, except where said."""

    def __init__(self, mq: Connection, settings: ConsumerSettings, runner: ListenerRunner) -> None:
        self._mq = mq
        self._settings = settings
        self._runner = runner
        self._client_id = f"{mq.pool.local_host}@{uuid.uuid4().hex}"
        self._clustering = settings.model is MessageModel.CLUSTERING
        self._filters = dict(settings.filters)
        if self._clustering:
            self._filters[retry_topic(settings.group)] = TagFilter.parse("*")
        self._membership = Membership(
            mq,
            self._client_id,
            settings.group,
            {topic: wanted.subscription(topic) for topic, wanted in settings.filters.items()},
            model=settings.model.value,
            start=settings.consume_from.value,
            clock=time.monotonic,
        )
        self._offsets = GroupOffsets(mq, settings.group)
        self._threads = ThreadPoolExecutor(settings.threads, thread_name_prefix=f"raymq-{settings.group}")
        self._queues: dict[MessageQueue, ProcessQueue] = {}
        self._committed: dict[MessageQueue, int] = {}
        self._fetchers: dict[str, asyncio.Task[None]] = {}
        self._changed: dict[str, asyncio.Event] = {}
        self._rebalance_now = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._returning: set[asyncio.Task[None]] = set()
        self._calls: set[Future[None]] = set()
        self._stopping = False

    async def start(self) -> None:
        """Join the group and fix the start positions.

        Raises:
            TopicNotFound, SubscriptionMismatch, BrokerUnavailable: it could not join.
        """
        for topic in self._settings.filters:
            await self._mq.routes.get(topic, fresh=True)
        await self._membership.heartbeat(strict=True)
        self._mq.listen(self._pushed)
        await self._share_out()
        self._spawn(self._keep_membership())
        self._spawn(self._keep_assignment())
        self._spawn(self._keep_committing())

    async def stop(self, timeout: float) -> None:
        """Let running listeners end (at most `timeout` seconds), commit, leave the group."""
        deadline = time.monotonic() + timeout
        self._stopping = True
        self._mq.unlisten(self._pushed)
        for task in [*self._fetchers.values(), *self._tasks]:
            task.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)
        while (self._calls or self._returning) and time.monotonic() < deadline:
            self._calls = {call for call in self._calls if not call.done()}
            await asyncio.sleep(0.01)
        await self._commit_all()
        await self._membership.leave()

    # -- membership and assignment --------------------------------------------------------------------------------

    async def _keep_membership(self) -> None:
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            with contextlib.suppress(RayMQError):
                await self._membership.heartbeat()

    async def _keep_assignment(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REBALANCE_SECONDS if self._queues else _TICK_SECONDS):
                    await self._rebalance_now.wait()
            self._rebalance_now.clear()
            try:
                if not await self._share_out():
                    await asyncio.sleep(_TICK_SECONDS)
                    self._rebalance_now.set()
            except RayMQError as error:
                _log.debug("rebalance: %s", error)
                await asyncio.sleep(_TICK_SECONDS)
                self._rebalance_now.set()

    def _pushed(self, _: WireConnection, command: Command) -> None:
        if (
            command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
            and command.fields.get("consumerGroup") == self._settings.group
        ):
            self._rebalance_now.set()

    async def _share_out(self) -> bool:
        """Take over what is ours now, let go of what is not; False if some of it has to be tried again."""
        members = await self._membership.members() if self._clustering else [self._client_id]
        if not members:
            return False
        mine: set[MessageQueue] = set()
        settled = self._membership.settled
        for topic in self._filters:
            try:
                queues = (await self._mq.routes.get(topic, fresh=True)).readable()
            except RayMQError as error:
                _log.debug("route of %s: %s", topic, error)
                mine.update(queue for queue in self._queues if queue.topic == topic)
                settled = False
                continue
            mine.update(rebalance.average(queues, members, self._client_id))
        for queue in [queue for queue in self._queues if queue not in mine]:
            await self._let_go(queue)
        taken = await asyncio.gather(*(self._take(queue) for queue in sorted(mine - set(self._queues))))
        self._wake_fetchers({queue.broker for queue in mine})
        return settled and all(taken)

    async def _take(self, queue: MessageQueue) -> bool:
        try:
            offset = await self._offsets.committed(queue) if self._clustering else None
            if offset is None:
                offset = await self._offsets.first(queue, self._settings.consume_from, self._settings.consume_timestamp)
                if self._clustering:
                    await self._offsets.commit(queue, offset)
        except RayMQError as error:  # not "no offset": come back later rather than start somewhere
            _log.debug("position of %s: %s", queue, error)
            return False
        self._queues[queue] = ProcessQueue(queue, offset)
        self._committed[queue] = offset
        return True

    async def _let_go(self, queue: MessageQueue) -> None:
        process = self._queues.pop(queue)
        process.dropped = True
        await self._commit(process)
        self._committed.pop(queue, None)

    # -- fetching -------------------------------------------------------------------------------------------------

    def _wake_fetchers(self, brokers: set[str]) -> None:
        for broker in brokers | set(self._fetchers):
            if broker not in self._fetchers and not self._stopping:
                self._changed[broker] = asyncio.Event()
                self._fetchers[broker] = asyncio.get_running_loop().create_task(self._keep_fetching(broker))
            self._changed[broker].set()

    async def _keep_fetching(self, broker: str) -> None:
        """Fetch all queues of one broker, again and again; a change of the queues ends the fetch under way."""
        changed = self._changed[broker]
        backoff = Backoff(first=0.1, cap=1.0)
        session = f"{self._client_id}:{self._settings.group}:{broker}"
        while True:
            changed.clear()
            processes = [p for p in self._queues.values() if p.queue.broker == broker and p.has_room]
            if not processes:
                await changed.wait()
                continue
            wanted = [self._wanted(process) for process in processes]
            call = asyncio.ensure_future(
                fetch(self._mq, broker, session, wanted, MAX_MESSAGES, MAX_ANSWER_BYTES, _PARK_SECONDS)
            )
            change = asyncio.ensure_future(changed.wait())
            try:
                await asyncio.wait((call, change), return_when=asyncio.FIRST_COMPLETED)
                if call.done():
                    for part in call.result():
                        self._arrived(processes[part.index], part)
                    backoff.reset()
            except RayMQError as error:
                _log.debug("fetch from %s: %s", broker, error)
                await asyncio.sleep(backoff.next_delay())
            finally:
                call.cancel()
                change.cancel()

    def _wanted(self, process: ProcessQueue) -> Wanted:
        queue = process.queue
        wanted = self._filters[queue.topic]
        return Wanted(queue.topic, queue.queue_id, process.next_offset, wanted.codes, wanted.sql)

    def _arrived(self, process: ProcessQueue, part: Fetched) -> None:
        if process.dropped:
            return
        if isinstance(part.error, OffsetOutOfRange):
            low, high = part.error.min_offset, part.error.max_offset
            _log.warning("%s: offset %d is outside %d..%d", process.queue, process.next_offset, low, high)
            process.next_offset = low if process.next_offset < low else high
            return
        if part.error is not None:
            raise part.error
        passes = self._filters[process.queue.topic].passes
        wanted: list[ReceivedMessage] = []
        start = 0
        for size in part.sizes.tolist():
            message = ReceivedMessage.from_record(decode(part.records, start), process.queue.broker)
            start += size
            if passes(message.tags):
                process.add(message.queue_offset, size)
                wanted.append(message)
        process.next_offset = max(process.next_offset, part.next_offset)
        for first in range(0, len(wanted), self._settings.batch_size):
            self._consume(process, wanted[first : first + self._settings.batch_size])

    # -- consuming ------------------------------------------------------------------------------------------------

    def _consume(self, process: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        loop = asyncio.get_running_loop()

        def work() -> None:
            # What was not begun when the consumer stops, or the program ends, comes again elsewhere.
            if process.dropped or self._stopping or not threading.main_thread().is_alive():
                return
            levels = self._runner.call(messages)
            with contextlib.suppress(RuntimeError):  # the loop is gone: so is whom to tell
                loop.call_soon_threadsafe(self._finished, process, messages, levels)

        with contextlib.suppress(RuntimeError):  # the pool was shut down meanwhile: they come again
            call = self._threads.submit(work)
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    def _finished(self, process: ProcessQueue, messages: list[ReceivedMessage], levels: list[int | None]) -> None:
        had_room = process.has_room
        for message, level in zip(messages, levels, strict=True):
            if level is None:
                process.finish(message.queue_offset)
            elif self._clustering:
                task = asyncio.get_running_loop().create_task(self._send_back(process, message, level))
                self._returning.add(task)
                task.add_done_callback(self._returning.discard)
            else:
                _log.warning("broadcast: the listener failed on %s; it is not retried", message.message_id)
                process.finish(message.queue_offset)
        if not had_room and process.has_room:
            self._changed[process.queue.broker].set()

    async def _send_back(self, process: ProcessQueue, message: ReceivedMessage, level: int) -> None:
        """Give a failed message back to its broker; it stays in flight, and uncommitted, until that has succeeded."""
        limit = self._settings.max_reconsume_times
        command = wire_send.send_back_command(
            self._settings.group,
            message.topic,
            message.physical_offset,
            message.message_id,
            level,
            DEFAULT_MAX_RECONSUME_TIMES if limit is None else limit,
        )
        backoff = Backoff(first=0.1, cap=5.0)
        while True:
            try:
                address = await address_of(self._mq, message.queue.topic, message.queue.broker)
                await self._mq.pool.request(address, command, _REQUEST_SECONDS)
                break
            except (MessageExpired, MessageNotFound) as error:
                _log.warning("%s cannot be sent back: %s", message.message_id, error)
                break
            except RayMQError as error:
                _log.debug("send-back of %s: %s", message.message_id, error)
                await asyncio.sleep(backoff.next_delay())
        process.finish(message.queue_offset)

    # -- commits --------------------------------------------------------------------------------------------------

    async def _keep_committing(self) -> None:
        while True:
            await asyncio.sleep(_COMMIT_SECONDS)
            await self._commit_all()

    async def _commit_all(self) -> None:
        await asyncio.gather(*(self._commit(process) for process in self._queues.values()))

    async def _commit(self, process: ProcessQueue) -> None:
        offset = process.commit_offset
        if not self._clustering or self._committed.get(process.queue) == offset:
            return
        try:
            await self._offsets.commit(process.queue, offset)
            self._committed[process.queue] = offset
        except RayMQError as error:
            _log.debug("commit of %s: %s", process.queue, error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
