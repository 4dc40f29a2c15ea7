"""Decide which listener calls begin when, and hand them to the listener's threads in runs.

The service runs on the connection's event loop, and listeners run on their own threads. Queues take turns. A delivery
order says which message may be next (`raymq.client.push.delivery_order`), a token bucket how fast calls may begin, and
the circuit breaker whether an outage allows only a probe (`raymq.client.push.call_limits`).

Quick calls are handed over in runs: a thread takes one batch of messages after the other, and the results of the run
are processed together. The loop takes back the rest of a run in which a call is not quick, for other threads. A run of
an ordered queue ends with its first failure.

A thread that has ended a run wakes the loop only if something waits for the result. Otherwise the result is processed
with the next event, at the latest before the next commit. So code that begins to wait for results must first call
`settle` for the existing ones: a thread records its result before it checks whether something waits.

If a message arrives alone and the listener is quick, the loop's own thread makes the call, outside the loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

from raymq.actors.protocol import MessageQueue
from raymq.actors.supervisor import Supervisor
from raymq.client.client_metrics import CLIENT_METRICS, PUSH_CONSUMER
from raymq.client.consumer_health import RunningCall
from raymq.client.listener_threads import ListenerThreads
from raymq.client.message import ReceivedMessage
from raymq.client.push.call_limits import CircuitBreaker, TokenBucket
from raymq.client.push.call_results import CallResults, SendBackResult
from raymq.client.push.consumer_settings import ConsumerSettings, TraceState
from raymq.client.push.delivery_order import (
    ConcurrentDelivery,
    DeliveryOrder,
    Failures,
    OrderedDelivery,
    all_succeeded,
)
from raymq.client.push.failures import CallFailure
from raymq.client.push.listener import ListenerRunner
from raymq.client.push.listener_runs import ConsumeGate, ListenerRun, RunCaller
from raymq.client.push.process_queue import FetchWindow, ProcessQueue

#: How many runs per thread are handed over ahead of time, so that a thread never waits for the loop.
_RUNS_PER_THREAD = 2
#: The name in `health` of the lack of threads for calls.
_THREADS = "threads of the listener"
#: The rest of a run is taken back from a call that runs for longer.
_TAKE_BACK_SECONDS = 0.005
#: How many calls outside the loop may end before their results are processed.
_ENDED_CALLS = 16


class ConsumeMessageService:
    """All listener calls of one consumer.

    Args:
        supervisor: receives unexpected errors, and restarts the tasks that must go on.
        send_back: see `CallResults`.
        on_room: called with a queue that `waits_for_room` when it has room.
        run_on_loop_thread: lets the loop's thread make a call by itself, if possible
            (`EventLoopThread.run_on_loop_thread`).
        gate: allows each call to begin; None: all calls may begin.
    """

    def __init__(
        self,
        settings: ConsumerSettings,
        runner: ListenerRunner,
        supervisor: Supervisor,
        *,
        send_back: Callable[[ReceivedMessage, CallFailure], Awaitable[SendBackResult]],
        on_room: Callable[[ProcessQueue], None],
        run_on_loop_thread: Callable[[Callable[[], None]], bool] | None = None,
        gate: ConsumeGate | None = None,
    ) -> None:
        self._settings = settings
        self._supervisor = supervisor
        self._on_room = on_room
        self._loop = asyncio.get_running_loop()
        self._clock = self._loop.time
        self._bucket = None if settings.rate_limit is None else TokenBucket(settings.rate_limit, self._clock)
        self._circuit_breaker = CircuitBreaker(self._clock)
        self._results = CallResults(
            *(settings, self._supervisor, self._circuit_breaker),
            send_back=send_back,
            on_finished=self._tell_of_room,
        )
        counts = partial(CLIENT_METRICS.consumed, PUSH_CONSUMER, settings.group)
        self._caller = RunCaller(runner, self._clock, gate, self._failed, counts)
        #: Measures how long calls take.
        self.latency = self._caller.latency
        self._threads = ListenerThreads(
            settings.threads, f"raymq-{settings.group}", self._run, self._failed, self._lacking
        )
        # Leased messages, and those that `prefetch` limits, wait where other members can get them, not at a thread.
        are_ours = not settings.pops and settings.prefetch is None
        self._most_runs = settings.threads * (_RUNS_PER_THREAD if are_ours else 1)
        #: Whether quick calls are handed over in runs of several calls. A trace reports each call as it begins.
        self._makes_runs = are_ours and settings.trace is None
        #: Whether the results of each run are processed as soon as it has ended.
        self._is_watched = settings.trace is not None or settings.on_outage is not None or settings.pops
        self._run_aside = run_on_loop_thread
        #: True while the loop's thread makes a call or is about to. One other thread fewer is used then.
        self._is_aside = False
        self._orders: dict[MessageQueue, DeliveryOrder] = {}
        #: The orders that may have messages now, in the order of their turns.
        self._turns: dict[ProcessQueue, DeliveryOrder] = {}
        self._runs: set[ListenerRun] = set()
        #: Runs whose call counts as failed and still runs.
        self._overdue: set[ListenerRun] = set()
        self._ended: deque[ListenerRun] = deque()
        self._settling = False
        self._taking_back: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_hastened = False

    def open(self, queue: MessageQueue, offset: int) -> ProcessQueue:
        """Take over a queue from `offset` on.

        If ordered, calls begin once no call of an earlier, dropped order of the same queue runs.
        """
        settings = self._settings
        process = ProcessQueue(queue, offset, FetchWindow(settings.fetched_messages, settings.prefetch is not None))
        if not settings.ordered:
            self.take_over(process)
            return process
        limit, interval = settings.max_reconsume_times, settings.ordered_retry_interval
        order = OrderedDelivery(process, interval, limit, settings.park_failed_keys)
        order.blocked = any(run.order.process.queue == queue for run in self._runs)
        self._orders[queue] = order
        return process

    def take_over(self, process: ProcessQueue) -> None:
        """Call the listener with the messages of `process`, in any order."""
        self._orders[process.queue] = ConcurrentDelivery(process)

    @property
    def wait_seconds(self) -> float:
        """Return how long no call may begin, due to the rate limit or an outage."""
        return max(self._circuit_breaker.wait_seconds, self._bucket.wait_seconds if self._bucket else 0.0)

    def drop(self, queue: MessageQueue) -> None:
        """Begin no further call with this queue's messages. A running call still counts."""
        order = self._orders.pop(queue)
        order.process.dropped = True
        self._turns.pop(order.process, None)
        self.settle()

    async def idle(self, queue: MessageQueue) -> None:
        """Wait until no call with messages of this queue runs."""
        for run in [run for run in self._runs if run.order.process.queue == queue]:
            run.ended_future = run.ended_future or self._loop.create_future()
            self.settle()
            await run.ended_future

    def add(self, process: ProcessQueue, messages: Sequence[ReceivedMessage], sizes: Sequence[int]) -> None:
        """Add fetched messages of one queue, with their sizes in bytes.

        If no other message waits and the listener is quick, the loop's thread makes the call with a single message.
        """
        order = self._orders[process.queue]
        if len(messages) == 1 and self._begins_aside(order, messages[0]):
            process.extend_in_flight(messages[0].queue_offset, sizes[0])
            if len(self._ended) >= _ENDED_CALLS:  # results may wait, but not for ever
                self.settle()
            return
        process.extend(messages, sizes)
        self._results.trace(TraceState.READY, messages)
        self._take_turn(order)
        self.settle()

    def _begins_aside(self, order: DeliveryOrder, message: ReceivedMessage) -> bool:
        """Let the loop's thread make a call with one message; return False if it cannot."""
        if self._run_aside is None or self._settings.ordered or not (self._is_idle and self.latency.is_quick):
            return False
        run = ListenerRun(order, deque([[message]]))
        self._is_aside = self._run_aside(lambda: self._run_beside(run))
        if self._is_aside:
            self._runs.add(run)
        return self._is_aside

    @property
    def _is_idle(self) -> bool:
        """Return True if no call runs, no queue waits and calls may begin."""
        return (
            len(self._runs) == len(self._ended)
            and not self._turns
            and not (self._caller.paused or self._caller.stopping or self._is_watched)
            and self._bucket is None
        )

    def settle(self) -> None:
        """Process the results of ended runs, and begin the calls that may begin now."""
        self._settling = False
        while self._ended:
            run = self._ended.popleft()
            self._overdue.discard(run)
            rest = run.withdraw()
            if run.abandoned:  # its thread may have begun one more call meanwhile
                del run.messages[: run.expired], run.failures[: run.expired]
            if run.messages or not run.abandoned:
                self._finish(run, run.messages, run.failures, rest)
        self._pump()

    def gate_opened(self, queues: Iterable[MessageQueue]) -> None:
        """Begin calls of these queues again, which the gate allows now."""
        for order in [self._orders[queue] for queue in queues if queue in self._orders]:
            self._take_turn(order)
        self._pump()

    def _failed(self, error: BaseException) -> None:
        """Report an unexpected error around a call. Any thread may call this."""
        self._supervisor.report("listener call", error)

    def _lacking(self, error: RuntimeError) -> None:
        """Report that no thread could be started for a call, which waits."""
        self._supervisor.report(_THREADS, error)

    def pause(self) -> None:
        """Begin no further call. The queues stay assigned, and fill up to their limits.

        Calls that were handed to the threads and have not begun are taken back.
        """
        self._caller.paused = True
        for run in reversed(self._threads.withdraw()):
            self._finish(run, [], [], run.withdraw())
        self._take_back(0.0)

    def resume(self) -> None:
        """Begin calls again after `pause`."""
        self._caller.paused = False
        self._pump()

    async def stop(self, timeout: float) -> None:
        """Wait for running calls and send-backs, for at most `timeout` seconds."""
        deadline = self._clock() + timeout
        self._caller.stopping = True
        for timer in (self._timer, self._taking_back):
            if timer is not None:
                timer.cancel()
        for run in self._threads.close():
            self._end(run)
        while self._clock() < deadline and not self._is_hastened:
            self.settle()
            if not self._runs and not self._results.is_returning:
                break
            await asyncio.sleep(0.01)
        await self._results.close()

    def force_stop(self) -> None:
        """End the wait of `stop`. Messages of calls that still run are delivered again.

        Safe on any thread and in any signal handler.
        """
        self._is_hastened = True

    def running_calls(self) -> list[RunningCall]:
        """Return the running calls, including those that count as failed.

        Any thread may call this.
        """
        now = self._clock()
        return [
            RunningCall(run.order.process.queue, now - run.started)
            for run in [*self._runs, *self._overdue]
            if run.started is not None and not run.ended
        ]

    @property
    def is_paused(self) -> bool:
        """Return True between `pause` and `resume`."""
        return self._caller.paused

    def queues(self) -> list[ProcessQueue]:
        """Return the queues with whose messages calls may begin."""
        return [order.process for order in self._orders.values()]

    def repeated_messages(self) -> list[ReceivedMessage]:
        """Return the failed messages that ordered queues try again in place."""
        if not self._settings.ordered:
            return []
        in_calls = [message for run in self._runs for message in run.messages[-run.last_size :] if not run.ended]
        waiting = [
            message
            for order in self._orders.values()
            if isinstance(order, OrderedDelivery)
            for message in order.next_messages()
        ]
        return [message for message in [*in_calls, *waiting] if message.failure is not None]

    def expire_calls(self) -> None:
        """Count calls that run for longer than the consume time-out as failed.

        Their later results are ignored.
        """
        self._results.failure_log.flush()
        if self._threads.start_pending():
            self._supervisor.succeeded(_THREADS)
        if self._settings.ordered:
            return
        self.settle()
        limit = self._settings.consume_timeout
        now = self._clock()
        for run in list(self._runs):
            if run.started is not None and now - run.started > limit:
                run.abandoned = True
                self._overdue.add(run)
                rest, messages, failures = run.withdraw(), run.messages.copy(), run.failures.copy()
                run.expired = len(messages)
                failures += [CallFailure.timed_out(limit)] * (len(messages) - len(failures))
                self._finish(run, messages, failures, rest)
        self._pump()

    # -- beginning calls ------------------------------------------------------------------------------------------

    def _take_turn(self, order: DeliveryOrder) -> None:
        """Queue an order that may have messages now, or set a timer for it."""
        wait, gate = order.wait_seconds(self._clock()), self._caller.gate
        if wait is None or order.process.dropped:
            return
        if wait <= 0:
            if gate is None or gate.may_begin(order.process.queue):
                self._turns[order.process] = order
            else:
                gate.want(order.process.queue)
        else:
            self._loop.call_later(wait, self._wake, order)

    def _wake(self, order: DeliveryOrder) -> None:
        self._take_turn(order)
        self._pump()

    def _pump(self) -> None:
        """Begin as many calls as may run now."""
        most = self._settings.threads if self._is_aside else self._most_runs
        while self._turns and len(self._runs) < most and not (self._caller.paused or self._caller.stopping):
            is_outage = self._circuit_breaker.active
            if is_outage and self._runs:
                return
            if (wait := self.wait_seconds) > 0:
                if self._timer is None:
                    self._timer = self._loop.call_later(wait, self._on_timer)
                return
            order = self._turns.pop(next(iter(self._turns)))
            messages = order.next_batch(self._settings.batch_size, self._clock(), 1 if is_outage else self._most_calls)
            if messages:
                self._begin(order, messages, probe=is_outage)
                self._tell_of_room(order.process)
            self._take_turn(order)

    @property
    def _most_calls(self) -> int:
        """Return how many calls the next run may have."""
        if not self._makes_runs:
            return 1
        most = self.latency.calls_per_run
        return most if self._bucket is None else max(1, min(most, self._bucket.available // self._settings.batch_size))

    def _begin(self, order: DeliveryOrder, messages: list[ReceivedMessage], *, probe: bool) -> None:
        """Hand a run with these messages to a thread."""
        settings = self._settings
        size = settings.batch_size
        calls = deque(messages[at : at + size] for at in range(0, len(messages), size))
        if self._bucket is not None:
            self._bucket.take(len(messages))
        self._results.trace(TraceState.IN_FLIGHT, messages)
        if len(calls) > 1 and self._taking_back is None:
            self._taking_back = self._loop.call_later(_TAKE_BACK_SECONDS, self._take_back_slow)
        run = ListenerRun(order, calls, probe, stops_at_failure=settings.ordered or settings.on_outage is not None)
        self._runs.add(run)
        self._threads.submit(run)

    def _take_back_slow(self) -> None:
        """Take back the rests of runs with a slow call; look again later."""
        self._taking_back = None
        self._take_back(_TAKE_BACK_SECONDS)
        if any(run.waiting for run in self._runs):
            self._taking_back = self._loop.call_later(_TAKE_BACK_SECONDS, self._take_back_slow)
        self._pump()

    def _take_back(self, seconds: float) -> None:
        """Take back the messages behind each call that has run for `seconds`."""
        if self._settings.ordered:  # no other thread may take them
            return
        now = self._clock()
        for run in self._runs:
            if run.waiting and run.started is not None and now - run.started >= seconds:
                self.latency.runs_for(now - run.started)
                self._restore(run, run.withdraw())
                self._take_turn(run.order)

    def _restore(self, run: ListenerRun, messages: list[ReceivedMessage]) -> None:
        """Make the messages of calls that have not begun ready again."""
        if self._bucket is not None:
            self._bucket.take(-len(messages))
        if not run.order.process.dropped:
            whose = run.order.process if run.messages else run.order  # the order forgets a run that has not begun
            whose.put_back(messages)

    def _on_timer(self) -> None:
        self._timer = None
        self._pump()

    # -- ended runs -----------------------------------------------------------------------------------------------

    def _run_beside(self, run: ListenerRun) -> None:
        try:
            self._run(run)
        finally:
            self._is_aside = False

    def _run(self, run: ListenerRun) -> None:
        """Make the calls of a run on this thread, and record its end."""
        try:
            self._caller.make_calls(run)
        finally:
            run.ended = True
            self._ended.append(run)
            if not self._settling and self._is_awaited(run):
                self._settling = True
                try:
                    self._loop.call_soon_threadsafe(self.settle)
                except RuntimeError:  # the loop is closed: no one processes the result
                    self._settling = False

    def _is_awaited(self, run: ListenerRun) -> bool:
        """Return True if something waits for the results of this run.

        The run's thread calls this after it has recorded them.
        """
        process = run.order.process
        return (
            not run.messages
            or bool(run.waiting)
            or not all_succeeded(run.failures)
            or bool(self._turns)
            or run.order.waits_for_call
            or (process.waits_for_room and self._ended_messages >= process.lacking)
            or process.dropped
            or self._caller.stopping
            or self._is_watched
        )

    @property
    def _ended_messages(self) -> int:
        """Return how many messages have results that are not processed."""
        return sum(len(run.messages) for run in self._ended.copy())

    def _end(self, run: ListenerRun) -> None:
        """Remove a run that has ended.

        A new order of its queue that waits for this may begin then.
        """
        self._runs.discard(run)
        if run.ended_future is not None and not run.ended_future.done():
            run.ended_future.set_result(None)
        order = self._orders.get(run.order.process.queue)
        if order is not None and order is not run.order and order.blocked:
            order.blocked = False
            self._take_turn(order)

    def _finish(
        self, run: ListenerRun, messages: list[ReceivedMessage], failures: Failures, rest: list[ReceivedMessage]
    ) -> None:
        """Process the results of a run; put back messages of calls not begun."""
        self._end(run)
        self._restore(run, rest)
        order = run.order
        if messages and run.stops_at_failure and len(messages) > run.last_size and not all_succeeded(failures):
            ahead = len(messages) - run.last_size  # only the last call has failed, and its messages may be repeated
            self._results.process(order, messages[:ahead], failures[:ahead])
            self._results.process(order, messages[ahead:], failures[ahead:])
        elif messages:
            self._results.process(order, messages, failures, probe=run.probe)
        self._take_turn(order)

    def _tell_of_room(self, process: ProcessQueue) -> None:
        if process.waits_for_room and process.lacking <= 0 and process.has_room:
            process.waits_for_room = False
            self._on_room(process)
