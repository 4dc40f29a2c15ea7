"""The engine of a push consumer with mode="pop": brokers lend it messages, and it owns no queues.

Runs on the connection's event loop. Messages come by the pops of `raymq.client.pop.engine`, and go to `Delivery` like
those of owned queues. Before a call begins its broker knows of it; outcomes are acknowledgements, waits for the next
try, and returns of what no call began with. So a broker counts what a process has begun and not answered when it died.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final

from raymq.actors.backoff import Backoff
from raymq.actors.errors import BrokerUnavailable, RayMQError, SubscriptionMismatch
from raymq.actors.protocol import MessageQueue, SettleAction, SettleOutcome, SettleResult, TopicRoute
from raymq.actors.sending.send_plan import is_unanswered
from raymq.client.connection import Connection
from raymq.client.health import Aside, FailingFetches
from raymq.client.message import ReceivedMessage
from raymq.client.pop.engine import Popping
from raymq.client.pop.kept import KeptMessage
from raymq.client.pop.receiver import Receiver
from raymq.client.pop.requests import PopRequests
from raymq.client.pop.settling import Settling
from raymq.client.push.consumer_settings import ConsumerSettings
from raymq.client.push.delivery import Delivery
from raymq.client.push.failures import CallFailure
from raymq.client.push.leases import Leases, LentCall, MessageLease
from raymq.client.push.listener import ListenerRunner
from raymq.client.push.process_queue import ProcessQueue
from raymq.client.push.send_back import SentBack
from raymq.client.push.start_positions import StartPositions
from raymq.client.requests.offsets import ConsumeFrom, OffsetRequests
from raymq.storage.clock import boottime

_TICK_SECONDS: Final = 1.0
#: Leases are looked at so many times while one lasts, but not more often than the second one says.
_LOOKS_PER_LEASE: Final = 10
_LEAST_LOOK_SECONDS: Final = 0.01
#: A pop waits so long for the first message; then it is asked anew.
_PARK_SECONDS: Final = 15.0
#: The outcome of a call is waited for so long before its thread is free for other calls.
_OUTCOME_SECONDS: Final = 0.25
#: What was lent ahead and has waited for so long goes to other members: the listener has become slow.
_AHEAD_SECONDS: Final = 1.0
#: How long it is tried to say that a call begins, while the broker does not answer.
_BEGIN_SECONDS: Final = 5.0
#: What the last outcomes and the farewell may take at least.
_FAREWELL_SECONDS: Final = 1.0

_log = logging.getLogger(__name__)


class _LentQueue(ProcessQueue):
    """The messages of one queue that are ready for calls; nothing is committed of it."""

    __slots__ = ("_on_finish",)

    def __init__(self, queue: MessageQueue, on_finish: Callable[[MessageQueue, int], None]) -> None:
        super().__init__(queue, 0)
        self._on_finish = on_finish

    def extend(self, messages: Sequence[ReceivedMessage], sizes_bytes: Sequence[int]) -> None:  # noqa: ARG002
        """Messages came, in any order."""
        self._ready.extend(messages)

    def finish(self, offset: int) -> None:
        """A message is done: consumed, or settled in another way already."""
        self._on_finish(self.queue, offset)


class PopEngine:
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
        requests = PopRequests(
            mq,
            settings.group,
            settings.filters,
            ordered=False,
            max_reconsume_times=settings.max_reconsume_times,
            ahead=True,
        )
        self._popping = Popping(
            mq,
            settings.group,
            settings.filters,
            requests,
            waits=settings.missing_topics == "wait",
            retry_max_times=settings.max_reconsume_times,
            owner="consumer",
            version=settings.subscription_version,
        )
        self._popping.on_superseded = on_superseded
        self.supervisor = self._popping.supervisor
        #: What was passed over because it cannot be read: brokers do that, for who pops.
        self.aside = Aside()
        #: The brokers that do not answer its pops.
        self.failing_fetches = FailingFetches(time.monotonic)
        self._settling = Settling(mq, settings.group, self._popping.topics)
        self._leases = Leases(boottime, settings.threads, settings.batch_size, settings.lease)
        self.delivery = Delivery(
            settings,
            runner,
            send_back=self._retry,
            on_room=lambda _: None,
            supervisor=self.supervisor,
        )
        self._queues: dict[MessageQueue, _LentQueue] = {}
        #: Set when more may be popped than before.
        self._room = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._paused = False
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self._stays: list[asyncio.Task[None]] = []
        #: The messages that were finished in this turn of the loop, by their call, with what acknowledges them.
        self._acks: dict[LentCall, list[tuple[MessageLease, asyncio.Future[SettleResult]]]] = {}
        #: Settlements that are waited for.
        self._under_way: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Join the group and fix the start positions.

        Raises:
            TopicNotFound, SubscriptionMismatch, BrokerUnavailable: it could not join.
        """
        await self._popping.start()
        await self._fix_starts()
        every, settings = self.supervisor.every, self._settings
        look_seconds = max(_LEAST_LOOK_SECONDS, min(_TICK_SECONDS, settings.lease / _LOOKS_PER_LEASE))
        self._stays = [
            every("leases", look_seconds, self._keep_leases),
            every("expiry of calls", min(_TICK_SECONDS, settings.consume_timeout), self._expire_calls),
        ]
        self._tasks = [self.supervisor.keep("pops", self._keep_popping)]

    async def stop(self, timeout: float) -> None:
        """Give back what no call began with, let running calls end, and leave the group.

        It takes at most `timeout` seconds and one more. What a call that still runs then has comes again when its
        lease is over.
        """
        deadline = time.monotonic() + timeout
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        self.delivery.pause()
        self._give_all_back()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._popping.release()
        try:
            await self.delivery.stop(timeout)
            left = max(deadline - time.monotonic(), _FAREWELL_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left / 2):
                    await self._settled()
        finally:
            for task in [*self._stays, *self._under_way]:
                task.cancel()
            if self._timer is not None:
                self._timer.cancel()
            await self._popping.stop(max(deadline - time.monotonic(), _FAREWELL_SECONDS) / 2)

    def hasten(self) -> None:
        """Let `stop` wait no longer for running listeners. Any thread, any signal handler."""
        self.delivery.hasten()

    def pause(self) -> None:
        """Begin no further call; what no call began with goes to other members."""
        self._paused = True
        self.delivery.pause()
        self._give_all_back()
        self._popping.release()

    def resume(self) -> None:
        """The reverse of `pause`."""
        self._paused = False
        self.delivery.resume()
        self._pump()

    # -- taking --------------------------------------------------------------------------------------------------

    async def _fix_starts(self) -> None:
        """Where a new group begins, where that is not simply at the first message."""
        settings = self._settings
        if settings.consume_from is ConsumeFrom.FIRST:
            return
        starts = StartPositions(
            OffsetRequests(self._mq, settings.group),
            settings.consume_from,
            settings.consume_timestamp,
            clustering=True,
        )
        membership = self._popping.membership
        routes = (await membership.routes(settings.filters)).values()
        queues = [queue for route in routes if isinstance(route, TopicRoute) for queue in route.readable()]
        if settings.consume_from is ConsumeFrom.LAST:
            await membership.members()  # also tells which topics they wait for
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
            wanted = self._wanted()
            if wanted <= 0:
                self.failing_fetches.over(self)
                await self._room.wait()
                continue
            receiver, begun_at = Receiver(), time.monotonic()
            try:
                await self._popping.receive(
                    wanted, self._settings.lease_ms, _PARK_SECONDS, receiver, begun=self._begins_at_once(wanted)
                )
            except RayMQError as error:
                _log.debug("pop: %s", error)
                if isinstance(error, BrokerUnavailable):
                    self.failing_fetches.failed(self, error.broker, begun_at, error)
                await asyncio.sleep(backoff.next_delay())
            except BaseException:
                receiver.has_given_up = True
                self._popping.take_back(receiver)
                raise
            else:
                backoff.reset()
                self.failing_fetches.over(self)
                self.supervisor.succeeded("pops")
                self._arrived(self._popping.arrived(receiver))

    def _wanted(self) -> int:
        """How many messages may be lent now, besides those that are."""
        settings, leases = self._settings, self._leases
        if self._paused or self._stopping or self._is_held:
            return 0
        target = leases.free * settings.batch_size
        if settings.prefetch is not None:
            target = max(target, settings.prefetch)
        elif self.delivery.pace.is_quick:
            target = settings.threads * settings.batch_size
        return min(target, settings.fetched_messages) - leases.waiting

    def _begins_at_once(self, wanted: int) -> bool:
        """Whether a call begins with the only message that is wanted as soon as it comes."""
        return wanted == 1 and self._leases.free > 0 and not self._leases.ahead and self.delivery.wait_seconds <= 0

    @property
    def _is_held(self) -> bool:
        """Whether calls wait for the rate, or for the end of an outage."""
        return any(queue.ready for queue in self._queues.values())

    def _arrived(self, popped: Iterable[KeptMessage]) -> None:
        leases = [self._leases.add(each.message, each.late_at) for each in popped]
        if self._paused or self._stopping:
            self._leases.take_ahead()
            self._give_back(leases)
        self._pump()

    # -- calls ---------------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Begin the calls that may begin now."""
        while not (self._paused or self._stopping or self._is_held):
            if (wait_seconds := self.delivery.wait_seconds) > 0:
                self._pump_in(wait_seconds)
                break
            until = self._leases.young_until()  # before the call is asked for: time goes on
            call = self._leases.next_call()
            if call is None:
                if self._leases.ahead and until is not None:
                    self._pump_in(until - boottime())
                break
            self._spawn(self._begin(call))
            if self._settings.rate_limit is not None:
                break  # the next one begins when this one has taken its share of the rate
        if self._wanted() > 0:
            self._room.set()

    def _pump_in(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, seconds), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._pump()

    async def _begin(self, call: LentCall) -> None:
        """Say that a call begins, and let it begin with the messages that still are this consumer's."""
        leases, is_begun = list(call.leases.values()), False
        try:
            if not all(lease.is_begun for lease in leases):
                for lease, is_ours in zip(leases, await self._say_begun(leases), strict=True):
                    if not is_ours:
                        self._leases.ended(call, lease.place)
            is_begun = not (self._paused or self._stopping)
        finally:
            if not is_begun:
                self._give_back(call.leases.values())
                call.leases.clear()
            call.begun_at = boottime()
            self._over(call)
        if not call.leases:
            return
        left = list(call.leases.values())
        queue = left[0].message.queue
        if queue not in self._queues:
            lent = self._queues[queue] = _LentQueue(queue, self._finished)
            self.delivery.take_over(lent)
        self.delivery.add(self._queues[queue], [lease.message for lease in left], [0] * len(left))
        self._pump()

    async def _say_begun(self, leases: Sequence[MessageLease]) -> list[bool]:
        """Whether each message still is this consumer's; the broker knows then that a call runs with it."""
        deadline = boottime() + min(_BEGIN_SECONDS, self._settings.lease)
        backoff = Backoff(first=0.1, cap=1.0)
        while True:
            asked_at = boottime()
            try:
                outcomes = await asyncio.gather(
                    *(
                        self._settling.settle(lease.message, SettleAction.RUN, self._settings.lease_ms)
                        for lease in leases
                    )
                )
            except RayMQError as error:
                _log.debug("begin of a call: %s", error)
                if boottime() >= deadline or not error.retriable:
                    return [False] * len(leases)
                await asyncio.sleep(backoff.next_delay())
                continue
            for lease in leases:
                self._leases.renewed(lease, asked_at)
            return [told.outcome is not SettleOutcome.STALE for told in outcomes]

    def _finished(self, queue: MessageQueue, offset: int) -> None:
        """The listener succeeded with a message, or its outcome was settled already."""
        place = queue, offset
        found = self._leases.running(place)
        if found is None:
            return
        call, lease = found
        self._leases.ended(call, place)
        again = self._leases.take_same(place)  # it was lent anew while its call ran: that is done, too
        done = [lease, *again] if not lease.message.lease_lost else again
        if call not in self._acks:
            self._acks[call] = []
            call.unsettled += 1
            self._spawn(self._acknowledged(call))
        self._acks[call] += [(each, self._settling.settle(each.message, SettleAction.ACK)) for each in done]
        self._free_soon(call)
        if call.is_ending:
            self._pump()

    async def _acknowledged(self, call: LentCall) -> None:
        """Wait until the broker knows of the messages of a call that were finished in one turn of the loop."""
        acks = self._acks.pop(call)
        try:
            if acks:
                await asyncio.wait([asked for _, asked in acks])
            open_ones = [
                self._end(lease, SettleAction.ACK, asked=asked)
                for lease, asked in acks
                if asked.exception() is not None or asked.result().outcome is SettleOutcome.STALE
            ]
            await asyncio.gather(*open_ones)
        finally:
            call.unsettled -= 1
            self._over(call)

    async def _retry(self, message: ReceivedMessage, failure: CallFailure) -> SentBack:
        """The listener failed with a message: it waits for its next try, or becomes a dead letter."""
        place = message.queue, message.queue_offset
        found = self._leases.running(place)
        if found is None or found[1].message is not message:
            return SentBack()
        call, lease = found
        self._leases.ended(call, place)
        call.unsettled += 1
        self._free_soon(call)
        try:
            told = None
            if not message.lease_lost:
                told = await self._end(lease, SettleAction.RETRY, failure.level, failure.reason)
            if told is None or told.outcome is SettleOutcome.STALE:  # it comes again, whatever this call did
                return SentBack()
            is_dead = told.outcome is SettleOutcome.DEAD
            return SentBack(is_dead, None if is_dead else told.delay_ms / 1000)
        finally:
            call.unsettled -= 1
            self._over(call)

    def _free_soon(self, call: LentCall) -> None:
        """A broker that does not answer keeps no thread from other calls for long."""
        if call.is_ending:
            asyncio.get_running_loop().call_later(_OUTCOME_SECONDS, self._forget, call)

    def _over(self, call: LentCall) -> None:
        if not call.leases and not call.unsettled:
            self._forget(call)

    def _forget(self, call: LentCall) -> None:
        if call in self._leases.calls:
            self._leases.calls.discard(call)
            if not self._stopping:
                self._pump()

    async def _end(
        self,
        lease: MessageLease,
        action: SettleAction,
        argument: int = 0,
        reason: str = "",
        asked: asyncio.Future[SettleResult] | None = None,
    ) -> SettleResult | None:
        """Settle a message, again and again until its lease is over; None: it was not settled.

        `asked`: the first try, if it was made already.
        """
        backoff = Backoff(first=0.1, cap=1.0)
        is_unknown = False
        while True:
            try:
                told = await (asked or self._settling.settle(lease.message, action, argument, reason))
            except RayMQError as error:
                asked, is_unknown = None, is_unknown or is_unanswered(error)
                if boottime() >= lease.ends_at or not error.retriable:
                    _log.debug("%s of %s: %s", action.name, lease.place, error)
                    return None
                await asyncio.sleep(backoff.next_delay())
                continue
            # Else a try that was not answered has done it.
            if told.outcome is SettleOutcome.STALE and not is_unknown and action is not SettleAction.RETURN:
                _log.warning("%s was answered after its lease was over: it comes again", _named(lease))
            return told

    # -- giving back ---------------------------------------------------------------------------------------------

    def _give_all_back(self) -> None:
        """Return every message that no call of the listener has begun with."""
        self._give_back(self._leases.take_ahead())
        for queue in self._queues.values():
            for message in queue.take(queue.ready):
                found = self._leases.running((message.queue, message.queue_offset))
                if found is not None:
                    call, lease = found
                    self._leases.ended(call, lease.place)
                    self._give_back([lease])
                    self._over(call)

    def _give_back(self, leases: Iterable[MessageLease]) -> None:
        for lease in leases:
            self._spawn(self._end(lease, SettleAction.RETURN))

    async def _settled(self) -> None:
        """Wait until brokers have answered to everything that was settled."""
        while self._under_way:
            await asyncio.wait(self._under_way)
        await self._settling.idle()

    # -- leases --------------------------------------------------------------------------------------------------

    async def _keep_leases(self) -> None:
        """Renew what is due, with one request per broker, and note what is lost."""
        if self._settings.prefetch is None and not self._leases.free:
            self._give_back(self._leases.take_ahead(boottime() - _AHEAD_SECONDS))
        for lease in self._leases.over():
            self._lose(lease)
        ahead, running = self._leases.due()
        for lease in ahead:
            self._renew(lease, SettleAction.HOLD)
        for lease in running:
            self._renew(lease, SettleAction.RUN)

    def _renew(self, lease: MessageLease, action: SettleAction) -> None:
        asked_at = boottime()
        lease.is_renewing = True
        lease.is_begun = action is SettleAction.RUN

        def done(answer: asyncio.Future[SettleResult]) -> None:
            lease.is_renewing = False
            if answer.cancelled() or answer.exception() is not None:
                return  # it is still due, until it is over
            if answer.result().outcome is SettleOutcome.STALE:
                self._lose(lease)
            else:
                self._leases.renewed(lease, asked_at)

        self._settling.settle(lease.message, action, self._settings.lease_ms).add_done_callback(done)

    def _lose(self, lease: MessageLease) -> None:
        """Another member may have the message by now."""
        receipt = lease.message.receipt
        found = self._leases.running(lease.place)
        if found is not None and found[1] is lease and receipt is not None and not receipt.is_lost:
            receipt.is_lost = True
            _log.warning("the lease of %s was lost while its call runs: another member may get it", _named(lease))
        self._leases.drop(lease)

    # -- duties --------------------------------------------------------------------------------------------------

    async def _expire_calls(self) -> None:
        self.delivery.expire_calls()

    def _spawn(self, work: Coroutine[Any, Any, object]) -> None:
        task = self.supervisor.once("settling of messages", work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)


def _named(lease: MessageLease) -> str:
    queue, offset = lease.place
    return f"message {lease.message.message_id} ({queue}, offset {offset})"
