"""Pass fetched messages to listener calls, and process the results of the calls.

The service runs on the connection's event loop, and listeners run on their own threads. Queues take turns. A delivery
order says which message may be next (`raymq.client.push.delivery_order`), a token bucket how fast calls may begin, and
the circuit breaker whether an outage allows only a probe.

Quick calls of an unordered consumer are handed over in runs: a thread takes one batch of messages after the other, and
the results of the run are processed together. The loop takes back the rest of a run in which a call is not quick.

A thread that has ended a run wakes the loop only if something waits for the result. Otherwise the result is processed
with the next event, at the latest before the next commit. So code that begins to wait for results must first call
`settle` for the existing ones: a thread records its result before it checks whether something waits.

If a message arrives alone and the listener is quick, the loop's own thread makes the call, outside the loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from raymq.actors.protocol import MessageQueue
from raymq.actors.supervisor import Supervisor, Work
from raymq.client.consumer_health import RunningCall
from raymq.client.listener_threads import ListenerThreads
from raymq.client.message import ReceivedMessage
from raymq.client.push.circuit_breaker import CircuitBreaker
from raymq.client.push.consumer_settings import ConsumerSettings, MessageModel
from raymq.client.push.delivery_order import ConcurrentDelivery, DeliveryOrder, Failures, OrderedDelivery, all_succeeded
from raymq.client.push.failures import CallFailure, FailureLog
from raymq.client.push.fetch_window import FetchWindow
from raymq.client.push.listener import ListenerRunner
from raymq.client.push.listener_latency import ListenerLatency
from raymq.client.push.process_queue import ProcessQueue
from raymq.client.push.send_back_client import SendBackResult
from raymq.client.push.token_bucket import TokenBucket
from raymq.client.push.trace import TraceEvent, TraceState
from raymq.storage.errors import number_text

#: How many calls per thread are handed over ahead of time, so that a thread never waits for the loop.
_CALLS_PER_THREAD = 2
#: The name in `health` of the lack of threads for calls.
_THREADS = "threads of the listener"
#: The most calls of one run, and how long they are expected to take in all.
_CALLS_A_RUN = 64
_RUN_SECONDS = 2e-3
#: The rest of a run is taken back from a call that runs for longer.
_TAKE_BACK_SECONDS = 0.02
#: How many calls outside the loop may end before their results are processed.
_ENDED_CALLS = 16
#: How many seconds a log line on a failed call waits for the broker's response about the redelivery.
_ANSWER_SECONDS = 1.0


@dataclass(eq=False, slots=True)
class _Run:
    """Calls of the listener that one thread makes one after the other; usually one.

    Its thread sets `started`, `messages` and `failures`.
    """

    order: DeliveryOrder
    #: The messages of each call that has not begun. Its thread takes the first ones, and the loop may take all.
    waiting: deque[list[ReceivedMessage]]
    probe: bool
    #: When the present or last call began.
    started: float | None = None
    #: The messages of the calls that have begun, and the results of those that have ended.
    messages: list[ReceivedMessage] = field(default_factory=list)
    failures: Failures = field(default_factory=list)
    #: It counts as failed, and has been processed up to this number of messages.
    abandoned: bool = False
    expired: int = 0
    #: Set by its thread if it did not begin a call, because the gate was closed by then.
    barred: bool = False
    #: Set by its thread when the run has ended. The results may not be processed yet.
    ended: bool = False
    #: Done when the run has ended, for code that waits for that.
    ended_future: asyncio.Future[None] | None = None

    def withdraw(self) -> list[ReceivedMessage]:
        """Remove and return the messages of the calls that have not begun, in order."""
        withdrawn: list[ReceivedMessage] = []
        while self.waiting:
            try:
                withdrawn[:0] = self.waiting.pop()
            except IndexError:  # its thread was quicker
                break
        return withdrawn


class ConsumeGate(Protocol):
    """Decides whether calls of a queue may begin: an ordered consumer's locks.

    It is checked before each call.
    """

    def may_begin(self, queue: MessageQueue) -> bool:
        """Return True if a call of the queue may begin. Any thread may call this."""

    def want(self, queue: MessageQueue) -> None:
        """Register a waiting call. Called on the loop.

        `ConsumeMessageService.gate_opened` is called when the call may begin.
        """


class ConsumeMessageService:
    """All listener calls of one consumer.

    Args:
        send_back: sends a failed message back to its broker and returns the outcome. It returns only when that has
            succeeded or is no longer possible.
        on_room: called with a queue that `waits_for_room` when it has room.
        run_on_loop_thread: lets the loop's thread make a call by itself, if possible
            (`EventLoopThread.run_on_loop_thread`).
        gate: allows each call to begin; None: all calls may begin.
        supervisor: receives unexpected errors, and restarts the tasks that must go on.
        pass_over: called with a message that cannot be read when it should be sent back: its queue, its offset and the
            error.
    """

    def __init__(
        self,
        settings: ConsumerSettings,
        runner: ListenerRunner,
        *,
        send_back: Callable[[ReceivedMessage, CallFailure], Awaitable[SendBackResult]],
        on_room: Callable[[ProcessQueue], None],
        run_on_loop_thread: Callable[[Callable[[], None]], bool] | None = None,
        gate: ConsumeGate | None = None,
        supervisor: Supervisor | None = None,
        pass_over: Callable[[MessageQueue, int, BaseException], None] = lambda *_: None,
    ) -> None:
        self._settings = settings
        self._supervisor = supervisor or Supervisor(f"consumer of {settings.group}")
        self._runner = runner
        self._send_back = send_back
        self._on_room = on_room
        self._gate = gate
        self._pass_over = pass_over
        self._loop = asyncio.get_running_loop()
        self._clock = self._loop.time
        self._threads = ListenerThreads(
            settings.threads, f"raymq-{settings.group}", self._run, self._failed, self._lacking
        )
        # Leased messages, and those that `prefetch` limits, wait where other members can get them, not at a thread.
        ahead = 1 if settings.pops or settings.prefetch is not None else _CALLS_PER_THREAD
        self._most_calls = settings.threads * ahead
        self._run_aside = run_on_loop_thread
        #: Measures how long calls take.
        self.pace = ListenerLatency(self._clock)
        #: True while the loop's thread makes a call or is about to. One other thread fewer is used then.
        self._is_aside = False
        self._bucket = None if settings.rate_limit is None else TokenBucket(settings.rate_limit, self._clock)
        self._circuit_breaker = CircuitBreaker(self._clock)
        self._failure_log = FailureLog(settings.group, self._clock)
        self._orders: dict[MessageQueue, DeliveryOrder] = {}
        #: The unordered ones of these, whose messages wait for no other messages.
        self._direct: dict[ProcessQueue, DeliveryOrder] = {}
        self._turns: dict[ProcessQueue, DeliveryOrder] = {}
        self._calls: set[_Run] = set()
        #: Calls that count as failed and still run.
        self._overdue: set[_Run] = set()
        self._ended: deque[_Run] = deque()
        self._settling = False
        #: Whether the result of each call is processed as soon as it has ended.
        self._is_watched = settings.trace is not None or settings.on_outage is not None or settings.pops
        #: Whether quick calls are handed over in runs. Other messages must not wait behind a call of their thread.
        self._makes_runs = not (
            settings.ordered or self._is_watched or settings.prefetch is not None or settings.rate_limit is not None
        )
        self._taking_back: asyncio.TimerHandle | None = None
        self._returning: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._paused = False
        self._stopping = False
        self._is_hastened = False

    def open(self, queue: MessageQueue, offset: int) -> ProcessQueue:
        """Take over a queue from `offset` on.

        If ordered, calls begin once no call of an earlier, dropped order of the same queue runs.
        """
        settings = self._settings
        process = ProcessQueue(queue, offset, FetchWindow(settings.fetched_messages, settings.prefetch is not None))
        order: DeliveryOrder = ConcurrentDelivery(process)
        if settings.ordered:
            limit, interval = settings.max_reconsume_times, settings.ordered_retry_interval
            order = OrderedDelivery(process, interval, limit, settings.park_failed_keys)
            order.blocked = any(call.order.process.queue == queue for call in self._calls)
        else:
            self._direct[process] = order
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
        self._direct.pop(order.process, None)
        self._turns.pop(order.process, None)
        self.settle()

    async def idle(self, queue: MessageQueue) -> None:
        """Wait until no call with messages of this queue runs."""
        for call in [call for call in self._calls if call.order.process.queue == queue]:
            call.ended_future = call.ended_future or self._loop.create_future()
            self.settle()
            await call.ended_future

    def add(self, process: ProcessQueue, messages: Sequence[ReceivedMessage], sizes: Sequence[int]) -> None:
        """Add fetched messages of one queue, with their sizes in bytes."""
        process.extend(messages, sizes)
        self._trace(TraceState.READY, messages)
        self._take_turn(self._orders[process.queue])
        self.settle()

    def add_one(self, process: ProcessQueue, message: ReceivedMessage, size: int) -> None:
        """Add one fetched message.

        If no other message waits and the listener is quick, the loop's thread makes the call itself.
        """
        if not (self._is_idle and self.pace.is_quick and process in self._direct):
            self.add(process, [message], [size])
            return
        call = _Run(self._direct[process], deque([[message]]), probe=False)
        self._is_aside = self._run_aside is not None and self._run_aside(lambda: self._run_beside(call))
        if not self._is_aside:
            self.add(process, [message], [size])
            return
        process.extend_in_flight(message.queue_offset, size)
        self._calls.add(call)
        if len(self._ended) >= _ENDED_CALLS:  # results may wait, but not for ever
            self.settle()

    @property
    def _is_idle(self) -> bool:
        """Return True if no call runs, no queue waits and calls may begin."""
        return (
            len(self._calls) == len(self._ended)
            and not self._turns
            and not (self._paused or self._stopping or self._is_watched)
            and self._bucket is None
        )

    def settle(self) -> None:
        """Process the results of ended calls, and begin the calls that may begin now."""
        self._settling = False
        while self._ended:
            call = self._ended.popleft()
            self._overdue.discard(call)
            rest = call.withdraw()
            if call.abandoned:  # its thread may have begun one more call meanwhile
                del call.messages[: call.expired], call.failures[: call.expired]
                if not call.messages:
                    continue
            if call.messages:
                self._finish(call, rest)
            else:
                self._not_begun(call, rest)
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
        self._paused = True
        for call in reversed(self._threads.withdraw()):
            self._not_begun(call, call.withdraw())
        self._take_back(0.0)

    def resume(self) -> None:
        """Begin calls again after `pause`."""
        self._paused = False
        self._pump()

    async def stop(self, timeout: float) -> None:
        """Wait for running calls and send-backs, for at most `timeout` seconds."""
        deadline = self._clock() + timeout
        self._stopping = True
        if self._timer is not None:
            self._timer.cancel()
        for call in self._threads.close():
            self._end(call)
        while self._clock() < deadline and not self._is_hastened:
            self.settle()
            if not self._calls and not self._returning:
                break
            await asyncio.sleep(0.01)
        unfinished = list(self._returning)
        for task in unfinished:  # a message that is not sent back is not committed either, so it is redelivered
            task.cancel()
        if unfinished:
            await asyncio.wait(unfinished)
        self._failure_log.flush(all_of_them=True)

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
            RunningCall(call.order.process.queue, now - call.started)
            for call in [*self._calls, *self._overdue]
            if call.started is not None and not call.ended
        ]

    def expire_calls(self) -> None:
        """Count calls that run for longer than the consume time-out as failed.

        Their later results are ignored.
        """
        self._failure_log.flush()
        if self._threads.start_pending():
            self._supervisor.succeeded(_THREADS)
        if self._settings.ordered:
            return
        self.settle()
        limit = self._settings.consume_timeout
        now = self._clock()
        for call in list(self._calls):
            if call.started is not None and now - call.started > limit:
                call.abandoned = True
                self._overdue.add(call)
                rest, messages, failures = call.withdraw(), call.messages.copy(), call.failures.copy()
                call.expired = len(messages)
                failures += [CallFailure.timed_out(limit)] * (len(messages) - len(failures))
                self._end(call)
                self._finish(_Run(call.order, deque(), call.probe, messages=messages, failures=failures), rest)
        self._pump()

    # -- calls ----------------------------------------------------------------------------------------------------

    def _take_turn(self, order: DeliveryOrder) -> None:
        """Queue an order that may have messages now, or set a timer for it."""
        wait = order.wait_seconds(self._clock())
        if wait is None or order.process.dropped:
            return
        if wait <= 0:
            if self._gate is None or self._gate.may_begin(order.process.queue):
                self._turns[order.process] = order
            else:
                self._gate.want(order.process.queue)
        else:
            self._loop.call_later(wait, self._wake, order)

    def _wake(self, order: DeliveryOrder) -> None:
        self._take_turn(order)
        self._pump()

    def _pump(self) -> None:
        """Begin as many calls as may run now."""
        while self._turns and len(self._calls) < self._most and not self._paused and not self._stopping:
            if self._circuit_breaker.active and self._calls:
                return
            if (wait := self.wait_seconds) > 0:
                if self._timer is None:
                    self._timer = self._loop.call_later(wait, self._on_timer)
                return
            order = self._turns.pop(next(iter(self._turns)))
            waiting = self._next_calls(order)
            if waiting:
                self._begin(_Run(order, waiting, probe=self._circuit_breaker.active))
                self._tell_of_room(order.process)
            self._take_turn(order)

    def _next_calls(self, order: DeliveryOrder) -> deque[list[ReceivedMessage]]:
        """Return the messages of the next call of an order, or of a run."""
        size = self._settings.batch_size
        most = min(_CALLS_A_RUN, self.pace.quick_calls(_RUN_SECONDS)) if self._makes_runs else 1
        messages = order.next_batch(size * most, self._clock())
        if len(messages) <= size:
            return deque([messages] if messages else [])
        if self._taking_back is None:
            self._taking_back = self._loop.call_later(_TAKE_BACK_SECONDS, self._take_back_slow)
        return deque(messages[at : at + size] for at in range(0, len(messages), size))

    def _take_back_slow(self) -> None:
        """Take back the rests of runs with a slow call; look again later."""
        self._taking_back = None
        self._take_back(_TAKE_BACK_SECONDS)
        if any(call.waiting for call in self._calls):
            self._taking_back = self._loop.call_later(_TAKE_BACK_SECONDS, self._take_back_slow)
        self._pump()

    def _take_back(self, seconds: float) -> None:
        """Take back the messages behind each call that has run for `seconds`."""
        now = self._clock()
        for call in self._calls:
            if call.waiting and call.started is not None and now - call.started >= seconds:
                rest = call.withdraw()
                if rest and not call.order.process.dropped:
                    call.order.put_back(rest)
                    self._take_turn(call.order)

    def _on_timer(self) -> None:
        self._timer = None
        self._pump()

    def _begin(self, call: _Run) -> None:
        if self._bucket is not None:
            self._bucket.take(sum(map(len, call.waiting)))
        if self._settings.trace is not None:
            self._trace(TraceState.IN_FLIGHT, [message for messages in call.waiting for message in messages])
        self._calls.add(call)
        self._threads.submit(call)

    @property
    def _most(self) -> int:
        """Return how many calls may be begun or handed over.

        At most `threads` calls run at a time.
        """
        return self._settings.threads if self._is_aside else self._most_calls

    def _run_beside(self, call: _Run) -> None:
        try:
            self._run(call)
        finally:
            self._is_aside = False

    def _run(self, call: _Run) -> None:
        """Make the calls of a run on a listener thread or on the loop's thread.

        The run ends whatever happens.
        """
        process, deadline = call.order.process, self._clock() + 2 * _RUN_SECONDS
        try:
            # A call that has not begun when the consumer stops or the program ends is skipped: its messages are
            # redelivered elsewhere.
            while not (process.dropped or self._stopping or not threading.main_thread().is_alive()):
                if self._gate is not None and not self._gate.may_begin(process.queue):
                    call.barred = True
                    break
                try:
                    messages = call.waiting.popleft()
                except IndexError:  # none is left, or the loop has taken them back
                    break
                call.started = began = self._clock()
                call.messages += messages
                failures = self._runner.call(messages)
                call.failures += failures
                ended = self._clock()
                self.pace.took(ended - began)
                if ended > deadline or self._paused:
                    break
        except BaseException as error:  # noqa: BLE001 - a run has to end after any error
            if call.started is None:
                call.barred = True
            missing = len(call.messages) - len(call.failures)
            call.failures += [CallFailure.raised(error)] * missing
            self._failed(error)
        finally:
            call.ended = True
            self._ended.append(call)
            if not self._settling and self._is_awaited(call):
                self._settling = True
                try:
                    self._loop.call_soon_threadsafe(self.settle)
                except RuntimeError:  # the loop is closed: no one processes the result
                    self._settling = False

    def _is_awaited(self, call: _Run) -> bool:
        """Return True if something waits for the results of this run.

        The run's thread calls this after it has recorded them.
        """
        process = call.order.process
        return (
            not call.messages
            or bool(call.waiting)
            or not all_succeeded(call.failures)
            or bool(self._turns)
            or call.order.waits_for_call
            or (process.waits_for_room and self._ended_messages >= process.lacking)
            or process.dropped
            or self._stopping
            or self._is_watched
        )

    @property
    def _ended_messages(self) -> int:
        """Return how many messages have results that are not processed."""
        return sum(len(call.messages) for call in self._ended.copy())

    # -- outcomes -------------------------------------------------------------------------------------------------

    def _end(self, call: _Run) -> None:
        """Remove a call that has ended.

        A new order of its queue that waits for this may begin then.
        """
        self._calls.discard(call)
        if call.ended_future is not None and not call.ended_future.done():
            call.ended_future.set_result(None)
        order = self._orders.get(call.order.process.queue)
        if order is not None and order is not call.order and order.blocked:
            order.blocked = False
            self._take_turn(order)

    def _not_begun(self, call: _Run, messages: list[ReceivedMessage]) -> None:
        """End a run before its first call; its messages are delivered later, or elsewhere."""
        self._end(call)
        if not call.order.process.dropped:
            call.order.put_back(messages)
            self._take_turn(call.order)

    def _finish(self, call: _Run, rest: list[ReceivedMessage]) -> None:
        """Process a run's results, and put back the messages of calls not begun."""
        self._end(call)
        if rest and not call.order.process.dropped:
            call.order.process.put_back(rest)
        try:
            self._decide(call)
        except BaseException as error:  # noqa: BLE001 - an unreadable message must not block the others
            self._supervisor.report("outcome of a call", error)
            self._decide_singly(call)

    def _decide(self, call: _Run) -> None:
        order, process, failures = call.order, call.order.process, call.failures
        returned: dict[int, asyncio.Future[SendBackResult]] = {}
        if stays_out := self._settings.on_outage is not None and self._stays_out(call, failures):
            order.put_back(call.messages)
        else:
            decision = order.done(call.messages, failures, self._clock())
            for message in decision.finished:
                process.finish(message.queue_offset)
            self._trace(TraceState.COMMIT, decision.finished)
            for message, failure in decision.returned:
                returned[message.queue_offset] = self._give_back(process, message, failure)
            self._trace_repeats(call, decision.finished, [message for message, _ in decision.returned])
        self._log_failed(call, failures, returned, stays_out=stays_out)
        self._tell_of_room(process)
        self._take_turn(order)

    def _decide_singly(self, call: _Run) -> None:
        """Process the messages of a run one by one, after an error in `_decide`.

        Messages that succeeded are finished, and those that failed are sent back.
        """
        order, process = call.order, call.order.process
        for message, failure in zip(call.messages, call.failures, strict=True):
            if failure is None:
                process.finish(message.queue_offset)
            else:
                self._give_back(process, message, failure)
        order.forget_call()
        self._tell_of_room(process)
        self._take_turn(order)

    def _tell_of_room(self, process: ProcessQueue) -> None:
        if process.waits_for_room and process.lacking <= 0 and process.has_room:
            process.waits_for_room = False
            self._on_room(process)

    def _stays_out(self, call: _Run, failures: Failures) -> bool:
        """Return True if an outage continues after this call.

        Its messages are kept then.
        """
        for failure in failures:
            self._circuit_breaker.record(success=failure is None)
        if not self._circuit_breaker.active or None in failures:
            return False
        if call.probe:
            self._circuit_breaker.probe_failed()
        return True

    def _give_back(
        self, process: ProcessQueue, message: ReceivedMessage, failure: CallFailure
    ) -> asyncio.Future[SendBackResult]:
        """Send a message back to its broker, and return a future of the outcome."""
        outcome: asyncio.Future[SendBackResult] = self._loop.create_future()
        if self._settings.model is MessageModel.BROADCASTING:
            process.finish(message.queue_offset)
            outcome.set_result(SendBackResult(given_up=True))
            return outcome

        async def work() -> None:
            result = await self._return(process, message, failure)
            outcome.set_result(result)

        self._keep_returning("send-back", work)
        return outcome

    def _keep_returning(self, name: str, work: Work) -> None:
        task = self._supervisor.keep(name, work)
        self._returning.add(task)
        task.add_done_callback(self._returning.discard)

    async def _return(self, process: ProcessQueue, message: ReceivedMessage, failure: CallFailure) -> SendBackResult:
        """Send a message back. It stays in flight and uncommitted until the broker has it."""
        try:
            message.message_id, message.physical_offset  # noqa: B018 - decodes it
        except Exception as error:  # noqa: BLE001 - a damaged record, which cannot be sent back
            self._pass_over(process.queue, message.queue_offset, error)
            process.finish(message.queue_offset)
            self._tell_of_room(process)
            return SendBackResult(given_up=True)
        result = await self._send_back(message, failure)
        process.finish(message.queue_offset)
        self._trace(TraceState.DEAD_LETTER if result.dead else TraceState.RETRY, [message])
        if result.dead:
            self._failure_log.dead_letter(message, failure.reason)
        self._tell_of_room(process)
        return result

    def _log_failed(
        self, call: _Run, failures: Failures, returned: dict[int, asyncio.Future[SendBackResult]], *, stays_out: bool
    ) -> None:
        """Log a failed call, unless the log's rate limit drops it.

        The line waits a moment for the broker's response about the message.
        """
        failed = [(m, failure) for m, failure in zip(call.messages, failures, strict=True) if failure is not None]
        if not failed:
            return
        messages, failure = [message for message, _ in failed], failed[0][1]
        line = self._failure_log.admit(failure, messages[0])
        if line is None:
            return
        outcome = returned.get(messages[0].queue_offset)
        if stays_out:
            follows = "it is tried again when the outage is over"
        elif self._settings.model is MessageModel.BROADCASTING and not self._settings.ordered:
            follows = "it does not come again, since the consumer broadcasts"
        elif outcome is None:
            follows = f"it is tried again in {number_text(self._settings.ordered_retry_interval)} s, in its place"
        else:
            waited = outcome  # not None below

            async def write() -> None:
                try:
                    await asyncio.wait((waited,), timeout=_ANSWER_SECONDS)
                finally:
                    self._failure_log.write(line, failure, messages, _what_follows(waited, messages[0].queue.broker))

            self._keep_returning("log of failures", write)
            return
        self._failure_log.write(line, failure, messages, follows)

    def _trace_repeats(
        self, call: _Run, finished: Sequence[ReceivedMessage], returned: Sequence[ReceivedMessage]
    ) -> None:
        if self._settings.trace is None or not self._settings.ordered:
            return
        ended = {message.queue_offset for message in (*finished, *returned)}
        self._trace(TraceState.RETRY, [message for message in call.messages if message.queue_offset not in ended])

    def _trace(self, state: TraceState, messages: Sequence[ReceivedMessage]) -> None:
        if self._settings.trace is None:
            return
        for message in messages:
            try:
                self._settings.trace(TraceEvent(state, message))
            except BaseException as error:  # noqa: BLE001 - an error of the hook must not stop the consumer
                self._supervisor.report("trace hook", error)


def _what_follows(outcome: asyncio.Future[SendBackResult], broker: str) -> str:
    """Return the part of a log line that says what happens to a failed message."""
    if not outcome.done():
        return f"it comes again when {broker} has taken it back"
    result = outcome.result()
    if result.dead:
        return "it goes to the dead letters"
    if result.given_up:
        return "it does not come again"
    return "it comes again" + ("" if result.delay_seconds is None else f" in {number_text(result.delay_seconds)} s")
