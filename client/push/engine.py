"""The engine of a push consumer: membership, assignment, positions, commits. Fetching is `raymq.client.push.fetching`.

Runs on the connection's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Awaitable
from typing import Any

from raymq.actors.errors import OffsetReset, QueueNotFound, RayMQError, TopicNotFound
from raymq.actors.naming import retry_topic
from raymq.actors.protocol import MessageQueue
from raymq.actors.supervision import Failure, Supervisor
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.connection import Connection as WireConnection
from raymq.actors.wire.frame import Command
from raymq.client.connection import Connection
from raymq.client.health import Aside
from raymq.client.members.membership import Membership
from raymq.client.members.queue_locks import QueueLocks
from raymq.client.members.rebalance import strategy_named
from raymq.client.members.subscription import TagFilter
from raymq.client.push.committing import Committing
from raymq.client.push.consumer_settings import ConsumerSettings, MessageModel
from raymq.client.push.delivery import Delivery
from raymq.client.push.examining import Examining
from raymq.client.push.fetching import Fetching
from raymq.client.push.listener import ListenerRunner
from raymq.client.push.process_queue import ProcessQueue
from raymq.client.push.queue_backoff import QueueBackoffs
from raymq.client.push.send_back import SendBack
from raymq.client.requests.offsets import GroupOffsets
from raymq.storage.clock import boottime

REBALANCE_SECONDS = 20.0
_TICK_SECONDS = 1.0
_COMMIT_SECONDS = 0.5
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
            pass_over=self.pass_over,
        )
        self._queues: dict[MessageQueue, ProcessQueue] = {}
        self._committed: dict[MessageQueue, int] = {}
        #: Queues that went away with their broker, before it knew how far they were done.
        self._unsaved: dict[MessageQueue, ProcessQueue] = {}
        self._leaving: dict[MessageQueue, asyncio.Task[None]] = {}
        self._backoffs = QueueBackoffs(time.monotonic)
        who = mq, self._client_id, f"{self._client_id}:{settings.group}", settings.group if self._clustering else None
        self._fetching = Fetching(
            *who,
            filters=self._filters,
            queues=self._queues,
            delivery=self.delivery,
            backoffs=self._backoffs,
            supervisor=self.supervisor,
            unreadable=self._unreadable,
        )
        self._examining = Examining(
            *who, fetching=self._fetching, offsets=self._offsets, owner=self, supervisor=self.supervisor
        )
        self._rebalance_now = asyncio.Event()
        self._missed_until = 0.0
        self._tasks: list[asyncio.Task[None]] = []

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
        self._mq.unlisten(self._pushed)
        self._fetching.stop()
        for task in self._tasks:
            task.cancel()
        self._examining.stop()
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
        self._fetching.follow()
        return settled and all(taken) and may_take == new

    async def _take(self, queue: MessageQueue) -> bool:
        try:
            place = await self._offsets.committed(queue) if self._clustering else None
            if place is None:
                place = await self._offsets.first(queue, self._settings.consume_from, self._settings.consume_timestamp)
                if self._clustering:
                    await self._offsets.commit(queue, place[0], incarnation=place[1])
        except (TopicNotFound, QueueNotFound) as error:  # deleted, or not made yet: what does not depend on it goes on
            self._give_up(queue, error)
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

    # -- queues in trouble ----------------------------------------------------------------------------------------

    def gone(self, queue: MessageQueue, error: Exception) -> None:
        """Its broker does not have it (any more): it is not ours, unless it comes back."""
        self._give_up(queue, error)
        self._rebalance_now.set()

    def _give_up(self, queue: MessageQueue, error: Exception) -> None:
        _log.info("%s is not there: %s", queue, error)
        self._fetching.leave_alone(queue, error)
        self._missed_until = time.monotonic() + _RETURN_SECONDS
        self._committed.pop(queue, None)
        self._unsaved.pop(queue, None)
        if self._queues.pop(queue, None) is not None:
            self.delivery.drop(queue)

    def pass_over(self, queue: MessageQueue, offset: int, error: BaseException) -> None:
        """A message cannot be read: it is told and counted, and what is behind it goes on."""
        _log.error("%s: the message at offset %d cannot be read and is passed over: %s", queue, offset, error)
        self.aside.add(queue, offset, error)

    def _unreadable(self, process: ProcessQueue, error: BaseException) -> None:
        self._examining.unreadable(process, error)

    def _has_room(self, process: ProcessQueue) -> None:
        self._fetching.anew(process.queue)

    def move(self, process: ProcessQueue, offset: int, incarnation: int | None = None) -> None:
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
                self.move(process, reset.offset, reset.incarnation)
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
