"""Consume messages with a listener function that the consumer calls.

A message on which the listener fails is delivered again. After its last retry it is moved to the group's dead-letter
queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future, wait
from datetime import datetime
from functools import partial
from queue import Empty, SimpleQueue
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Self

from raymq.actors.errors import ClientClosed, InvalidInput, RayMQError, SubscriptionMismatch
from raymq.actors.supervisor import WorkFailure
from raymq.client import arguments
from raymq.client.client_base import ClientBase, check_connection
from raymq.client.connection import Connection
from raymq.client.consumer_health import Health, hanging, raise_persistent
from raymq.client.fork_hooks import keep_for_parent, register_child_reset
from raymq.client.members.tag_filter import Sql, expressions, parse_subscriptions
from raymq.client.push.consumer_end import ConsumerEnd
from raymq.client.push.consumer_settings import ConsumerSettings, MessageModel, Trace
from raymq.client.push.listener import Listener, ListenerRunner
from raymq.client.push.push_consumer_engine import PushConsumerEngine
from raymq.client.requests.offset_requests import ConsumeFrom

if TYPE_CHECKING:
    from raymq.client.push.push_pop_engine import PushPopEngine

    #: The engine that fetches a consumer's messages, chosen by the consumer's mode.
    Engine = PushConsumerEngine | PushPopEngine

#: Seconds that the last commits and leaving the group may take in addition to the time for running listeners.
_STOP_SECONDS = 10.0
#: Python calls signal handlers on the main thread. A signal that the kernel delivered to another thread does not wake
#: the main thread, and the kernel may choose any thread for a signal that came while the process was stopped (SIGSTOP,
#: Ctrl-Z). So the main thread wakes up this often.
_SIGNAL_POLL_SECONDS = 0.5
#: Seconds to wait for the thread that shuts the consumer down to finish, once the engine has stopped.
_REST_SECONDS = 1.0


class _Attempt:
    """One attempt to start a consumer, which may be given up at any moment.

    Attributes:
        task: the task that joins the group, on the connection's loop.
        begun: the engine that has joined the group.
        is_given_up: the caller has cancelled the attempt.
        is_paused: the engine calls the listener only after `resume`.
        program_loop: the event loop of the `astart` call, where coroutine listeners run.
    """

    __slots__ = ("begun", "is_given_up", "is_paused", "program_loop", "task")

    def __init__(self, program_loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.program_loop = program_loop
        self.task: asyncio.Task[Any] | None = None
        self.begun: Engine | None = None
        self.is_given_up = self.is_paused = False


class _StartInterrupted(BaseException):
    """The exception that a signal raises while `run` is still starting the consumer."""


def _check_runs_on_main_thread() -> None:
    here = threading.current_thread()
    if here is not threading.main_thread():
        raise InvalidInput(
            "run",
            "called on the main thread, where signals arrive",
            f"called on thread {here.name}",
            remedy="call start() and shutdown() there",
        )
    with contextlib.suppress(RuntimeError):
        asyncio.get_running_loop()
        raise InvalidInput(
            "run",
            "called where no event loop runs, which it would block",
            "called on an event loop",
            remedy="await astart() and ashutdown() there",
        )


class PushConsumer(ClientBase):
    """A member of a consumer group that calls a listener with messages.

    As a context manager, it starts on entry and shuts down on exit. Every message that was acknowledged to its producer
    is delivered to the group at least once. A message may be delivered more than once, for example after a crash or
    when queues move between members, so listeners should be idempotent.

    Args:
        mq: the connection to the cluster.
        group: the consumer group. Its members share the messages, and all must have the same subscriptions.
        subscriptions: a mapping from topic to a tag expression ("*", "paid", "paid || shipped") or to an SQL filter,
            `Sql("price > 3")`.
        listener: a function that is called with a list of its own of at most `batch_size` messages of one queue, in at
            most `threads` calls at a time, on threads other than the caller's. It may be a coroutine function.
            Coroutines run on the event loop of the `astart` call, or after `start` on an event loop of the consumer. It
            returns `ConsumeResult.SUCCESS`, `ConsumeResult.RECONSUME_LATER` or `Retry(level)`: one for all messages or
            a list with one per message. An exception, None and any other value count as failure. A failure is logged as
            a WARNING of the logger `raymq.consumer`: the first one of its kind with its traceback, then at most one
            line per second with a count.
        ordered: call the listener once at a time per queue, in the queue's order, under a lock that the queue's broker
            keeps. After a failure the same list is repeated after `ordered_retry_interval` seconds (0.01..30), and the
            following messages wait.
        model: CLUSTERING shares the messages between the members. BROADCASTING gives every member all messages, keeps
            the offsets in the process and does not retry.
        consume_from, consume_timestamp: where to start in a queue in which the group never committed an offset. LAST is
            the end of the queues that exist when the group's first member starts; queues created later are read from
            their first message. The timestamp, for ConsumeFrom.TIMESTAMP, is seconds since 1970 or a datetime with a
            time zone.
        max_reconsume_times: how many retries a message gets before it goes to the dead-letter queue. None is the
            group's setting (16), or no limit if ordered. A value that one member sets applies to its group until
            another member sets a different one.
        consume_timeout: seconds after which a call counts as failed, whatever it returns later (not if ordered).
        hang_after: seconds after which `health` reports the listener as hanging: if all running calls have run for
            longer, `health.ok` is False and `health.hanging` lists their queues.
        strategy: how queues are assigned to members: "average", "sticky" or "consistent-hash". It must be the same in
            all members.
        rate_limit: the highest number of messages per second for this member. Messages above the rate stay on the
            broker.
        on_outage: "pause": if nearly every message fails, keep the messages and try one call at a time until one
            succeeds, instead of sending all messages of the topic back to the broker.
        park_failed_keys: if ordered, a failure delays only the messages with the same first key (of RocketMQ 5's gRPC
            clients: the same message group).
        trace: a function that is called with each step of each message; see `TraceEvent`.
        missing_topics: "wait": wait for a topic that does not exist, with one warning in the log, and consume it from
            its first message on within 2 s of its creation. "error": `start` raises TopicNotFound.
        failure_text: False stores only the type of the listener's exception with the message (`failure` of the next
            try, `reason` of the dead letter), for exceptions whose text may hold a secret. The log always contains the
            text.
        subscription_version: a number to increase when a deployment changes `subscriptions`. The highest version among
            the connected members is in force: members with a lower version finish the messages that they have and end
            with SubscriptionMismatch.
        mode: "queue" assigns the topics' queues to the members. "pop" leases each message to any member that has a free
            thread: more members than queues can share the work, a slow message does not delay other messages, and a
            message whose listener crashes its process `max_reconsume_times` times becomes a dead letter. "pop" does not
            support `ordered`, broadcasting and `park_failed_keys`.
        lease: with "pop", the seconds for which a message is leased, above 0 and at most 12 h. The lease is renewed
            while a call runs. After a crash of the process its messages are delivered again when their leases expire.
            If the lease of a message is lost while its call runs, the message's `lease_lost` is True, and another
            member may get the message.
        prefetch: how many messages are fetched before their calls can begin: in each queue, or with "pop" in all queues
            together. None: enough for quick listeners; with "pop" none for slow listeners, at most one call's batch per
            thread.

    Raises:
        InvalidInput: a name, an expression or a number is not valid.
    """

    KIND = "consumer"

    def __init__(
        self,
        mq: Connection,
        group: str,
        subscriptions: Mapping[str, str | Sql],
        listener: Listener,
        *,
        ordered: bool = False,
        model: MessageModel = MessageModel.CLUSTERING,
        consume_from: ConsumeFrom = ConsumeFrom.FIRST,
        max_reconsume_times: int | None = None,
        threads: int = 20,
        batch_size: int = 1,
        consume_timeout: float = 900.0,
        hang_after: float = 300.0,
        consume_timestamp: float | datetime | None = None,
        strategy: str = "average",
        ordered_retry_interval: float = 1.0,
        rate_limit: float | None = None,
        on_outage: str | None = None,
        park_failed_keys: bool = False,
        trace: Trace | None = None,
        missing_topics: str = "wait",
        failure_text: bool = True,
        subscription_version: int = 0,
        mode: str = "queue",
        lease: float = 30.0,
        prefetch: int | None = None,
    ) -> None:
        check_connection(mq)
        self._settings = ConsumerSettings(
            group,
            parse_subscriptions(subscriptions),
            model=model,
            consume_from=consume_from,
            consume_timestamp=(
                None if consume_timestamp is None else arguments.timestamp("consume_timestamp", consume_timestamp)
            ),
            ordered=ordered,
            max_reconsume_times=max_reconsume_times,
            threads=threads,
            batch_size=batch_size,
            consume_timeout=consume_timeout,
            hang_after=hang_after,
            strategy=strategy,
            ordered_retry_interval=ordered_retry_interval,
            rate_limit=rate_limit,
            on_outage=on_outage,
            park_failed_keys=park_failed_keys,
            trace=trace,
            missing_topics=missing_topics,
            failure_text=failure_text,
            subscription_version=subscription_version,
            mode=mode,
            lease=lease,
            prefetch=prefetch,
        )
        arguments.function("listener", listener, "a function, or another object that can be called with a list")
        super().__init__(mq)
        self.group = group
        self._listener = listener
        self._runner: ListenerRunner | None = None
        self._consuming: Engine | None = None
        self._last_consuming: Engine | None = None
        self._paused = False
        #: Reentrant: a signal handler that shuts the consumer down may have interrupted the thread that holds the lock.
        self._ending = threading.RLock()
        #: The future of the shutdown, once it has begun.
        self._stopping: Future[None] | None = None
        #: Allows one start at a time.
        self._starting = threading.Lock()
        #: The id of the thread that is starting the consumer.
        self._starter: int | None = None
        self._end = ConsumerEnd(lambda: self.health.failures)
        register_child_reset(self, PushConsumer._leave_to_parent)
        mq.adopt(self)

    def _shown(self) -> dict[str, object]:
        settings = vars(self).get("_settings")
        return super()._shown() | ({} if settings is None else {"subscriptions": expressions(settings.filters)})

    @property
    def _state(self) -> str:
        if vars(self).get("_consuming") is None:
            return "shut down" if vars(self).get("_closed", True) else "not started"
        return "paused" if self._paused else "running"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    async def __aenter__(self) -> Self:
        await self.astart()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.ashutdown()

    def start(self) -> None:
        """Join the group, and return once this member is registered with the brokers.

        The start positions of the queues are fixed by then.

        Raises:
            InvalidInput: an SQL expression is not valid.
            SubscriptionMismatch, BrokerUnavailable: the consumer did not join. It may be started again.
            TopicNotFound: a topic does not exist, with `missing_topics="error"`.
            WorkFailed: the consumer is running already, and one of its background tasks keeps failing.
            ClientClosed: the consumer was shut down.
        """
        self._start(_Attempt())

    def _start(self, attempt: _Attempt) -> None:
        with self._starting:
            self._check_open()
            if self._consuming is None:
                self._starter = threading.get_ident()
                try:
                    self._join(attempt)
                finally:
                    self._starter = None
            else:
                raise_persistent(self.health.failures)

    def _join(self, attempt: _Attempt) -> None:
        for each in self._settings.filters.values():
            each.check()
        runner = self._make_runner(attempt)
        with self._ending:  # a shutdown before this line finds a consumer that was never started
            self._check_open()
            self._runner = runner
        try:
            consuming = self._mq.run(self._begin(runner, attempt))
            with self._ending:
                if attempt.is_given_up:
                    raise CancelledError
                self._mq.retain(self)
                self._consuming = consuming
        except BaseException as error:
            with self._ending:
                self._consuming = None
                self._runner = None
            self._undo(attempt, runner)
            if self._closed:
                self._end.reach()
                if isinstance(error, RayMQError):  # the close is the cause, whatever the error was
                    raise ClientClosed("the consumer was closed as it started") from error
            raise
        if self._closed:  # by another thread or by the listener, whose first call may have begun by now
            self.shutdown()
        elif self._paused != attempt.is_paused:  # `pause` or `resume` was called during the start
            (self.pause if self._paused else self.resume)()

    def _make_runner(self, attempt: _Attempt) -> ListenerRunner:
        settings, tracer = self._settings, self._mq.tracer
        if tracer is None:
            return ListenerRunner(self._listener, failure_text=settings.failure_text, program_loop=attempt.program_loop)
        from raymq.client.push.traced_listener import TracedListenerRunner

        return TracedListenerRunner(self._listener, tracer, settings, attempt.program_loop)

    async def astart(self) -> None:
        """Do `start` for asyncio code.

        If it is cancelled, the consumer has not joined the group or leaves it at once, and it may be started again.

        A coroutine listener runs on the event loop on which this is called, and may use objects that belong to that
        loop. If that loop is closed before `ashutdown`, the listener's calls fail and are retried like other failed
        calls.
        """
        attempt = _Attempt(asyncio.get_running_loop())
        try:
            await asyncio.to_thread(self._start, attempt)
        except asyncio.CancelledError:
            self._give_up(attempt)
            raise

    def run(self, timeout: float = 30.0) -> None:
        """Start, block until SIGTERM or SIGINT, then leave the group and return.

        Running calls may take at most `timeout` seconds more. Their results are committed, and the member deregisters
        at the brokers. A second signal ends the wait for running calls: their messages are delivered again. The method
        also returns if the consumer is shut down by another thread or by its listener. It restores the signal handlers
        before it returns.

        Raises:
            InvalidInput: the caller is not the main thread, where signals arrive, or runs on an event loop.
            WorkFailed: one of the consumer's background tasks keeps failing with an unexpected error. The consumer has
                left the group.
            SubscriptionMismatch: the consumer ended because a higher `subscription_version` is in force, or see
                `start`.
            BrokerUnavailable, TopicNotFound, ClientClosed: see `start`.
        """
        arguments.duration("timeout", timeout)
        _check_runs_on_main_thread()
        news: SimpleQueue[bool] = SimpleQueue()  # SimpleQueue is safe in signal handlers
        signals, starting = 0, True

        def ask(_: int, __: FrameType | None) -> None:
            nonlocal signals
            signals += 1
            news.put(True)
            if starting:
                raise _StartInterrupted
            if signals > 1 and self._last_consuming is not None:
                self._last_consuming.force_stop()

        with self._end.listener(partial(news.put, False)):
            before = {which: signal.signal(which, ask) for which in (signal.SIGTERM, signal.SIGINT)}
            try:
                with contextlib.suppress(_StartInterrupted):
                    self.start()
                    starting = False
                starting = False
                while not signals and not self._end.is_reached:
                    with contextlib.suppress(Empty):
                        news.get(timeout=_SIGNAL_POLL_SECONDS)
                    raise_persistent(self.health.failures)
            finally:
                starting = False
                self.shutdown(timeout if signals < 2 else 0.0)
                for which, handler in before.items():
                    signal.signal(which, signal.SIG_DFL if handler is None else handler)
        self._end.raise_error()

    def _give_up(self, attempt: _Attempt) -> None:
        """Cancel an attempt whose result is no longer needed, without waiting."""
        with self._ending:
            attempt.is_given_up = True
            if self._consuming is None or self._consuming is not attempt.begun:  # that thread cleans up
                with contextlib.suppress(ClientClosed, RuntimeError):  # the connection has ended
                    self._mq.submit(_cancel(attempt))
                return
            self._consuming, runner, self._runner = None, self._runner, None
        self._undo(attempt, runner)

    def _undo(self, attempt: _Attempt, runner: ListenerRunner | None) -> None:
        """End what an attempt has begun, without waiting.

        A caller that was interrupted cannot know how far the attempt got, so the end is scheduled on the connection's
        loop.
        """
        with contextlib.suppress(ClientClosed, RuntimeError):  # the connection is closed
            self._mq.submit(_end(attempt))
        self._mq.release(self)
        if runner is not None:
            runner.close()

    @property
    def health(self) -> Health:
        """Return the consumer's health: background tasks, unexpected failures and unreadable messages."""
        consuming = self._consuming or self._last_consuming
        if consuming is None:
            return Health(running=False, ended_by=self._end.error)
        aside = consuming.aside
        return Health(
            running=self._consuming is not None,
            works=consuming.supervisor.works,
            failures=[*consuming.supervisor.failures, *self._failures_of_loops()],
            set_aside=aside.count,
            last_set_aside=aside.last,
            hanging=hanging(consuming.delivery.running_calls(), self._settings.hang_after),
            fetches=consuming.failing_fetches.now(),
            ended_by=self._end.error,
        )

    def _failures_of_loops(self) -> list[WorkFailure]:
        """Return the errors that ended an event loop of this consumer, which was restarted."""
        of_listener = None if self._runner is None else self._runner.loop
        loops = {"the connection's event loop": self._mq.loop_thread, "the listener's event loop": of_listener}
        return [
            WorkFailure(name, repr(loop.last_failure), loop.failures, 0, loop.failed_at)
            for name, loop in loops.items()
            if loop is not None and loop.failures
        ]

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the consumer is shut down, by another thread or by its listener.

        Returns:
            False if the consumer still runs after `timeout` seconds (None: wait without a limit).

        Raises:
            WorkFailed: one of the consumer's background tasks keeps failing with an unexpected error. The task is still
                retried.
            SubscriptionMismatch: the consumer ended because a higher `subscription_version` is in force.
            RuntimeError: the caller runs on the event loop of the `astart` call, which the coroutine listener needs.
        """
        self._check_not_on_program_loop("wait() would block", "use await await_()")
        if timeout is not None:
            arguments.duration("timeout", timeout)
        return self._end.wait(timeout)

    async def await_(self, timeout: float | None = None) -> bool:
        """Do `wait` for asyncio code, on any event loop.

        If it is cancelled, no thread is left waiting.
        """
        if timeout is not None:
            arguments.duration("timeout", timeout)
        return await self._end.await_(timeout)

    def _superseded(self, error: SubscriptionMismatch) -> None:
        """Shut down, since a subscription of a higher version is in force.

        Called on the connection's loop. Messages in flight are finished first.
        """
        self._end.error = error
        threading.Thread(target=self.shutdown, name=f"raymq-shutdown-{self.group}").start()

    @property
    def is_calling(self) -> bool:
        """Return True if the caller is this consumer's listener, inside one of its calls.

        Such a caller cannot wait for the end of its own call.
        """
        return self._runner is not None and self._runner.is_caller

    def pause(self) -> None:
        """Stop calling the listener until `resume`.

        Running calls end normally, and the queues stay assigned to this member. After this method returns, no further
        call begins. A consumer that is paused before its start joins the group but does not call its listener.
        """
        self._paused = True
        if self._consuming is not None:
            self._on_loop(self._consuming.pause)

    def resume(self) -> None:
        """Call the listener again after `pause`."""
        self._paused = False
        if self._consuming is not None:
            self._on_loop(self._consuming.resume)

    def _on_loop(self, do: Callable[[], None]) -> None:
        """Run a function on the connection's loop and wait until it is done.

        If the caller is on that loop, the function runs at once.
        """
        if self._mq.is_on_loop:
            do()
            return

        async def done() -> None:
            do()

        self._mq.run(done())

    def shutdown(self, timeout: float = 30.0) -> None:
        """Wait for running listener calls, commit their results and leave the group.

        The wait takes at most `timeout` seconds. A call from inside the listener returns at once, since it cannot wait
        for its own end: the running call ends normally, its result counts, and a thread does the rest afterwards. The
        same holds for a signal handler that has interrupted `start`. `wait` returns when the shutdown is complete.

        Raises:
            RuntimeError: the caller runs on the event loop of the `astart` call, which the coroutine listener needs.
        """
        self._check_not_on_program_loop("shutdown() would block", "use await ashutdown()")
        self.begin_close(arguments.duration("timeout", timeout))()

    def _check_not_on_program_loop(self, what: str, remedy: str) -> None:
        runner = self._runner
        if runner is not None and runner.is_on_program_loop and not runner.is_caller and not self._end.is_reached:
            raise RuntimeError(f"the listener runs on this event loop, which {what}: {remedy}")

    def begin_close(self, timeout: float) -> Callable[[], None]:
        """Start the shutdown and return a function that waits for its end."""
        if self._runner is not None and self._runner.is_on_program_loop and not self.is_calling:
            timeout = 0.0  # no call of a coroutine listener can end while its loop is blocked here
        with self._ending:
            self._closed = True
            consuming, self._consuming = self._consuming, None
        if consuming is None:
            return partial(self._wait_for_other, timeout)
        self._last_consuming = consuming
        self._stopping = self._begin_stop(consuming, timeout)
        wait = partial(self._wait_for_stop, self._stopping, timeout + _STOP_SECONDS)
        if not self.is_calling:
            return wait
        threading.Thread(target=wait, name=f"raymq-shutdown-{self.group}").start()
        return partial(self._wait_for_other, timeout)

    def _wait_for_other(self, timeout: float) -> None:
        """Wait for a shutdown that another thread does, if there is one.

        Another thread may be shutting the consumer down, may have done so, or will do so when the start is complete. If
        the consumer was never started, mark it as ended.
        """
        if self._starter == threading.get_ident():
            return  # a signal handler interrupted `start`, which shuts down when it goes on
        if self._runner is None:
            self._end.reach()
        elif not self._runner.is_caller:
            stopping = self._stopping
            if stopping is not None:
                # The thread that shuts down may be the one that this signal handler has interrupted. It can go on only
                # after the handler returns, so the wait is bounded.
                wait([stopping], timeout)
                timeout = min(timeout, _REST_SECONDS)
            self._end.wait_only(timeout)

    def _begin_stop(self, consuming: Engine, timeout: float) -> Future[None]:
        try:
            return self._mq.submit(consuming.stop(timeout))
        except Exception as error:  # noqa: BLE001 - the error is raised to the waiting caller
            stopping: Future[None] = Future()
            stopping.set_exception(error)
            return stopping

    def _wait_for_stop(self, stopping: Future[None], timeout: float) -> None:
        try:
            self._mq.wait(stopping, timeout)
        finally:
            stopping.cancel()
            if self._runner is not None:
                self._runner.close()
            self._mq.release(self)
            self._end.reach()

    async def ashutdown(self, timeout: float = 30.0) -> None:
        """Do `shutdown` for asyncio code."""
        await asyncio.to_thread(self.shutdown, timeout)

    def _leave_to_parent(self) -> None:
        """Reset this consumer in a forked child.

        A consumer that runs belongs to the parent, with its queues, locks and commits, and is closed in the child.
        """
        self._starting, self._ending = threading.Lock(), threading.RLock()
        self._starter = None
        error, self._end = self._end.error, ConsumerEnd(lambda: self.health.failures)
        self._end.error = error
        if self._runner is not None:
            keep_for_parent((self._consuming, self._last_consuming, self._runner))
            self._consuming = self._last_consuming = self._runner = self._stopping = None
            self._closed = self._is_parents = True
        if self._closed:
            self._end.reach()
        else:  # not started yet: the child may start it
            self._mq.adopt(self)

    def close(self, timeout: float = 10.0) -> None:
        """Do `shutdown`, as a connection that is closed calls it."""
        self.shutdown(timeout)

    def wait_for_end(self, timeout: float) -> bool:
        """Wait for the end of the consumer, ignoring failures.

        Return False if it still runs after `timeout` seconds.
        """
        return self._end.wait_only(timeout)

    def _make_engine(self, runner: ListenerRunner) -> Engine:
        if not self._settings.pops:
            return PushConsumerEngine(self._mq, self._settings, runner, self._superseded)
        from raymq.client.push.push_pop_engine import PushPopEngine

        return PushPopEngine(self._mq, self._settings, runner, self._superseded)

    async def _begin(self, runner: ListenerRunner, attempt: _Attempt) -> Engine:
        if attempt.is_given_up:
            raise asyncio.CancelledError
        attempt.task = asyncio.current_task()
        consuming = self._make_engine(runner)
        consuming.supervisor.on_failure(self._end.notify)
        attempt.is_paused = self._paused
        if attempt.is_paused:
            consuming.pause()
        try:
            await consuming.start()
        except BaseException as error:  # an attempt that was given up may take the full time to stop
            await consuming.stop(0.0 if isinstance(error, RayMQError) else _STOP_SECONDS)
            raise
        attempt.begun = consuming
        return consuming


async def _cancel(attempt: _Attempt) -> None:
    if attempt.task is not None:
        attempt.task.cancel()


async def _end(attempt: _Attempt) -> None:
    """End an attempt that was cancelled, including an engine that has already joined."""
    if attempt.task is not None:
        await asyncio.wait((attempt.task,))
    if attempt.begun is not None:
        await attempt.begun.stop(_STOP_SECONDS)
