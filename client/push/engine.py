"""The engine of a push consumer: membership, assignment, positions, fetching, commits.

Runs on the connection's event loop. One fetch per broker covers all queues there; what it brings goes to `Delivery`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from raymq.actors.backoff import Backoff
from raymq.actors.broker.core.reading.fetching import Wanted
from raymq.actors.errors import OffsetOutOfRange, OffsetReset, QueueNotFound, RayMQError, TopicNotFound
from raymq.actors.naming import retry_topic
from raymq.actors.protocol import MessageQueue
from raymq.actors.supervision import Failure, Supervisor
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.connection import Connection as WireConnection
from raymq.actors.wire.fetch import Fetched
from raymq.actors.wire.frame import Command
from raymq.actors.wire.pull import MAX_ANSWER_BYTES
from raymq.client.connection import Connection
from raymq.client.health import Aside
from raymq.client.members.membership import Membership
from raymq.client.members.queue_locks import QueueLocks
from raymq.client.members.rebalance import strategy_named
from raymq.client.members.subscription import TagFilter
from raymq.client.message import ReceivedMessage
from raymq.client.push.committing import Committing
from raymq.client.push.consumer_settings import ConsumerSettings, MessageModel
from raymq.client.push.delivery import Delivery
from raymq.client.push.listener import ListenerRunner
from raymq.client.push.process_queue import ProcessQueue
from raymq.client.push.queue_backoff import QueueBackoffs
from raymq.client.push.send_back import SendBack
from raymq.client.received import received, received_one, received_singly
from raymq.client.requests.fetch_shares import FetchShares, Share
from raymq.client.requests.fetching import EarlyAnswers, fetch
from raymq.client.requests.offsets import GroupOffsets
from raymq.storage.clock import boottime
from raymq.storage.errors import StoreCorrupt

REBALANCE_SECONDS = 20.0
_TICK_SECONDS = 1.0
_COMMIT_SECONDS = 0.5
_PARK_SECONDS = 15.0
#: How long a queue that goes to another member is kept for the sake of an ordered call that still runs.
_LET_GO_SECONDS = 30.0
#: How long the last commits of queues that go to other members are waited for, all at the same time.
_LAST_COMMIT_SECONDS = 3.0
#: How long the routes are looked at every second for a broker that fell out of them: a restart takes 2 s.
_RETURN_SECONDS = 60.0

_log = logging.getLogger(__name__)


#: What the last commits and the farewell may take at least.
_FAREWELL_SECONDS = 1.0


class Consuming:
    """One running consumer. Made and used on the connection's loop."""

    def __init__(self, mq: Connection, settings: ConsumerSettings, runner: ListenerRunner) -> None:
        self._mq = mq
        self._settings = settings
        self._runner = runner
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
        self.supervisor = Supervisor(f"consumer of {settings.group}")
        #: What was passed over because it cannot be read.
        self.aside = Aside()
        self._committing = Committing(self._commit, lambda error: self.supervisor.report("commit", error))
        self._offsets = GroupOffsets(mq, settings.group)
        self._locks = QueueLocks(
            mq, self._client_id, settings.group, lambda error: self.supervisor.report("renewal of locks", error)
        )
        self.delivery = Delivery(
            settings,
            runner,
            send_back=SendBack(mq, settings.group, self.aside.add),
            on_room=self._has_room,
            run_aside=mq.run_aside,
            gate=self._locks if self._locking else None,
            supervisor=self.supervisor,
            pass_over=self._pass_over,
        )
        self._queues: dict[MessageQueue, ProcessQueue] = {}
        self._committed: dict[MessageQueue, int] = {}
        #: Queues that went away with their broker, before it knew how far they were done.
        self._unsaved: dict[MessageQueue, ProcessQueue] = {}
        self._leaving: dict[MessageQueue, asyncio.Task[None]] = {}
        self._shares = FetchShares()
        self._fetchers: dict[Share, asyncio.Task[None]] = {}
        self._changed: dict[Share, asyncio.Event] = {}
        self._backoffs = QueueBackoffs(time.monotonic)
        #: Queues that something is found out about before more is fetched.
        self._examined: dict[ProcessQueue, asyncio.Task[None]] = {}
        self._rebalance_now = asyncio.Event()
        self._missed_until = 0.0
        self._tasks: list[asyncio.Task[None]] = []
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
        every, expiry = self.supervisor.every, min(_TICK_SECONDS, self._settings.consume_timeout)
        self._tasks = [
            every("heartbeat", _TICK_SECONDS, self._membership.heartbeat),
            self.supervisor.keep("assignment", self._keep_assignment),
            every("commits", _COMMIT_SECONDS, self._begin_commits),
            every("expiry of calls", expiry, self._expire_calls),
        ]
        if self._locking:
            self._tasks.append(
                self.supervisor.keep("locks", lambda: self._locks.keep(lambda: self._queues, self._heard_of_locks))
            )

    async def stop(self, timeout: float) -> None:
        """Let running listeners end, commit and leave the group, in at most `timeout` seconds and one more.

        A broker that hangs is not waited for beyond that: what it was not told comes again.
        """
        deadline = time.monotonic() + timeout
        self._stopping = True
        self._mq.unlisten(self._pushed)
        for task in [*self._fetchers.values(), *self._tasks, *self._examined.values()]:
            task.cancel()
        await self.delivery.stop(timeout)
        left = max(deadline - time.monotonic(), _FAREWELL_SECONDS)
        await _within(left / 2, self._commit_all())
        unlock = [self._locks.unlock({*self._queues, *self._leaving})] if self._locking else []
        await _within(left / 2, asyncio.gather(*unlock, self._membership.leave()))

    def failures_of_loops(self) -> list[Failure]:
        """What ended an event loop that this consumer needs, from within; it was run again."""
        loops = {"the connection's event loop": self._mq.loop_thread, "the listener's event loop": self._runner.loop}
        return [
            Failure(name, repr(loop.last_failure), loop.failures, 0, loop.failed_at)
            for name, loop in loops.items()
            if loop is not None and loop.failures
        ]

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
        unmet: set[MessageQueue] = set()
        settled = self._membership.settled
        for topic in self._filters:
            try:
                route = await self._mq.routes.get(topic, fresh=True)
            except RayMQError as error:
                _log.debug("route of %s: %s", topic, error)
                mine.update(queue for queue in self._queues if queue.topic == topic)
                settled = settled and isinstance(error, TopicNotFound)
                continue
            queues = route.readable()
            mine.update(self._strategy(queues, members, self._client_id, self._membership.owners))
            others.update(queues)
            away = {broker for broker, address in route.addresses.items() if self._membership.is_unmet(address)}
            unmet.update(queue for queue in queues if queue.broker in away)
        if self._sticky:  # a change is under way until the brokers see each queue with its owner
            owned = {queue for queue, owner in self._membership.owners.items() if owner == self._client_id}
            settled = settled and owned & others == mine & others
        for queue in others - mine:  # another member knows better by now
            self._unsaved.pop(queue, None)
        brokers, gone = {queue.broker for queue in mine | others}, list[MessageQueue]()
        for queue in [queue for queue in self._queues if queue not in mine]:
            if queue.broker not in brokers:
                self._missed_until = time.monotonic() + _RETURN_SECONDS
            gone.append(queue)
        await asyncio.gather(*map(self._let_go, gone))
        new = {queue for queue in mine - set(self._queues) if self._backoffs.is_due(queue)}
        may_take = {queue for queue in new - unmet if queue not in self._leaving}
        if self._locking and may_take:
            may_take = await self._locks.lock(may_take)
        taken = await asyncio.gather(*(self._take(queue) for queue in sorted(may_take)))
        self._shares.keep_only(self._queues.keys())
        self._wake_fetchers({self._shares.of(queue) for queue in self._queues})
        return settled and all(taken) and may_take == new

    async def _take(self, queue: MessageQueue) -> bool:
        try:
            place = await self._offsets.committed(queue) if self._clustering else None
            if place is None:
                place = await self._offsets.first(queue, self._settings.consume_from, self._settings.consume_timestamp)
                if self._clustering:
                    await self._offsets.commit(queue, place[0], incarnation=place[1])
        except (TopicNotFound, QueueNotFound) as error:  # deleted, or not made yet: what does not depend on it goes on
            self._gone(queue, error)
            return True
        except RayMQError as error:  # not "no offset": come back later rather than start somewhere
            _log.debug("position of %s: %s", queue, error)
            return False
        offset, incarnation = place
        self._committed[queue] = offset
        unsaved = self._unsaved.pop(queue, None)
        if unsaved is not None and unsaved.incarnation >= incarnation:
            offset = max(offset, unsaved.commit_offset) if self._clustering else unsaved.commit_offset
        self._queues[queue] = process = self.delivery.open(queue, offset)
        process.incarnation = incarnation
        if unsaved is not None and offset == unsaved.commit_offset:  # it was come to by what was read then
            process.epoch = unsaved.epoch
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
        task = self.supervisor.keep("handing over of a queue", lambda: self._hand_over(process))
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
        self._fetch_anew(process.queue)

    def _fetch_anew(self, queue: MessageQueue) -> None:
        """End the fetch that a queue is part of; the next one is made of what is known then."""
        changed = self._changed.get(self._shares.of(queue))
        if changed is not None:
            changed.set()

    def _wake_fetchers(self, shares: set[Share]) -> None:
        for share in shares | set(self._fetchers):
            if share not in self._fetchers and not self._stopping:
                self._changed[share] = asyncio.Event()
                self._fetchers[share] = self._begin_fetching(share)
            self._changed[share].set()

    def _begin_fetching(self, share: Share) -> asyncio.Task[None]:
        return self.supervisor.keep(f"fetches from {share}", lambda: self._keep_fetching(share))

    async def _keep_fetching(self, share: Share) -> None:
        """Fetch a share of a broker's queues again and again; a change of the queues ends the fetch under way."""
        changed = self._changed[share]
        backoff = Backoff(first=0.1, cap=1.0)
        while True:
            processes = self._with_room(share)
            changed.clear()
            if not processes:
                await changed.wait()
                continue
            call = asyncio.ensure_future(self._fetch(share, processes))
            change = asyncio.ensure_future(changed.wait())
            try:
                await asyncio.wait((call, change), return_when=asyncio.FIRST_COMPLETED)
                if call.done():
                    call.result()
                    backoff.reset()
                    self.supervisor.succeeded(f"fetches from {share}")
            except RayMQError as error:
                _log.debug("fetch from %s: %s", share, error)
                await asyncio.sleep(backoff.next_delay())
            finally:
                call.cancel()
                change.cancel()

    def _with_room(self, share: Share) -> list[ProcessQueue]:
        """The queues of a share of which more may be fetched; of the others `_has_room` will tell."""
        processes = [
            process
            for process in self._queues.values()
            if self._shares.of(process.queue) == share
            and self._backoffs.is_due(process.queue)
            and process not in self._examined
        ]
        for process in processes:
            process.waits_for_room = not process.has_room
        self.delivery.settle()
        return [process for process in processes if not process.waits_for_room]

    async def _fetch(self, share: Share, processes: list[ProcessQueue]) -> None:
        """One fetch; what it brings goes on its way at once, before anybody is told that it is done."""
        settings = self._settings
        group = settings.group if self._clustering else None
        session = f"{self._client_id}:{settings.group}:{share}"
        #: Queues of which this fetch may bring more, although they could not take what it brought before that.
        unread: set[ProcessQueue] = set()

        def arrived(parts: list[Fetched]) -> None:
            for part in parts:
                process = processes[part.index]
                if process in unread:
                    continue
                try:
                    self._arrived(process, part)
                except BaseException as error:  # noqa: BLE001 - of this queue; what the others got is theirs
                    unread.add(process)
                    self._unreadable(process, error)

        def one_arrived(index: int, record: memoryview) -> None:
            process = processes[index]
            if process in unread:
                return
            try:
                self._one_arrived(process, record)
            except BaseException as error:  # noqa: BLE001 - as above
                unread.add(process)
                self._unreadable(process, error)

        def learn(epoch: int) -> None:
            for process in processes:
                process.epoch = epoch

        wanted = [self._wanted(process) for process in processes]
        on_early = EarlyAnswers(arrived, one_arrived)
        # Together no more than the fullest of them has room for, so that none gets more.
        limits = (max(1, min(process.room for process in processes)), MAX_ANSWER_BYTES, _PARK_SECONDS)
        member = self._client_id
        last = fetch(self._mq, share.broker, session, wanted, *limits, group, member, on_early=on_early, on_epoch=learn)
        arrived(await last)

    def _wanted(self, process: ProcessQueue) -> Wanted:
        queue = process.queue
        wanted = self._filters[queue.topic]
        place = queue.topic, queue.queue_id, process.next_offset
        return Wanted(*place, wanted.codes, wanted.sql, process.epoch, process.incarnation)

    def _arrived(self, process: ProcessQueue, part: Fetched) -> None:
        if process.dropped:
            return
        if part.error is not None:
            raise part.error
        self._deliver(process, received(part, process.queue), part.sizes.tolist(), part.next_offset)

    def _deliver(
        self, process: ProcessQueue, messages: list[ReceivedMessage], sizes: list[int], next_offset: int
    ) -> None:
        self._backoffs.succeeded(process.queue)
        wanted = self._filters[process.queue.topic]
        if wanted.codes is not None:  # the broker compared hashes
            pairs = [pair for pair in zip(messages, sizes, strict=True) if wanted.passes(pair[0].tags)]
            messages, sizes = [message for message, _ in pairs], [size for _, size in pairs]
        if len(messages) == 1:
            self.delivery.add_one(process, messages[0], sizes[0])
        else:
            self.delivery.add(process, messages, sizes)
        process.next_offset = max(process.next_offset, next_offset)
        if messages:  # other queues take their turn first: this one goes behind them
            self._queues[process.queue] = self._queues.pop(process.queue)
        elif not process.room:  # what is filtered out uses up no limit of the fetch, which goes on without it
            self._fetch_anew(process.queue)

    def _one_arrived(self, process: ProcessQueue, record: memoryview) -> None:
        """Of a queue of which all is wanted."""
        if process.dropped:
            return
        self.delivery.add_one(process, received_one(record, 0, process.queue), len(record))
        if len(self._queues) > 1:
            self._queues[process.queue] = self._queues.pop(process.queue)

    def _unreadable(self, process: ProcessQueue, error: BaseException) -> None:
        """A queue cannot be read from where it should be, or what came of it cannot be taken."""
        queue = process.queue
        if process.dropped:
            return
        if isinstance(error, OffsetReset):
            self._heed(process, error)
        elif isinstance(error, OffsetOutOfRange):
            self._examine(process, lambda: self._find_place(process, error))
        elif isinstance(error, TopicNotFound | QueueNotFound):
            self._gone(queue, error)
            self._rebalance_now.set()
        elif isinstance(error, RayMQError) and not isinstance(error, StoreCorrupt):
            self._leave_alone(queue, error)
        else:
            if not isinstance(error, StoreCorrupt):
                self.supervisor.report("fetch of a queue", error)
            self._examine(process, lambda: self._read_singly(process))
        self._fetch_anew(queue)  # what is still to come of this fetch is not what has to come next

    def _leave_alone(self, queue: MessageQueue, error: Exception) -> float:
        """Do without a queue for a while, longer each time; the others go on. Returns the seconds."""
        seconds = self._backoffs.failed(queue)
        _log.info("%s cannot be read, again in %.1f s: %s", queue, seconds, error)
        asyncio.get_running_loop().call_later(seconds, self._fetch_anew, queue)
        return seconds

    def _gone(self, queue: MessageQueue, error: Exception) -> None:
        """Its broker does not have it (any more): it is not ours, unless it comes back."""
        _log.info("%s is not there: %s", queue, error)
        self._leave_alone(queue, error)
        self._missed_until = time.monotonic() + _RETURN_SECONDS
        self._committed.pop(queue, None)
        self._unsaved.pop(queue, None)
        if self._queues.pop(queue, None) is not None:
            self.delivery.drop(queue)

    def _examine(self, process: ProcessQueue, find_out: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Fetch nothing more of a queue until something was found out; the others go on meanwhile."""
        if process in self._examined:
            return

        async def until_known() -> None:
            while not process.dropped:
                try:
                    await find_out()
                except (TopicNotFound, QueueNotFound) as error:
                    self._gone(process.queue, error)
                    self._rebalance_now.set()
                except OffsetReset as reset:
                    self._heed(process, reset)
                except RayMQError as error:
                    await asyncio.sleep(self._leave_alone(process.queue, error))
                else:
                    return

        def known(_: asyncio.Task[None]) -> None:
            self._examined.pop(process, None)
            self._has_room(process)

        self._examined[process] = task = self.supervisor.keep("examination of a queue", until_known)
        task.add_done_callback(known)

    async def _find_place(self, process: ProcessQueue, error: OffsetOutOfRange) -> None:
        """Where to go on in a queue that does not reach to where the next fetch should begin.

        Below it: at its minimum. Beyond it, it is not the queue that it was (a topic that was deleted and made anew, a
        broker that lost its newest messages): where the group is by the broker's book, else at the minimum. Never at
        its end: what was stored meanwhile may be new.
        """
        low, high = error.min_offset, error.max_offset
        _log.warning("%s: offset %d is outside %d..%d", process.queue, process.next_offset, low, high)
        if process.next_offset < low:
            process.next_offset = low
            return
        place = await self._offsets.committed(process.queue) if self._clustering else None
        committed, incarnation = (low, process.incarnation) if place is None else place
        if not process.dropped:
            self._move(process, committed if low <= committed <= high else low, incarnation)

    async def _read_singly(self, process: ProcessQueue) -> None:
        """Read on where something cannot be read, record by record; pass over exactly what is damaged."""
        queue, settings = process.queue, self._settings
        session = f"{self._client_id}:{settings.group}:{queue}"
        limits = (max(1, process.room), MAX_ANSWER_BYTES)
        wanted = [self._wanted(process)]
        group = settings.group if self._clustering else None
        parts = await fetch(
            self._mq, queue.broker, session, wanted, *limits, 0.0, group, self._client_id, check_crc=True
        )
        if process.dropped or not parts:
            return
        part = parts[0]
        if isinstance(part.error, StoreCorrupt):
            offset = process.next_offset if part.error.queue_offset is None else part.error.queue_offset
            self._pass_over(queue, offset, part.error)
            process.next_offset = max(process.next_offset, offset + 1)
            return
        if part.error is not None:
            raise part.error
        messages, sizes, bad = received_singly(part, queue)
        for offset, error in bad:
            self._pass_over(queue, offset, error)
        self._deliver(process, messages, sizes, part.next_offset)

    def _pass_over(self, queue: MessageQueue, offset: int, error: BaseException) -> None:
        """A message cannot be read: it is told and counted, and what is behind it goes on."""
        _log.error("%s: the message at offset %d cannot be read and is passed over: %s", queue, offset, error)
        self.aside.add(queue, offset, error)

    def _heed(self, process: ProcessQueue, reset: OffsetReset) -> None:
        """A fetch was sent elsewhere. Without a group it is because the topic was made anew, or because of what the
        broker's log has lost: then what is not done of the rest comes again, too.
        """
        lost = not self._clustering and reset.incarnation is None
        offset = min(reset.offset, process.commit_offset) if lost else reset.offset
        self._move(process, offset, reset.incarnation)

    def _move(self, process: ProcessQueue, offset: int, incarnation: int | None = None) -> None:
        """The group goes on at `offset`, by an administrator's order, after a loss of the broker's disk or in another
        incarnation of the topic: what is in flight is neither waited for nor committed.
        """
        queue = process.queue
        _log.info("%s: the group was sent from offset %d to %d", queue, process.next_offset, offset)
        self.delivery.drop(queue)
        moved = self._queues[queue] = self.delivery.open(queue, offset)
        moved.epoch = process.epoch
        moved.incarnation = process.incarnation if incarnation is None else incarnation
        self._committed[queue] = offset

    # -- commits --------------------------------------------------------------------------------------------------

    async def _commit_all(self) -> None:
        """What is done, at each broker behind what it is told already."""
        self.delivery.settle()
        await self._committing.finish(self._uncommitted)

    async def _begin_commits(self) -> None:
        self.delivery.settle()
        self._committing.begin(self._uncommitted())

    def _uncommitted(self) -> list[ProcessQueue]:
        return [process for process in self._queues.values() if self._has_to_commit(process)]

    def _has_to_commit(self, process: ProcessQueue) -> bool:
        return self._clustering and self._committed.get(process.queue) != process.commit_offset

    async def _commit_last(self, process: ProcessQueue) -> None:
        """Commit a queue that is let go; what its broker cannot be told counts if the queue comes back to us.

        Of broadcasting no broker is told anything: a queue that comes back goes on where it was.
        """
        offset = process.commit_offset
        await _within(_LAST_COMMIT_SECONDS, self._commit(process))
        known = self._committed.pop(process.queue, offset)
        if not self._clustering or known < offset:
            self._unsaved[process.queue] = process

    async def _commit(self, process: ProcessQueue) -> None:
        offset = process.commit_offset
        if not self._has_to_commit(process):
            return
        try:
            since = self._committed.get(process.queue)
            await self._offsets.commit(process.queue, offset, since, process.incarnation, process.epoch)
            if self._queues.get(process.queue, process) is process:
                self._committed[process.queue] = offset
        except OffsetReset as reset:
            if not process.dropped:
                self._move(process, reset.offset, reset.incarnation)
                self._has_room(process)
        except RayMQError as error:
            _log.debug("commit of %s: %s", process.queue, error)

    # -- duties ---------------------------------------------------------------------------------------------------

    async def _expire_calls(self) -> None:
        self.delivery.expire_calls()


async def _within(seconds: float, work: Awaitable[Any]) -> None:
    """Do it, or as much of it as can be done in that time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await work
