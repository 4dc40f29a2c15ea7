"""The engine of a push consumer: it looks who has which queue, carries out what follows from that, and commits.

Runs on the connection's event loop. What is to be done with a queue, and in which order, `raymq.client.push.assignment`
says; what is fetched of it, `raymq.client.push.fetching`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial
from typing import Any

from raymq.actors.errors import OffsetReset, QueueNotFound, RayMQError, SubscriptionMismatch, TopicNotFound
from raymq.actors.naming import retry_topic
from raymq.actors.protocol import MessageQueue, TopicRoute
from raymq.actors.supervision import Supervisor, is_meant
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.commands.group import Member
from raymq.actors.wire.connection import WireConnection
from raymq.actors.wire.frame import Command
from raymq.client.connection import Connection
from raymq.client.health import Aside, FailingFetches
from raymq.client.members.membership import Membership
from raymq.client.members.queue_locks import LocksAtBrokers
from raymq.client.members.rebalance import strategy_named
from raymq.client.members.subscription import TagFilter
from raymq.client.push.assignment import (
    Assignment,
    AwaitCalls,
    CommitLast,
    Drop,
    FindStart,
    Instruction,
    Lock,
    Open,
    Shares,
    Unlock,
)
from raymq.client.push.committing import Committing
from raymq.client.push.consumer_settings import ConsumerSettings, MessageModel
from raymq.client.push.delivery import Delivery
from raymq.client.push.examining import Examining
from raymq.client.push.fetching import Fetcher, Fetching
from raymq.client.push.listener import ListenerRunner
from raymq.client.push.process_queue import ProcessQueue
from raymq.client.push.queue_backoff import QueueBackoffs
from raymq.client.push.send_back import SendBack
from raymq.client.push.start_positions import StartPositions
from raymq.client.requests.offsets import ConsumeFrom, OffsetRequests
from raymq.storage.clock import boottime

REBALANCE_SECONDS = 20.0
_TICK_SECONDS = 1.0
_COMMIT_SECONDS = 0.5
#: How long a queue that goes to another member is kept for the sake of an ordered call that still runs.
_LET_GO_SECONDS = 30.0
#: How long the last commits of queues that go to other members are waited for, all at the same time.
_LAST_COMMIT_SECONDS = 3.0

_log = logging.getLogger(__name__)


#: What the last commits and the farewell may take at least.
_FAREWELL_SECONDS = 1.0


class Consuming:
    """One running consumer. Made and used on the connection's loop."""

    def __init__(
        self,
        mq: Connection,
        settings: ConsumerSettings,
        runner: ListenerRunner,
        on_superseded: Callable[[SubscriptionMismatch], None] = lambda _: None,
    ) -> None:
        """`on_superseded`: has to end it, for a subscription of a higher version is in force."""
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
            Member(
                self._client_id,
                settings.group,
                {topic: wanted.subscription(topic) for topic, wanted in settings.filters.items()},
                model=settings.model.value,
                start=settings.consume_from.value,
                version=settings.subscription_version,
            ),
            clock=boottime,
            retry_max_times=settings.max_reconsume_times if self._clustering and not settings.ordered else None,
            owners=self._sticky,
            on_found=self._topics_found,
            on_superseded=self._superseded,
        )
        self._on_superseded = on_superseded
        self._strategy = strategy_named(settings.strategy)
        self.supervisor = Supervisor(f"consumer of {settings.group}")
        #: What was passed over because it cannot be read.
        self.aside = Aside()
        #: The brokers that do not answer its fetches.
        self.failing_fetches = FailingFetches(time.monotonic)
        self._committing = Committing(self._commit, lambda error: self.supervisor.report("commit", error))
        self._offsets = OffsetRequests(mq, settings.group)
        self._starts = StartPositions(
            self._offsets, settings.consume_from, settings.consume_timestamp, clustering=self._clustering
        )
        self._locks = LocksAtBrokers(
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
        #: Queues that were dropped and whose last commit has not ended yet.
        self._dropped: dict[MessageQueue, ProcessQueue] = {}
        self._backoffs = QueueBackoffs(time.monotonic)
        self._assignment = Assignment(
            time.monotonic, locking=self._locking, clustering=self._clustering, backoffs=self._backoffs
        )
        session = f"{self._client_id}:{settings.group}"
        who = Fetcher(mq, self._client_id, session, settings.group if self._clustering else None)
        self._fetching = Fetching(
            who,
            filters=self._filters,
            queues=self._queues,
            delivery=self.delivery,
            backoffs=self._backoffs,
            supervisor=self.supervisor,
            failing=self.failing_fetches,
            unreadable=self._unreadable,
        )
        self._examining = Examining(who, self._fetching, self._offsets, self, self.supervisor)
        self._rebalance_now = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        #: What keeps us a member and our locks ours, as long as calls of our queues run.
        self._stays: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Join the group and fix the start positions.

        Raises:
            TopicNotFound, SubscriptionMismatch, BrokerUnavailable: it could not join.
        """
        routes: list[TopicRoute] = []
        waits = self._settings.missing_topics == "wait"
        ask = self._membership.routes if waits else self._mq.routes.get_all
        for found in (await ask(self._settings.filters, fresh=True)).values():
            if isinstance(found, TopicRoute):
                routes.append(found)
            elif not (waits and isinstance(found, TopicNotFound)):
                raise found
        await self._membership.heartbeat(strict=True)
        if self._settings.consume_from is ConsumeFrom.LAST and self._clustering:
            await self._membership.members()  # also tells which topics they wait for
        await self._starts.fix(
            (queue for route in routes for queue in route.readable() if queue.broker not in self._unmet(route)),
            self._membership.awaited_by_group,
        )
        self._mq.listen(self._pushed)
        await self._share_out()
        keep, expiry = self.supervisor.keep, min(_TICK_SECONDS, self._settings.consume_timeout)
        beat = partial(self._membership.keep, partial(self.supervisor.succeeded, "heartbeat"))
        self._stays = [keep("heartbeat", beat)]
        self._tasks = [
            keep("assignment", self._keep_assignment),
            keep("commits", partial(self._while_busy, "commits", _COMMIT_SECONDS, self._begin_commits)),
            keep("expiry of calls", partial(self._while_busy, "expiry of calls", expiry, self._expire_calls)),
        ]
        if self._locking:
            self._stays.append(
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
        try:
            await self.delivery.stop(timeout)
        finally:
            # Not before: until the last call has ended, no other member may begin what it has.
            for task in self._stays:
                task.cancel()
        left = max(deadline - time.monotonic(), _FAREWELL_SECONDS)
        await _within(left / 2, self._commit_all())
        unlock = [self._locks.unlock(self._assignment.held)] if self._locking else []
        await _within(left / 2, asyncio.gather(*unlock, self._membership.leave()))

    def pause(self) -> None:
        """Begin no further call; the queues stay this member's."""
        self.delivery.pause()

    def resume(self) -> None:
        """The reverse of `pause`."""
        self.delivery.resume()

    def hasten(self) -> None:
        """Let `stop` wait no longer for running listeners. Any thread, any signal handler."""
        self.delivery.hasten()

    # -- rounds ---------------------------------------------------------------------------------------------------

    async def _keep_assignment(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK_SECONDS if self._assignment.is_missing_some else REBALANCE_SECONDS):
                    await self._rebalance_now.wait()
            self._rebalance_now.clear()
            try:
                if await self._share_out():
                    continue
            except RayMQError as error:
                _log.debug("rebalance: %s", error)
            except BaseException:  # what is not shared out is soon: whoever runs this again waits a little
                self._rebalance_now.set()
                raise
            await asyncio.sleep(_TICK_SECONDS)
            self._rebalance_now.set()

    def _pushed(self, _: WireConnection, command: Command) -> None:
        if (
            command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
            and command.fields.get("consumerGroup") == self._settings.group
        ):
            self._rebalance_now.set()
            # A member may have brought a subscription of a higher version; others see that as they list the members.
            if not self._clustering:
                self._membership.greet_all()

    def _topics_found(self, topics: frozenset[str]) -> None:
        """Topics that were missing exist now: take them up without delay."""
        for queue in self._backoffs.queues():
            if queue.topic in topics:
                self._backoffs.succeeded(queue)
        self._rebalance_now.set()

    def _superseded(self, error: SubscriptionMismatch) -> None:
        self.delivery.settle()
        self._committing.begin(self._uncommitted())  # at once: members of the higher version begin there
        self._on_superseded(error)

    async def _share_out(self) -> bool:
        """Take over what is ours now, let go of what is not; False if some of it has to be tried again."""
        shares = await self._look()
        if shares is None:
            return False
        try:
            await self._carry_out(self._assignment.share_out(shares))
        finally:
            self._fetching.follow()
        return self._assignment.is_settled

    async def _look(self) -> Shares | None:
        """The shares as the members and the routes are now; None if no broker says who is a member."""
        members = await self._membership.members() if self._clustering else [self._client_id]
        if not members:
            return None
        mine: set[MessageQueue] = set()
        known: set[MessageQueue] = set()
        unmet: set[MessageQueue] = set()
        settled = self._membership.settled
        for topic, route in (await self._membership.routes(self._filters, fresh=True)).items():
            if isinstance(route, RayMQError):
                _log.debug("route of %s: %s", topic, route)
                mine.update(queue for queue in self._queues if queue.topic == topic)
                settled = settled and isinstance(route, TopicNotFound)
                continue
            queues = route.readable()
            mine.update(self._strategy(queues, members, self._client_id, self._membership.owners))
            known.update(queues)
            away = self._unmet(route)
            unmet.update(queue for queue in queues if queue.broker in away)
        if self._sticky:  # a change is under way until the brokers see each queue with its owner
            owned = {queue for queue, owner in self._membership.owners.items() if owner == self._client_id}
            settled = settled and owned & known == mine & known
        return Shares(mine, known, unmet, settled)

    def _unmet(self, route: TopicRoute) -> set[str]:
        return {broker for broker, address in route.addresses.items() if self._membership.is_unmet(address)}

    # -- instructions ---------------------------------------------------------------------------------------------

    async def _carry_out(self, instructions: Iterable[Instruction]) -> None:
        """Do what the assignment wants, and what follows from it; the calls of listeners are not waited for.

        What nobody expected of one is raised when the others are done. The assignment knows of it by then.
        """
        todo = list(instructions)
        taking = [each for each in todo if isinstance(each, Lock | FindStart)]
        failures: list[BaseException | None] = []
        # First what lets go: the later queues are taken, the surer their last owners have told how far they are.
        for now in ([each for each in todo if not isinstance(each, Lock | FindStart)], taking):
            begun = [work for each in now if (work := self._begin(each)) is not None]
            failures += await asyncio.gather(*begun, return_exceptions=True)
        for failure in failures:
            if failure is not None:
                raise failure

    def _begin(self, instruction: Instruction) -> Coroutine[Any, Any, None] | None:
        """Do it at once, or return what is still to be awaited."""
        match instruction:
            case Lock(queues):
                return self._lock(queues)
            case FindStart(queue):
                return self._find_start(queue)
            case CommitLast(queue):
                return self._commit_last(queue)
            case Unlock(queue):
                return self._unlock(queue)
            case Open(queue):
                self._open(instruction)
            case Drop(queue):
                self._dropped[queue] = self._queues.pop(queue)
                self.delivery.drop(queue)
            case AwaitCalls(queue):
                self.supervisor.keep("handing over of a queue", lambda: self._hand_over(queue))
        return None

    async def _lock(self, queues: tuple[MessageQueue, ...]) -> None:
        try:
            held = await self._locks.lock(queues)
        except BaseException as error:
            if not is_meant(error):
                await self._carry_out(self._assignment.locked(queues, set()))
            raise
        await self._carry_out(self._assignment.locked(queues, held))

    async def _find_start(self, queue: MessageQueue) -> None:
        try:
            offset, incarnation = await self._starts.find(queue)
        except (TopicNotFound, QueueNotFound) as error:  # deleted, or not made yet: what does not depend on it goes on
            await self._carry_out(self._give_up(queue, error))
        except RayMQError as error:
            _log.debug("position of %s: %s", queue, error)
            await self._carry_out(self._assignment.start_unknown(queue))
        except BaseException as error:
            if not is_meant(error):
                await self._carry_out(self._assignment.start_unknown(queue))
            raise
        else:
            self._committed[queue] = offset
            await self._carry_out(self._assignment.start_found(queue, offset, incarnation))

    def _open(self, start: Open) -> None:
        self._queues[start.queue] = process = self.delivery.open(start.queue, start.offset)
        process.incarnation = start.incarnation
        process.epoch = start.epoch

    async def _hand_over(self, queue: MessageQueue) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LET_GO_SECONDS):
                await self.delivery.idle(queue)
        await self._carry_out(self._assignment.calls_over(queue))

    async def _commit_last(self, queue: MessageQueue) -> None:
        process = self._dropped[queue]
        offset = process.commit_offset
        try:
            await _within(_LAST_COMMIT_SECONDS, self._commit(process))
        except BaseException as error:  # it was tried; what is left to do goes on
            if is_meant(error):
                raise  # the consumer is stopped, which commits it
            self.supervisor.report("commit", error)
        self._dropped.pop(queue, None)
        told = self._committed.pop(queue, offset)
        saved = process.is_void or told >= offset
        await self._carry_out(self._assignment.committed_last(queue, process, told=told, saved=saved))

    async def _unlock(self, queue: MessageQueue) -> None:
        self._dropped.pop(queue, None)
        try:
            await self._locks.unlock([queue])
        finally:
            await self._carry_out(self._assignment.unlocked(queue))

    def _heard_of_locks(self, kept: set[MessageQueue], lost: set[MessageQueue]) -> None:
        """Locks were renewed, and others were not: somebody else may have had those queues."""
        for queue in lost & set(self._queues):
            _log.warning("the lock of %s is lost", queue)
            self._rebalance_now.set()
        self._do_at_once(self._assignment.locks_lost(lost))
        self.delivery.gate_opened(kept)

    def _do_at_once(self, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            begun = self._begin(instruction)
            assert begun is None, f"{instruction} has to be awaited"

    # -- queues in trouble ----------------------------------------------------------------------------------------

    def gone(self, process: ProcessQueue, error: Exception) -> None:
        """Its broker does not have it (any more): it is not ours, unless it comes back."""
        if not process.dropped:
            self._do_at_once(self._give_up(process.queue, error))
            self._dropped.pop(process.queue, None)
            self._rebalance_now.set()

    def _give_up(self, queue: MessageQueue, error: Exception) -> list[Instruction]:
        _log.info("%s is not there: %s", queue, error)
        if isinstance(error, TopicNotFound):
            self._membership.doubt(queue.topic, error)
        self._fetching.leave_alone(queue, error)
        self._committed.pop(queue, None)
        return self._assignment.gone(queue)

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
        owned = [*self._queues.values(), *self._dropped.values()]
        return [process for process in owned if self._has_to_commit(process)]

    def _has_to_commit(self, process: ProcessQueue) -> bool:
        return self._clustering and not process.is_void and self._committed.get(process.queue) != process.commit_offset

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
            if process.dropped:
                process.is_void = True
            else:
                self.move(process, reset.offset, reset.incarnation)
                self._has_room(process)
        except RayMQError as error:
            _log.debug("commit of %s: %s", process.queue, error)

    # -- duties ---------------------------------------------------------------------------------------------------

    async def _while_busy(self, work: str, seconds: float, duty: Callable[[], Awaitable[None]]) -> None:
        """Do a duty every so many seconds as long as a message is in hand, or an offset is to be committed."""
        while True:
            await self._fetching.arrived.wait()
            await asyncio.sleep(seconds)
            await duty()
            self.supervisor.succeeded(work)
            if not self._is_busy():
                self._fetching.arrived.clear()

    def _is_busy(self) -> bool:
        owned = [*self._queues.values(), *self._dropped.values()]
        return any(process.in_flight or self._has_to_commit(process) for process in owned)

    async def _expire_calls(self) -> None:
        self.delivery.expire_calls()


async def _within(seconds: float, work: Awaitable[Any]) -> None:
    """Do it, or as much of it as can be done in that time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await work
