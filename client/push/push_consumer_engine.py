"""Run a push consumer: assign queues, carry out the assignment's instructions, and commit.

The engine runs on the connection's event loop. `raymq.client.push.rebalance` decides what to do with a queue and
in which order. `raymq.client.push.queue_fetcher` fetches.
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
from raymq.actors.supervisor import Supervisor, is_own_cancellation
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.commands.group_commands import Member
from raymq.actors.wire.connection_pool import WireConnection
from raymq.actors.wire.frame import Command
from raymq.client.connection import Connection
from raymq.client.consumer_health import FetchFailures, SkippedMessages
from raymq.client.members.assignment_strategies import get_strategy
from raymq.client.members.membership import Membership
from raymq.client.members.queue_locks import QueueLockClient
from raymq.client.members.tag_filter import TagFilter
from raymq.client.message import ReceivedMessage
from raymq.client.push.call_results import SendBackClient, SendBackResult
from raymq.client.push.consume_message_service import ConsumeMessageService
from raymq.client.push.consumer_settings import ConsumerSettings, MessageModel
from raymq.client.push.failures import CallFailure
from raymq.client.push.listener import ListenerRunner
from raymq.client.push.offset_committer import OffsetCommitter
from raymq.client.push.process_queue import ProcessQueue
from raymq.client.push.queue_fetcher import FetchIdentity, QueueFetcher
from raymq.client.push.rebalance import (
    AwaitRunningCalls,
    CommitFinal,
    DropQueue,
    FindStartOffset,
    Instruction,
    LockQueues,
    OpenQueue,
    QueueAssignment,
    QueueBackoffs,
    RebalanceResult,
    UnlockQueue,
)
from raymq.client.push.start_offsets import StartOffsets
from raymq.client.push.status_responder import StatusResponder
from raymq.client.requests.offset_requests import ConsumeFrom, OffsetRequests
from raymq.storage.clock import boottime

REBALANCE_SECONDS = 20.0
_TICK_SECONDS = 1.0
_COMMIT_SECONDS = 0.5
#: How long a queue that goes to another member is kept while an ordered call with its messages still runs.
_LET_GO_SECONDS = 30.0
#: How long the last commits of queues that go to other members are awaited, all at the same time.
_LAST_COMMIT_SECONDS = 3.0

_log = logging.getLogger(__name__)


#: The least time for the last commits and leaving the group.
_FAREWELL_SECONDS = 1.0


class PushConsumerEngine:
    """One running consumer. Created and used on the connection's loop."""

    def __init__(
        self,
        mq: Connection,
        settings: ConsumerSettings,
        runner: ListenerRunner,
        on_superseded: Callable[[SubscriptionMismatch], None],
    ) -> None:
        """Initialize the engine; `start` joins the group.

        Args:
            on_superseded: called if a subscription of a higher version is in force. It has to stop the consumer.
        """
        self._mq = mq
        self._settings = settings
        self._client_id = f"{mq.pool.local_host}@{uuid.uuid4().hex}"
        self._clustering = settings.model is MessageModel.CLUSTERING
        self._locking = settings.ordered and self._clustering
        self._sticky = settings.strategy == "sticky" and self._clustering
        self._filters = dict(settings.filters)
        if self._clustering:
            self._filters[retry_topic(settings.group)] = TagFilter.parse("*")
        self._membership = self._make_membership()
        self._on_superseded = on_superseded
        self._strategy = get_strategy(settings.strategy)
        self.supervisor = Supervisor(f"consumer of {settings.group}")
        #: The messages that were skipped because they cannot be read.
        self.aside = SkippedMessages()
        #: The brokers that do not respond to fetches.
        self.failing_fetches = FetchFailures(time.monotonic)
        self._offset_committer = OffsetCommitter(self._commit, lambda error: self.supervisor.report("commit", error))
        self._offsets = OffsetRequests(mq, settings.group)
        self._starts = StartOffsets(
            self._offsets, settings.consume_from, settings.consume_timestamp, clustering=self._clustering
        )
        self._locks = QueueLockClient(
            mq, self._client_id, settings.group, lambda error: self.supervisor.report("renewal of locks", error)
        )
        self.delivery = ConsumeMessageService(
            settings,
            runner,
            self.supervisor,
            send_back=self._make_send_back(),
            on_room=self._has_room,
            run_on_loop_thread=mq.run_on_loop_thread,
            gate=self._locks if self._locking else None,
        )
        self._queues: dict[MessageQueue, ProcessQueue] = {}
        self._committed: dict[MessageQueue, int] = {}
        #: Queues that were dropped and whose last commit has not ended.
        self._dropped: dict[MessageQueue, ProcessQueue] = {}
        self._backoffs = QueueBackoffs(time.monotonic)
        self._assignment = QueueAssignment(
            time.monotonic, locking=self._locking, clustering=self._clustering, backoffs=self._backoffs
        )
        session = f"{self._client_id}:{settings.group}"
        identity = FetchIdentity(mq, self._client_id, session, settings.group if self._clustering else None)
        self._fetcher = QueueFetcher(
            identity,
            filters=self._filters,
            queues=self._queues,
            delivery=self.delivery,
            backoffs=self._backoffs,
            supervisor=self.supervisor,
            failing=self.failing_fetches,
            offsets=self._offsets,
            owner=self,
        )
        self._status = StatusResponder(self._membership.member, self.delivery)
        self._rebalance_now = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        #: The tasks that renew the membership and the locks while calls with messages of our queues run.
        self._stays: list[asyncio.Task[None]] = []

    def _make_send_back(self) -> Callable[[ReceivedMessage, CallFailure], Awaitable[SendBackResult]]:
        group, tracer = self._settings.group, self._mq.tracer
        client = SendBackClient(self._mq, group, on_given_up=self.aside.add, on_unreadable=self.pass_over)
        if tracer is None:
            return client
        from raymq.client.push.traced_listener import traced_send_back

        return traced_send_back(client, tracer, group)

    def _make_membership(self) -> Membership:
        settings = self._settings
        member = Member(
            self._client_id,
            settings.group,
            {topic: each.subscription(topic) for topic, each in settings.filters.items()},
            model=settings.model.value,
            start=settings.consume_from.value,
            version=settings.subscription_version,
        )
        return Membership(
            self._mq,
            member,
            clock=boottime,
            retry_max_times=settings.max_reconsume_times if self._clustering and not settings.ordered else None,
            owners=self._sticky,
            on_found=self._topics_found,
            on_superseded=self._superseded,
        )

    async def start(self) -> None:
        """Join the group and fix the start positions.

        Raises:
            TopicNotFound, SubscriptionMismatch, BrokerUnavailable: the engine could not join.
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
            await self._membership.members()  # also returns the topics for which the members wait
        await self._starts.fix(
            (queue for route in routes for queue in route.readable() if queue.broker not in self._unmet(route)),
            self._membership.awaited_by_group,
        )
        self._mq.listen(self._pushed)
        self._mq.listen(self._status)
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
                self.supervisor.keep("locks", lambda: self._locks.keep(lambda: self._queues, self._on_locks_renewed))
            )

    async def stop(self, timeout: float) -> None:
        """Let running listener calls end, commit and leave the group.

        This takes at most `timeout` seconds and one more. A broker that hangs is not awaited beyond that: messages
        whose commits it did not receive are delivered again.
        """
        deadline = time.monotonic() + timeout
        self._mq.unlisten(self._pushed)
        self._mq.unlisten(self._status)
        self._fetcher.stop()
        for task in self._tasks:
            task.cancel()
        try:
            await self.delivery.stop(timeout)
        finally:
            # Not earlier: no other member may begin calls with our queues' messages until our last call has ended.
            for task in self._stays:
                task.cancel()
        left = max(deadline - time.monotonic(), _FAREWELL_SECONDS)
        await _within(left / 2, self._commit_all())
        unlock = [self._locks.unlock(self._assignment.held)] if self._locking else []
        await _within(left / 2, asyncio.gather(*unlock, self._membership.leave()))

    def pause(self) -> None:
        """Begin no further call. The queues stay assigned to this member."""
        self.delivery.pause()

    def resume(self) -> None:
        """Begin calls again after `pause`."""
        self.delivery.resume()

    def force_stop(self) -> None:
        """End the wait of `stop` for running listener calls.

        Safe on any thread and in any signal handler.
        """
        self.delivery.force_stop()

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
            except BaseException:  # rebalance again soon; the supervisor that restarts this waits a little
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
            # A new member may have a subscription of a higher version. Clustering members see it when they list the
            # members.
            if not self._clustering:
                self._membership.heartbeat_all()

    def _topics_found(self, topics: frozenset[str]) -> None:
        """Assign the queues of topics that were missing and exist now, without delay."""
        for queue in self._backoffs.queues():
            if queue.topic in topics:
                self._backoffs.succeeded(queue)
        self._rebalance_now.set()

    def _superseded(self, error: SubscriptionMismatch) -> None:
        self.delivery.settle()
        self._offset_committer.begin(self._uncommitted())  # at once: the higher version starts there
        self._on_superseded(error)

    async def _share_out(self) -> bool:
        """Take over queues that are ours now, and release those that are not.

        Return False if some of it has to be tried again.
        """
        shares = await self._look()
        if shares is None:
            return False
        try:
            await self._carry_out(self._assignment.rebalance_queues(shares))
        finally:
            self._fetcher.update_queues()
        return self._assignment.is_settled

    async def _look(self) -> RebalanceResult | None:
        """Return the assignment by the present members and routes.

        Return None if no broker returns the members.
        """
        members = await self._membership.members() if self._clustering else [self._client_id]
        if not members:
            return None
        mine: set[MessageQueue] = set()
        known: set[MessageQueue] = set()
        unreached: set[MessageQueue] = set()
        is_stable = self._membership.is_stable
        for topic, route in (await self._membership.routes(self._filters, fresh=True)).items():
            if isinstance(route, RayMQError):
                _log.debug("route of %s: %s", topic, route)
                mine.update(queue for queue in self._queues if queue.topic == topic)
                is_stable = is_stable and isinstance(route, TopicNotFound)
                continue
            queues = route.readable()
            mine.update(self._strategy(queues, members, self._client_id, self._membership.owners))
            known.update(queues)
            away = self._unmet(route)
            unreached.update(queue for queue in queues if queue.broker in away)
        if self._sticky:  # not stable until the brokers have registered the new owner of each queue
            owned = {queue for queue, owner in self._membership.owners.items() if owner == self._client_id}
            is_stable = is_stable and owned & known == mine & known
        return RebalanceResult(mine, known, unreached, is_stable)

    def _unmet(self, route: TopicRoute) -> set[str]:
        return {broker for broker, address in route.addresses.items() if self._membership.is_unreached(address)}

    # -- instructions ---------------------------------------------------------------------------------------------

    async def _carry_out(self, instructions: Iterable[Instruction]) -> None:
        """Carry out instructions and their follow-up instructions.

        Running listener calls are not awaited. An unexpected error of one instruction is raised after the others are
        done, when the assignment has been informed of it.
        """
        todo = list(instructions)
        taking = [each for each in todo if isinstance(each, LockQueues | FindStartOffset)]
        failures: list[BaseException | None] = []
        # Release queues first: the later queues are taken over, the more certainly their last owners have committed.
        for now in ([each for each in todo if not isinstance(each, LockQueues | FindStartOffset)], taking):
            begun = [work for each in now if (work := self._begin(each)) is not None]
            failures += await asyncio.gather(*begun, return_exceptions=True)
        for failure in failures:
            if failure is not None:
                raise failure

    def _begin(self, instruction: Instruction) -> Coroutine[Any, Any, None] | None:
        """Carry out an instruction at once, or return a coroutine that has to be awaited."""
        match instruction:
            case LockQueues(queues):
                return self._lock(queues)
            case FindStartOffset(queue):
                return self._find_start(queue)
            case CommitFinal(queue):
                return self._commit_last(queue)
            case UnlockQueue(queue):
                return self._unlock(queue)
            case OpenQueue(queue):
                self._open(instruction)
            case DropQueue(queue):
                self._dropped[queue] = self._queues.pop(queue)
                self.delivery.drop(queue)
            case AwaitRunningCalls(queue):
                self.supervisor.keep("handing over of a queue", lambda: self._hand_over(queue))
        return None

    async def _lock(self, queues: tuple[MessageQueue, ...]) -> None:
        try:
            granted = await self._locks.lock(queues)
        except BaseException as error:
            if not is_own_cancellation(error):
                await self._carry_out(self._assignment.locked(queues, set()))
            raise
        await self._carry_out(self._assignment.locked(queues, granted))

    async def _find_start(self, queue: MessageQueue) -> None:
        try:
            offset, incarnation = await self._starts.find(queue)
        except (TopicNotFound, QueueNotFound) as error:  # deleted or not created yet; other queues go on
            await self._carry_out(self._give_up(queue, error))
        except RayMQError as error:
            _log.debug("position of %s: %s", queue, error)
            await self._carry_out(self._assignment.start_unknown(queue))
        except BaseException as error:
            if not is_own_cancellation(error):
                await self._carry_out(self._assignment.start_unknown(queue))
            raise
        else:
            self._committed[queue] = offset
            await self._carry_out(self._assignment.start_found(queue, offset, incarnation))

    def _open(self, start: OpenQueue) -> None:
        self._queues[start.queue] = process = self.delivery.open(start.queue, start.offset)
        process.incarnation = start.incarnation
        process.epoch = start.epoch

    async def _hand_over(self, queue: MessageQueue) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LET_GO_SECONDS):
                await self.delivery.idle(queue)
        await self._carry_out(self._assignment.calls_finished(queue))

    async def _commit_last(self, queue: MessageQueue) -> None:
        process = self._dropped[queue]
        offset = process.commit_offset
        try:
            await _within(_LAST_COMMIT_SECONDS, self._commit(process))
        except BaseException as error:  # the commit was tried; the next steps go on
            if is_own_cancellation(error):
                raise  # the consumer is stopping, which commits the queue
            self.supervisor.report("commit", error)
        self._dropped.pop(queue, None)
        committed = self._committed.pop(queue, offset)
        saved = process.is_void or committed >= offset
        await self._carry_out(self._assignment.final_commit_done(queue, process, told=committed, saved=saved))

    async def _unlock(self, queue: MessageQueue) -> None:
        self._dropped.pop(queue, None)
        try:
            await self._locks.unlock([queue])
        finally:
            await self._carry_out(self._assignment.unlocked(queue))

    def _on_locks_renewed(self, renewed: set[MessageQueue], lost: set[MessageQueue]) -> None:
        """Process a renewal of locks.

        Another member may have had the queues whose locks were lost.
        """
        for queue in lost & set(self._queues):
            _log.warning("the lock of %s is lost", queue)
            self._rebalance_now.set()
        self._do_at_once(self._assignment.locks_lost(lost))
        self.delivery.gate_opened(renewed)

    def _do_at_once(self, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            begun = self._begin(instruction)
            assert begun is None, f"{instruction} has to be awaited"

    # -- queues in trouble ----------------------------------------------------------------------------------------

    def gone(self, process: ProcessQueue, error: Exception) -> None:
        """Release a queue that its broker does not have, or no longer has."""
        if not process.dropped:
            self._do_at_once(self._give_up(process.queue, error))
            self._dropped.pop(process.queue, None)
            self._rebalance_now.set()

    def _give_up(self, queue: MessageQueue, error: Exception) -> list[Instruction]:
        _log.info("%s does not exist: %s", queue, error)
        if isinstance(error, TopicNotFound):
            self._membership.doubt(queue.topic, error)
        self._fetcher.back_off(queue, error)
        self._committed.pop(queue, None)
        return self._assignment.gone(queue)

    def pass_over(self, queue: MessageQueue, offset: int, error: BaseException) -> None:
        """Log and count a message that cannot be read. The messages after it are consumed."""
        _log.error("%s: the message at offset %d cannot be read and is passed over: %s", queue, offset, error)
        self.aside.add(queue, offset, error)

    def _has_room(self, process: ProcessQueue) -> None:
        self._fetcher.restart_fetch(process.queue)

    def move(self, process: ProcessQueue, offset: int, incarnation: int | None = None) -> None:
        """Continue a queue at `offset`, discarding the messages in flight.

        The reason is an administrator's reset, a loss of messages on the broker's disk, or another incarnation of the
        topic. The messages in flight are neither awaited nor committed.
        """
        queue = process.queue
        _log.info("%s: the group continues at offset %d instead of %d", queue, offset, process.next_offset)
        self.delivery.drop(queue)
        moved = self._queues[queue] = self.delivery.open(queue, offset)
        moved.epoch = process.epoch
        moved.incarnation = process.incarnation if incarnation is None else incarnation
        self._committed[queue] = offset

    # -- commits --------------------------------------------------------------------------------------------------

    async def _commit_all(self) -> None:
        """Commit all finished messages, at each broker after the commits in flight."""
        self.delivery.settle()
        await self._offset_committer.finish(self._uncommitted)

    async def _begin_commits(self) -> None:
        self.delivery.settle()
        self._offset_committer.begin(self._uncommitted())

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
        """Run a task every `seconds` while messages are in flight or offsets are uncommitted."""
        while True:
            await self._fetcher.arrived.wait()
            await asyncio.sleep(seconds)
            await duty()
            self.supervisor.succeeded(work)
            if not self._is_busy():
                self._fetcher.arrived.clear()

    def _is_busy(self) -> bool:
        owned = [*self._queues.values(), *self._dropped.values()]
        return any(process.in_flight or self._has_to_commit(process) for process in owned)

    async def _expire_calls(self) -> None:
        self.delivery.expire_calls()


async def _within(seconds: float, work: Awaitable[Any]) -> None:
    """Await `work`, and cancel it after `seconds`."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await work
