"""The engine of a push consumer: membership, assignment, positions, fetching, commits.

Runs on the connection's event loop. One fetch per broker covers all queues there; what it brings goes to `Delivery`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

from raymq.actors.core.backoff import Backoff
from raymq.actors.core.fetching import Wanted
from raymq.actors.errors import OffsetOutOfRange, OffsetReset, RayMQError
from raymq.actors.naming import retry_topic
from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.connection import Connection as WireConnection
from raymq.actors.wire.fetch import Fetched
from raymq.actors.wire.frame import Command
from raymq.actors.wire.pull import MAX_ANSWER_BYTES
from raymq.client.committing import Committing
from raymq.client.connection import Connection
from raymq.client.consumer_settings import ConsumerSettings, MessageModel
from raymq.client.delivery import Delivery
from raymq.client.fetching import EarlyAnswers, fetch
from raymq.client.listener import ListenerRunner
from raymq.client.membership import Membership
from raymq.client.offsets import GroupOffsets
from raymq.client.process_queue import ProcessQueue
from raymq.client.queue_locks import QueueLocks
from raymq.client.rebalance import strategy_named
from raymq.client.received import received, received_one
from raymq.client.send_back import SendBack
from raymq.client.subscription import TagFilter
from raymq.storage.clock import boottime
from raymq.storage.errors import StoreCorrupt

REBALANCE_SECONDS = 20.0
_TICK_SECONDS = 1.0
_COMMIT_SECONDS = 0.5
_PARK_SECONDS = 15.0
#: How long a queue that goes to another member is kept for the sake of an ordered call that still runs.
_LET_GO_SECONDS = 30.0
#: How long the routes are looked at every second for a broker that fell out of them: a restart takes 2 s.
_RETURN_SECONDS = 60.0

_log = logging.getLogger(__name__)


class Consuming:
    """One running consumer. Made and used on the connection's loop."""

    def __init__(self, mq: Connection, settings: ConsumerSettings, runner: ListenerRunner) -> None:
        self._mq = mq
        self._settings = settings
        self._client_id = f"{mq.pool.local_host}@{uuid.uuid4().hex}"
        self._clustering = settings.model is MessageModel.CLUSTERING
        self._locking = settings.ordered and self._clustering
        self._sticky = settings.strategy == "sticky" and self._clustering
        self._filters = dict(settings.filters)
        if self._clustering:
            self._filters[retry_topic(settings.group)] = TagFilter.parse("*")
        self._membership = Membership(
            mq,
            self._client_id,
            settings.group,
            {topic: wanted.subscription(topic) for topic, wanted in settings.filters.items()},
            consume_type="CONSUME_PASSIVELY",
            model=settings.model.value,
            start=settings.consume_from.value,
            clock=boottime,
            retry_max_times=settings.max_reconsume_times if self._clustering and not settings.ordered else None,
            owners=self._sticky,
        )
        self._strategy = strategy_named(settings.strategy)
        self._committing = Committing(self._commit)
        self._offsets = GroupOffsets(mq, settings.group)
        self._locks = QueueLocks(mq, self._client_id, settings.group)
        self.delivery = Delivery(
            settings,
            runner,
            send_back=SendBack(mq, settings.group),
            on_room=self._has_room,
            run_aside=mq.run_aside,
            gate=self._locks if self._locking else None,
        )
        self._queues: dict[MessageQueue, ProcessQueue] = {}
        self._committed: dict[MessageQueue, int] = {}
        #: Queues that went away with their broker, before it knew how far they were done.
        self._unsaved: dict[MessageQueue, ProcessQueue] = {}
        self._leaving: dict[MessageQueue, asyncio.Task[None]] = {}
        self._fetchers: dict[str, asyncio.Task[None]] = {}
        self._changed: dict[str, asyncio.Event] = {}
        self._rebalance_now = asyncio.Event()
        self._missed_until = 0.0
        self._tasks: set[asyncio.Task[Any]] = set()
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
        self._spawn(self._repeat(_TICK_SECONDS, self._membership.heartbeat))
        self._spawn(self._keep_assignment())
        self._spawn(self._repeat(_COMMIT_SECONDS, self._begin_commits))
        self._spawn(self._repeat(min(_TICK_SECONDS, self._settings.consume_timeout), self._expire_calls))
        if self._locking:
            self._spawn(self._locks.keep(lambda: self._queues, self._heard_of_locks))

    async def stop(self, timeout: float) -> None:
        """Let running listeners end (at most `timeout` seconds), commit, leave the group."""
        self._stopping = True
        self._mq.unlisten(self._pushed)
        for task in [*self._fetchers.values(), *self._tasks]:
            task.cancel()
        await self.delivery.stop(timeout)
        await self._commit_all()
        if self._locking:
            await self._locks.unlock({*self._queues, *self._leaving})
        await self._membership.leave()

    # -- assignment -----------------------------------------------------------------------------------------------

    async def _keep_assignment(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                missing = not self._queues or time.monotonic() < self._missed_until
                async with asyncio.timeout(_TICK_SECONDS if missing else REBALANCE_SECONDS):
                    await self._rebalance_now.wait()
            self._rebalance_now.clear()
            try:
                if await self._share_out():
                    continue
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
        others: set[MessageQueue] = set()
        settled = self._membership.settled
        for topic in self._filters:
            try:
                queues = (await self._mq.routes.get(topic, fresh=True)).readable()
            except RayMQError as error:
                _log.debug("route of %s: %s", topic, error)
                mine.update(queue for queue in self._queues if queue.topic == topic)
                settled = False
                continue
            mine.update(self._strategy(queues, members, self._client_id, self._membership.owners))
            others.update(queues)
        if self._sticky:  # a change is under way until the brokers see each queue with its owner
            owned = {queue for queue, owner in self._membership.owners.items() if owner == self._client_id}
            settled = settled and owned & others == mine & others
        for queue in others - mine:  # another member knows better by now
            self._unsaved.pop(queue, None)
        brokers = {queue.broker for queue in mine | others}
        for queue in [queue for queue in self._queues if queue not in mine]:
            if queue.broker not in brokers:
                self._missed_until = time.monotonic() + _RETURN_SECONDS
            await self._let_go(queue)
        new = mine - set(self._queues)
        may_take = {queue for queue in new if queue not in self._leaving}
        if self._locking and may_take:
            may_take = await self._locks.lock(may_take)
        taken = await asyncio.gather(*(self._take(queue) for queue in sorted(may_take)))
        self._wake_fetchers({queue.broker for queue in mine})
        return settled and all(taken) and may_take == new

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
        self._committed[queue] = offset
        if queue in self._unsaved:
            offset = max(offset, self._unsaved.pop(queue).commit_offset)
        self._queues[queue] = self.delivery.open(queue, offset)
        return True

    async def _let_go(self, queue: MessageQueue) -> None:
        if self._locking:  # the next owner must not begin while a call of ours runs
            self._let_go_later(queue)
        else:
            process = self._queues.pop(queue)
            self.delivery.drop(queue)
            await self._commit_last(process)

    def _let_go_later(self, queue: MessageQueue) -> None:
        process = self._queues.pop(queue)
        self.delivery.drop(queue)
        task = asyncio.get_running_loop().create_task(self._hand_over(process))
        self._leaving[queue] = task
        task.add_done_callback(lambda _: self._leaving.pop(queue, None))

    async def _hand_over(self, process: ProcessQueue) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LET_GO_SECONDS):
                await self.delivery.idle(process.queue)
        await self._commit_last(process)
        await self._locks.unlock([process.queue])

    def _heard_of_locks(self, kept: set[MessageQueue], lost: set[MessageQueue]) -> None:
        """Locks were renewed, and others were not: somebody else may have had those queues."""
        for queue in lost & set(self._queues):
            _log.warning("the lock of %s is lost", queue)
            self._let_go_later(queue)
            self._rebalance_now.set()
        self.delivery.gate_opened(kept)

    # -- fetching -------------------------------------------------------------------------------------------------

    def _has_room(self, process: ProcessQueue) -> None:
        if process.queue.broker in self._changed:
            self._changed[process.queue.broker].set()

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
        while True:
            processes = self._with_room(broker)
            changed.clear()
            if not processes:
                await changed.wait()
                continue
            call = asyncio.ensure_future(self._fetch(broker, processes))
            change = asyncio.ensure_future(changed.wait())
            try:
                await asyncio.wait((call, change), return_when=asyncio.FIRST_COMPLETED)
                if call.done():
                    call.result()
                    backoff.reset()
            except RayMQError as error:
                _log.debug("fetch from %s: %s", broker, error)
                await asyncio.sleep(backoff.next_delay())
            finally:
                call.cancel()
                change.cancel()

    def _with_room(self, broker: str) -> list[ProcessQueue]:
        """The queues of a broker of which more may be fetched; of the others `_has_room` will tell."""
        processes = [process for process in self._queues.values() if process.queue.broker == broker]
        for process in processes:
            process.waits_for_room = not process.has_room
        self.delivery.settle()
        return [process for process in processes if not process.waits_for_room]

    async def _fetch(self, broker: str, processes: list[ProcessQueue]) -> None:
        """One fetch; what it brings goes on its way at once, before anybody is told that it is done."""
        settings = self._settings
        group = settings.group if self._clustering else None
        session = f"{self._client_id}:{settings.group}:{broker}"
        limits = (settings.fetched_messages, MAX_ANSWER_BYTES)

        def arrived(parts: list[Fetched]) -> None:
            for part in parts:
                self._arrived(processes[part.index], part)

        async def fetch_(seconds: float, **options: Any) -> None:
            wanted = [self._wanted(process) for process in processes]
            arrived(await fetch(self._mq, broker, session, wanted, *limits, seconds, group, self._client_id, **options))

        try:
            await fetch_(
                _PARK_SECONDS,
                on_early=EarlyAnswers(arrived, lambda index, record: self._one_arrived(processes[index], record)),
            )
        except StoreCorrupt:
            await fetch_(0.0, check_crc=True)

    def _wanted(self, process: ProcessQueue) -> Wanted:
        queue = process.queue
        wanted = self._filters[queue.topic]
        return Wanted(queue.topic, queue.queue_id, process.next_offset, wanted.codes, wanted.sql)

    def _arrived(self, process: ProcessQueue, part: Fetched) -> None:
        if process.dropped:
            return
        if part.error is not None:
            self._refused(process, part.error)
            return
        messages, sizes = received(part, process.queue), part.sizes.tolist()
        wanted = self._filters[process.queue.topic]
        if wanted.codes is not None:  # the broker compared hashes
            pairs = [pair for pair in zip(messages, sizes, strict=True) if wanted.passes(pair[0].tags)]
            messages, sizes = [message for message, _ in pairs], [size for _, size in pairs]
        if len(messages) == 1:
            self.delivery.add_one(process, messages[0], sizes[0])
        else:
            self.delivery.add(process, messages, sizes)
        process.next_offset = max(process.next_offset, part.next_offset)
        if messages:  # other queues take their turn first: this one goes behind them
            self._queues[process.queue] = self._queues.pop(process.queue)
        elif not process.has_room:  # what is filtered out uses up no limit of the fetch, which goes on without it
            self._changed[process.queue.broker].set()

    def _one_arrived(self, process: ProcessQueue, record: memoryview) -> None:
        """Of a queue of which all is wanted."""
        if process.dropped:
            return
        self.delivery.add_one(process, received_one(record, 0, process.queue), len(record))
        if len(self._queues) > 1:
            self._queues[process.queue] = self._queues.pop(process.queue)

    def _refused(self, process: ProcessQueue, error: RayMQError) -> None:
        """A queue cannot be read from where it should be."""
        if isinstance(error, OffsetOutOfRange):
            low, high = error.min_offset, error.max_offset
            _log.warning("%s: offset %d is outside %d..%d", process.queue, process.next_offset, low, high)
            process.next_offset = low if process.next_offset < low else high
        elif isinstance(error, OffsetReset):
            self._move(process, error.offset)
        else:
            raise error

    def _move(self, process: ProcessQueue, offset: int) -> None:
        """An administrator sent the group to `offset`: what is in flight is neither waited for nor committed."""
        queue = process.queue
        _log.info("%s: the group was sent from offset %d to %d", queue, process.next_offset, offset)
        self.delivery.drop(queue)
        self._queues[queue] = self.delivery.open(queue, offset)
        self._committed[queue] = offset

    # -- commits --------------------------------------------------------------------------------------------------

    async def _commit_all(self) -> None:
        """Wait for what is under way, then for the rest."""
        await self._committing.finish()
        await self._begin_commits()
        await self._committing.finish()

    async def _begin_commits(self) -> None:
        self.delivery.settle()
        self._committing.begin(process for process in self._queues.values() if self._has_to_commit(process))

    def _has_to_commit(self, process: ProcessQueue) -> bool:
        return self._clustering and self._committed.get(process.queue) != process.commit_offset

    async def _commit_last(self, process: ProcessQueue) -> None:
        """Commit a queue that is let go; what its broker cannot be told counts if the queue comes back to us."""
        offset = process.commit_offset
        await self._commit(process)
        if self._clustering and self._committed.pop(process.queue, offset) < offset:
            self._unsaved[process.queue] = process

    async def _commit(self, process: ProcessQueue) -> None:
        offset = process.commit_offset
        if not self._has_to_commit(process):
            return
        try:
            await self._offsets.commit(process.queue, offset, self._committed.get(process.queue))
            if self._queues.get(process.queue, process) is process:
                self._committed[process.queue] = offset
        except OffsetReset as reset:
            if not process.dropped:
                self._move(process, reset.offset)
                self._has_room(process)
        except RayMQError as error:
            _log.debug("commit of %s: %s", process.queue, error)

    # -- duties ---------------------------------------------------------------------------------------------------

    async def _expire_calls(self) -> None:
        self.delivery.expire_calls()

    async def _repeat(self, seconds: float, duty: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            with contextlib.suppress(RayMQError):
                await duty()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
