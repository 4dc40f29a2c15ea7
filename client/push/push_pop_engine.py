"""Run a push consumer with mode="pop": brokers lease messages, and it owns no queues.

The engine runs on the connection's event loop. Messages come from the pops of `raymq.client.pop.pop_consumer_engine`,
and go to `ConsumeMessageService` like those of owned queues. The broker is informed of a call before it begins. The
outcome of a message is an acknowledgement, a delay until its next try, or a return if no call began with it. So a
broker can count the messages that a crashed process had begun and not settled.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Final

from raymq.actors.backoff import Backoff
from raymq.actors.errors import BrokerUnavailable, RayMQError, SubscriptionMismatch
from raymq.actors.protocol import MessageQueue, SettleAction, SettleOutcome, SettleResult, TopicRoute
from raymq.client.client_metrics import CLIENT_METRICS, PUSH_CONSUMER
from raymq.client.connection import Connection
from raymq.client.consumer_health import FetchFailures, SkippedMessages
from raymq.client.message import ReceivedMessage
from raymq.client.pop.pop_buffer import BufferedMessage, ReceiveCall
from raymq.client.pop.pop_consumer_engine import PopConsumerEngine
from raymq.client.pop.pop_requests import PopRequests, SettlementBatcher
from raymq.client.push.call_results import SendBackResult
from raymq.client.push.consume_message_service import ConsumeMessageService
from raymq.client.push.consumer_settings import ConsumerSettings
from raymq.client.push.failures import CallFailure
from raymq.client.push.lease_settler import LeaseSettler
from raymq.client.push.listener import ListenerRunner
from raymq.client.push.message_leases import LeasedCall, MessageLease, MessageLeases
from raymq.client.push.process_queue import ProcessQueue
from raymq.client.push.start_offsets import StartOffsets
from raymq.client.push.status_responder import StatusResponder
from raymq.client.requests.offset_requests import ConsumeFrom, OffsetRequests
from raymq.storage.clock import boottime

_TICK_SECONDS: Final = 1.0
#: How many times per lease the leases are checked, but not more often than the second constant allows.
_LOOKS_PER_LEASE: Final = 10
_LEAST_LOOK_SECONDS: Final = 0.01
#: How long a pop waits for the first message before it is repeated.
_PARK_SECONDS: Final = 15.0
#: How long to wait for the confirmation of a call's outcome before its thread is free for other calls.
_OUTCOME_SECONDS: Final = 0.25
#: Messages that were leased ahead and have waited this long go to other members: the listener has become slow.
_AHEAD_SECONDS: Final = 1.0
#: The least time for the last outcomes and leaving the group.
_FAREWELL_SECONDS: Final = 1.0

_log = logging.getLogger(__name__)


class _LeasedQueue(ProcessQueue):
    """The leased messages of one queue that are ready for calls. No offset is committed."""

    __slots__ = ("_on_finish",)

    def __init__(self, queue: MessageQueue, on_finish: Callable[[MessageQueue, int], None]) -> None:
        super().__init__(queue, 0)
        self._on_finish = on_finish

    def extend(self, messages: Sequence[ReceivedMessage], sizes_bytes: Sequence[int]) -> None:  # noqa: ARG002
        """Add messages, in any order."""
        self._ready.extend(messages)

    def finish(self, offset: int) -> None:
        """Finish a message that was consumed, or settled in another way already."""
        self._on_finish(self.queue, offset)


class PushPopEngine:
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
        pops = PopRequests(
            mq,
            settings.group,
            settings.filters,
            ordered=False,
            max_reconsume_times=settings.max_reconsume_times,
            ahead=True,
        )
        self._pop_engine = PopConsumerEngine(
            mq,
            settings.group,
            settings.filters,
            pops,
            waits=settings.missing_topics == "wait",
            retry_max_times=settings.max_reconsume_times,
            owner="consumer",
            version=settings.subscription_version,
        )
        self._pop_engine.on_superseded = on_superseded
        self.supervisor = self._pop_engine.supervisor
        #: The messages that were skipped because they cannot be read. With pops the brokers skip them.
        self.aside = SkippedMessages()
        #: The brokers that do not respond to pops.
        self.failing_fetches = FetchFailures(time.monotonic)
        self._leases = MessageLeases(boottime, settings.threads, settings.batch_size, settings.lease)
        requests = SettlementBatcher(mq, settings.group, self._pop_engine.topics)
        counts = partial(CLIENT_METRICS.consumed, PUSH_CONSUMER, settings.group)
        self._settler = LeaseSettler(requests, self._leases, settings.lease_ms, self.supervisor, counts)
        self.delivery = ConsumeMessageService(
            settings,
            runner,
            self.supervisor,
            send_back=self._make_send_back(),
            on_room=lambda _: None,
        )
        self._status = StatusResponder(self._pop_engine.membership.member, self.delivery)
        self._queues: dict[MessageQueue, _LeasedQueue] = {}
        #: Set when more messages may be popped than before.
        self._room = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._paused = False
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self._stays: list[asyncio.Task[None]] = []
        #: The messages that were finished in this turn of the loop, by call, with the futures of their
        #: acknowledgements.
        self._acks: dict[LeasedCall, list[tuple[MessageLease, asyncio.Future[SettleResult]]]] = {}

    def _make_send_back(self) -> Callable[[ReceivedMessage, CallFailure], Awaitable[SendBackResult]]:
        tracer = self._mq.tracer
        if tracer is None:
            return self._retry
        from raymq.client.push.traced_listener import traced_send_back

        return traced_send_back(self._retry, tracer, self._settings.group)

    async def start(self) -> None:
        """Join the group and fix the start positions.

        Raises:
            TopicNotFound, SubscriptionMismatch, BrokerUnavailable: the engine could not join.
        """
        await self._pop_engine.start()
        self._mq.listen(self._status)
        await self._fix_starts()
        every, settings = self.supervisor.every, self._settings
        look_seconds = max(_LEAST_LOOK_SECONDS, min(_TICK_SECONDS, settings.lease / _LOOKS_PER_LEASE))
        self._stays = [
            every("leases", look_seconds, self._keep_leases),
            every("expiry of calls", min(_TICK_SECONDS, settings.consume_timeout), self._expire_calls),
        ]
        self._tasks = [self.supervisor.keep("pops", self._keep_popping)]

    async def stop(self, timeout: float) -> None:
        """Return unstarted messages, wait for running calls and leave the group.

        This takes at most `timeout` seconds and one more. Messages of a call that still runs then are delivered again
        when their leases end.
        """
        deadline = time.monotonic() + timeout
        self._stopping = True
        self._mq.unlisten(self._status)
        for task in self._tasks:
            task.cancel()
        self.delivery.pause()
        self._give_all_back()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._pop_engine.release()
        try:
            await self.delivery.stop(timeout)
            left = max(deadline - time.monotonic(), _FAREWELL_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left / 2):
                    await self._settler.idle()
        finally:
            for task in self._stays:
                task.cancel()
            self._settler.cancel()
            if self._timer is not None:
                self._timer.cancel()
            await self._pop_engine.stop(max(deadline - time.monotonic(), _FAREWELL_SECONDS) / 2)

    def force_stop(self) -> None:
        """End the wait of `stop` for running listener calls.

        Safe on any thread and in any signal handler.
        """
        self.delivery.force_stop()

    def pause(self) -> None:
        """Begin no further call. Messages with which no call began go to other members."""
        self._paused = True
        self.delivery.pause()
        self._give_all_back()
        self._pop_engine.release()

    def resume(self) -> None:
        """Begin calls again after `pause`."""
        self._paused = False
        self.delivery.resume()
        self._pump()

    # -- taking --------------------------------------------------------------------------------------------------

    async def _fix_starts(self) -> None:
        """Fix where a new group starts, unless that is the first message."""
        settings = self._settings
        if settings.consume_from is ConsumeFrom.FIRST:
            return
        starts = StartOffsets(
            OffsetRequests(self._mq, settings.group),
            settings.consume_from,
            settings.consume_timestamp,
            clustering=True,
        )
        membership = self._pop_engine.membership
        routes = (await membership.routes(settings.filters)).values()
        queues = [queue for route in routes if isinstance(route, TopicRoute) for queue in route.readable()]
        if settings.consume_from is ConsumeFrom.LAST:
            await membership.members()  # also returns the topics for which the members wait
        await starts.fix(queues, membership.awaited_by_group)
        if settings.consume_from is ConsumeFrom.TIMESTAMP:
            for found in await asyncio.gather(*map(starts.find, queues), return_exceptions=True):
                if isinstance(found, RayMQError):
                    _log.debug("start position: %s", found)
                elif isinstance(found, BaseException):
                    raise found

    async def _keep_popping(self) -> None:
        backoff = Backoff(first=0.1, cap=1.0)
        while True:
            self._room.clear()
            count = self._wanted()
            if count <= 0:
                self.failing_fetches.over(self)
                await self._room.wait()
                continue
            receiver, begun_at = ReceiveCall(), time.monotonic()
            try:
                await self._pop_engine.receive(
                    count, self._settings.lease_ms, _PARK_SECONDS, receiver, begun=self._begins_at_once(count)
                )
            except RayMQError as error:
                _log.debug("pop: %s", error)
                if isinstance(error, BrokerUnavailable):
                    self.failing_fetches.failed(self, error.broker, begun_at, error)
                await asyncio.sleep(backoff.next_delay())
            except BaseException:
                receiver.has_given_up = True
                self._pop_engine.take_back(receiver)
                raise
            else:
                backoff.reset()
                self.failing_fetches.over(self)
                self.supervisor.succeeded("pops")
                self._arrived(self._pop_engine.arrived(receiver))

    def _wanted(self) -> int:
        """Return how many more messages may be leased now."""
        settings, leases = self._settings, self._leases
        if self._paused or self._stopping or self._is_held:
            return 0
        target = leases.free * settings.batch_size
        if settings.prefetch is not None:
            target = max(target, settings.prefetch)
        elif self.delivery.latency.is_quick:
            target = settings.threads * settings.batch_size
        return min(target, settings.fetched_messages) - leases.waiting

    def _begins_at_once(self, count: int) -> bool:
        """Return True if a call begins with the only wanted message on its arrival."""
        return count == 1 and self._leases.free > 0 and not self._leases.ahead and self.delivery.wait_seconds <= 0

    @property
    def _is_held(self) -> bool:
        """Return True if calls wait for the rate limit or an outage's end."""
        return any(queue.ready for queue in self._queues.values())

    def _arrived(self, popped: Iterable[BufferedMessage]) -> None:
        leases = [self._leases.add(each.message, each.late_at) for each in popped]
        if self._paused or self._stopping:
            self._leases.take_unstarted()
            self._settler.give_back(leases)
        self._pump()

    # -- calls ---------------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Begin the calls that may begin now."""
        while not (self._paused or self._stopping or self._is_held):
            if (wait_seconds := self.delivery.wait_seconds) > 0:
                self._pump_in(wait_seconds)
                break
            until = self._leases.young_until()  # read before `next_call`, since time goes on
            call = self._leases.next_call()
            if call is None:
                if self._leases.ahead and until is not None:
                    self._pump_in(until - boottime())
                break
            self._settler.spawn(self._begin(call))
            if self._settings.rate_limit is not None:
                break  # the next call begins when this one has used its tokens
        if self._wanted() > 0:
            self._room.set()

    def _pump_in(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, seconds), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._pump()

    async def _begin(self, call: LeasedCall) -> None:
        """Announce a call, and begin it with the messages that this consumer still has."""
        leases, is_begun = list(call.leases.values()), False
        try:
            if not all(lease.is_begun for lease in leases):
                for lease, is_ours in zip(leases, await self._settler.announce(leases), strict=True):
                    if not is_ours:
                        self._leases.ended(call, lease.place)
            is_begun = not (self._paused or self._stopping)
        finally:
            if not is_begun:
                self._settler.give_back(call.leases.values())
                call.leases.clear()
            call.begun_at = boottime()
            self._over(call)
        if not call.leases:
            return
        remaining = list(call.leases.values())
        queue = remaining[0].message.queue
        if queue not in self._queues:
            lent = self._queues[queue] = _LeasedQueue(queue, self._finished)
            self.delivery.take_over(lent)
        self.delivery.add(self._queues[queue], [lease.message for lease in remaining], [0] * len(remaining))
        self._pump()

    def _finished(self, queue: MessageQueue, offset: int) -> None:
        """Acknowledge a message that succeeded, unless its outcome was settled already."""
        place = queue, offset
        found = self._leases.running(place)
        if found is None:
            return
        call, lease = found
        self._leases.ended(call, place)
        again = self._leases.take_redelivered(place)  # it was leased again while its call ran: acknowledge that, too
        done = [lease, *again] if not lease.message.lease_lost else again
        if call not in self._acks:
            self._acks[call] = []
            call.unsettled += 1
            self._settler.spawn(self._acknowledged(call))
        self._acks[call] += [(each, self._settler.acknowledge(each)) for each in done]
        self._free_soon(call)
        if call.is_ending:
            self._pump()

    async def _acknowledged(self, call: LeasedCall) -> None:
        """Wait for the acknowledgements of a call's messages, and retry those that failed.

        These are the messages that were finished in one turn of the loop.
        """
        acks = self._acks.pop(call)
        try:
            if acks:
                await asyncio.wait([request for _, request in acks])
            open_ones = [
                self._settler.settle(lease, SettleAction.ACK, request=request)
                for lease, request in acks
                if request.exception() is not None or request.result().outcome is SettleOutcome.STALE
            ]
            await asyncio.gather(*open_ones)
        finally:
            call.unsettled -= 1
            self._over(call)

    async def _retry(self, message: ReceivedMessage, failure: CallFailure) -> SendBackResult:
        """Settle a message that failed.

        It waits for its next try, or becomes a dead letter.
        """
        place = message.queue, message.queue_offset
        found = self._leases.running(place)
        if found is None or found[1].message is not message:
            return SendBackResult()
        call, lease = found
        self._leases.ended(call, place)
        call.unsettled += 1
        self._free_soon(call)
        try:
            result = None
            if not message.lease_lost:
                result = await self._settler.settle(lease, SettleAction.RETRY, failure.level, failure.reason)
            if result is None or result.outcome is SettleOutcome.STALE:  # it is delivered again, whatever this call did
                return SendBackResult()
            is_dead = result.outcome is SettleOutcome.DEAD
            return SendBackResult(is_dead, None if is_dead else result.delay_ms / 1000)
        finally:
            call.unsettled -= 1
            self._over(call)

    def _free_soon(self, call: LeasedCall) -> None:
        """Free a call's thread soon, even if the broker does not respond."""
        if call.is_ending:
            asyncio.get_running_loop().call_later(_OUTCOME_SECONDS, self._forget, call)

    def _over(self, call: LeasedCall) -> None:
        if not call.leases and not call.unsettled:
            self._forget(call)

    def _forget(self, call: LeasedCall) -> None:
        if call in self._leases.calls:
            self._leases.calls.discard(call)
            if not self._stopping:
                self._pump()

    # -- giving back ---------------------------------------------------------------------------------------------

    def _give_all_back(self) -> None:
        """Return every message with which no call of the listener has begun."""
        self._settler.give_back(self._leases.take_unstarted())
        for queue in self._queues.values():
            for message in queue.take(queue.ready):
                found = self._leases.running((message.queue, message.queue_offset))
                if found is not None:
                    call, lease = found
                    self._leases.ended(call, lease.place)
                    self._settler.give_back([lease])
                    self._over(call)

    # -- leases --------------------------------------------------------------------------------------------------

    async def _keep_leases(self) -> None:
        """Renew the leases that are due, with one request per broker, and record lost ones."""
        if self._settings.prefetch is None and not self._leases.free:
            self._settler.give_back(self._leases.take_unstarted(boottime() - _AHEAD_SECONDS))
        self._settler.renew_due()

    # -- duties --------------------------------------------------------------------------------------------------

    async def _expire_calls(self) -> None:
        self.delivery.expire_calls()
