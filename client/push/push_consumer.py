"""Consuming by listener: messages are brought to a function; what it fails on comes again, and at last rests in the
group's dead-letter queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future, wait
from copy import copy
from datetime import datetime
from functools import partial
from queue import Empty, SimpleQueue
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Self

from raymq.actors.errors import ClientClosed, InvalidInput, RayMQError, SubscriptionMismatch
from raymq.actors.supervision import Failure
from raymq.client import arguments
from raymq.client.client_base import ClientBase, check_connection
from raymq.client.connection import Connection
from raymq.client.forking import leave_to_parent, renew_in_child
from raymq.client.health import Health, hanging, raise_persistent
from raymq.client.members.subscription import Sql, expressions, parse_subscriptions
from raymq.client.push.consumer_settings import ConsumerSettings, MessageModel
from raymq.client.push.engine import Consuming
from raymq.client.push.listener import Listener, ListenerRunner
from raymq.client.push.trace import Trace
from raymq.client.requests.offsets import ConsumeFrom

if TYPE_CHECKING:
    from raymq.client.push.pop_engine import PopEngine

    #: What brings a consumer its messages, by its mode.
    Engine = Consuming | PopEngine

#: What the last commits and the farewell may take beyond the time for running listeners.
_STOP_SECONDS = 10.0
#: Python calls signal handlers on the main thread, which a signal does not wake if another thread got it: the kernel
#: may choose any for one that came while the process was stopped (SIGSTOP, Ctrl-Z).
_SIGNAL_POLL_SECONDS = 0.5
#: What is left to do, by who shuts it down, when it has stopped.
_REST_SECONDS = 1.0


class _Attempt:
    """One try to start a consumer, which may be given up at any moment.

    Attributes:
        task: what joins, on the connection's loop.
        begun: what has joined.
        is_given_up: nobody wants it any more.
        is_paused: it calls the listener only once it is resumed.
        program_loop: the event loop on which it was asked for, where coroutine listeners run.
    """

    __slots__ = ("begun", "is_given_up", "is_paused", "program_loop", "task")

    def __init__(self, program_loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.program_loop = program_loop
        self.task: asyncio.Task[Any] | None = None
        self.begun: Engine | None = None
        self.is_given_up = self.is_paused = False


class _StartInterrupted(BaseException):
    """A signal came while `run` was still starting the consumer."""


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
    """A member of a consumer group. A context manager: enters started, leaves shut down.

    Every message that was acknowledged to its producer is delivered to the group at least once. It may come again:
    after a crash, or when queues move between members; a listener should not mind.

    Args:
        mq: the connection to the cluster.
        group: members of one group share the messages; all must subscribe to the same.
        subscriptions: topic to tag expression: "*", "paid", "paid || shipped"; or to `Sql("price > 3")`.
        listener: gets a list of its own of at most `batch_size` messages of one queue, in at most `threads` calls at a
            time, on threads that are not the caller's; may be a coroutine function, which runs on the event loop of
            `astart`, after `start` on one of the consumer's own. It returns `ConsumeResult.SUCCESS`,
            `ConsumeResult.RECONSUME_LATER` or `Retry(level)`, one for all or a list with one per message. What it
            raises, None and anything else is a failure: a WARNING of the logger `raymq.consumer`, the first of its
            kind with its traceback, then at most one a second with a count.
        ordered: one call per queue at a time, in the queue's order, under a lock that its broker keeps; a failure
            repeats the same list after `ordered_retry_interval` seconds (0.01..30), and what follows waits.
        model: CLUSTERING shares out; BROADCASTING gives every member all messages, keeps its progress in the process
            and does not retry.
        consume_from, consume_timestamp: where to start in a queue in which the group never committed. LAST is the end
            of those that are there when the group's first member starts; others begin at their first message.
            The timestamp is seconds since 1970, or a datetime with a time zone, of ConsumeFrom.TIMESTAMP.
        max_reconsume_times: retries before a message goes to the dead letters; None = the group's (16), ordered
            without end. What a member sets holds for its group until another sets it anew.
        consume_timeout: seconds after which a call counts as failed, whatever it answers later (not ordered).
        hang_after: seconds after which `health` counts the listener as hanging: when all its calls that run have run
            for longer, `health.ok` is False and `health.hanging` names their queues.
        strategy: how queues are shared out, the same in all members: "average", "sticky" or "consistent-hash".
        rate_limit: messages per second of this member; what is above it stays on the broker.
        on_outage: "pause": when nearly every message fails, keep them and try one call at a time until one succeeds,
            instead of sending a whole topic back.
        park_failed_keys: ordered: a failure holds up only the messages of its sharding key (else first key).
        trace: called with each step of each message; see `raymq.client.push.trace`.
        missing_topics: "wait": a topic that does not exist is waited for, with one warning in the log, and consumed
            from its first message on within 2 s of its creation; "error": `start` raises TopicNotFound.
        failure_text: False keeps only the type of what the listener raised with the message (`failure` of the next
            try, `reason` of the dead letter), for exceptions whose text may hold a secret; the log has it all the same.
        subscription_version: raise it where a deployment changes `subscriptions`. The highest version of the connected
            members is in force: members of a lower one finish what they have and end with SubscriptionMismatch.
        mode: "queue" shares out the topics' queues between the members, which own them. "pop" lends each message to
            any member that is free: more members than queues share the work, a slow message holds up no other one, and
            a message whose listener kills its process is a dead letter after `max_reconsume_times` lives. Without
            order, broadcasting and `park_failed_keys`.
        lease: with "pop", the seconds for which a message is lent, above 0, at most 12 h. It is renewed while a call
            runs. When a process dies, its messages come again after this. A message whose lease was lost all the same
            has `lease_lost` set: another member may get it.
        prefetch: how many messages are fetched before their calls can begin: in each queue, and with "pop" in all.
            None: enough for quick listeners; with "pop" none for slow ones, at most one call's worth per thread.

    Raises:
        InvalidInput: a name, an expression or a number breaks its rule.
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
        #: A signal handler that shuts it down may have interrupted a thread that has it.
        self._ending = threading.RLock()
        #: What ends it, once that was begun.
        self._stopping: Future[None] | None = None
        #: One start at a time.
        self._starting = threading.Lock()
        #: The thread that starts it.
        self._starter: int | None = None
        self._ended = threading.Event()
        #: Why it ends by itself.
        self._ended_by: SubscriptionMismatch | None = None
        #: Counts what `wait` waits for: something failed unexpectedly, or the consumer has ended.
        self._told = 0
        self._news = threading.Condition()
        #: Who waits for news on an event loop is called.
        self._hearers: set[Callable[[], None]] = set()
        renew_in_child(self, PushConsumer._leave_to_parent)
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
        """Join the group; returns when the brokers know this member and its start positions are fixed.

        Raises:
            InvalidInput: an SQL expression cannot be read.
            SubscriptionMismatch, BrokerUnavailable: it did not join; may be tried again.
            TopicNotFound: so with `missing_topics="error"`.
            WorkFailed: it runs already, and something of it fails again and again.
            ClientClosed: it was shut down.
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
        for wanted in self._settings.filters.values():
            wanted.check()
        runner = ListenerRunner(
            self._listener, failure_text=self._settings.failure_text, program_loop=attempt.program_loop
        )
        with self._ending:  # who shuts down before this finds that it was never started
            self._check_open()
            self._runner = runner
        try:
            consuming = self._mq.run(self._begin(runner, attempt))
            with self._ending:
                if attempt.is_given_up:
                    raise CancelledError
                self._mq.hold(self)
                self._consuming = consuming
        except BaseException as error:
            with self._ending:
                self._consuming = None
                self._runner = None
            self._undo(attempt, runner)
            if self._closed:
                self._has_ended()
                if isinstance(error, RayMQError):  # whatever it was, it is closed now
                    raise ClientClosed("the consumer was closed as it started") from error
            raise
        if self._closed:  # meanwhile, by another thread or by the listener, whose first call has begun by now
            self.shutdown()
        elif self._paused != attempt.is_paused:  # somebody has changed his mind meanwhile
            (self.pause if self._paused else self.resume)()

    async def astart(self) -> None:
        """`start` for asyncio code. Cancelled, it has not joined, or leaves again at once; it may be started again.

        A coroutine listener runs on the event loop that this is called on, and may use what belongs to that loop. Calls
        fail, and are tried again as any that fail, where that loop was closed before `ashutdown`.
        """
        attempt = _Attempt(asyncio.get_running_loop())
        try:
            await asyncio.to_thread(self._start, attempt)
        except asyncio.CancelledError:
            self._give_up(attempt)
            raise

    def run(self, timeout: float = 30.0) -> None:
        """Start, and block until SIGTERM or SIGINT; then leave the group in order, and return.

        Calls that run may go on for at most `timeout` seconds, what they did is committed, and the brokers hear that
        this member leaves. A second signal ends the wait for calls: what they have comes again. It also returns when
        the consumer is shut down from elsewhere. Signal handlers are what they were before when it returns.

        Raises:
            InvalidInput: called on another thread than the main one, where no signal arrives, or on an event loop.
            WorkFailed: something of it fails again and again with what nobody expected; the consumer has left.
            SubscriptionMismatch: it has ended, since a higher `subscription_version` is in force; and as `start`.
            BrokerUnavailable, TopicNotFound, ClientClosed: as `start`.
        """
        arguments.duration("timeout", timeout)
        _check_runs_on_main_thread()
        news: SimpleQueue[bool] = SimpleQueue()  # may be used by signal handlers
        signals, starting = 0, True

        def ask(_: int, __: FrameType | None) -> None:
            nonlocal signals
            signals += 1
            news.put(True)
            if starting:
                raise _StartInterrupted
            if signals > 1 and self._last_consuming is not None:
                self._last_consuming.hasten()

        hear = partial(news.put, False)
        before = {which: signal.signal(which, ask) for which in (signal.SIGTERM, signal.SIGINT)}
        with self._news:
            self._hearers.add(hear)
        try:
            with contextlib.suppress(_StartInterrupted):
                self.start()
                starting = False
            starting = False
            while not signals and not self._ended.is_set():
                with contextlib.suppress(Empty):
                    news.get(timeout=_SIGNAL_POLL_SECONDS)
                raise_persistent(self.health.failures)
        finally:
            starting = False
            self.shutdown(timeout if signals < 2 else 0.0)
            with self._news:
                self._hearers.discard(hear)
            for which, handler in before.items():
                signal.signal(which, signal.SIG_DFL if handler is None else handler)
        self._end_reached()

    def _give_up(self, attempt: _Attempt) -> None:
        """Nobody wants what an attempt brings. Waits for nothing."""
        with self._ending:
            attempt.is_given_up = True
            if self._consuming is None or self._consuming is not attempt.begun:  # who makes the attempt sees to it
                with contextlib.suppress(ClientClosed, RuntimeError):  # the connection has ended
                    self._mq.submit(_cancel(attempt))
                return
            self._consuming, runner, self._runner = None, self._runner, None
        self._undo(attempt, runner)

    def _undo(self, attempt: _Attempt, runner: ListenerRunner | None) -> None:
        """End what an attempt has begun, behind it; who interrupted that cannot know how far it came."""
        with contextlib.suppress(ClientClosed, RuntimeError):  # the connection has ended, and that with it
            self._mq.submit(_end(attempt))
        self._mq.let_go(self)
        if runner is not None:
            runner.close()

    @property
    def health(self) -> Health:
        """How it fares: what runs for it, what failed although nobody expected that, what could not be read."""
        consuming = self._consuming or self._last_consuming
        if consuming is None:
            return Health(running=False, ended_by=self._ended_by)
        aside = consuming.aside
        return Health(
            running=self._consuming is not None,
            works=consuming.supervisor.works,
            failures=[*consuming.supervisor.failures, *self._failures_of_loops()],
            set_aside=aside.count,
            last_set_aside=aside.last,
            hanging=hanging(consuming.delivery.running_calls(), self._settings.hang_after),
            fetches=consuming.failing_fetches.now(),
            ended_by=self._ended_by,
        )

    def _failures_of_loops(self) -> list[Failure]:
        """What ended an event loop that this consumer needs, from within; it was run again."""
        of_listener = None if self._runner is None else self._runner.loop
        loops = {"the connection's event loop": self._mq.loop_thread, "the listener's event loop": of_listener}
        return [
            Failure(name, repr(loop.last_failure), loop.failures, 0, loop.failed_at)
            for name, loop in loops.items()
            if loop is not None and loop.failures
        ]

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the consumer was shut down, by another thread or from inside its listener.

        Returns:
            False if it still runs after `timeout` seconds (None: however long it takes).

        Raises:
            WorkFailed: something of it fails again and again with what nobody expected. It is tried on all the same.
            SubscriptionMismatch: it has ended, since a higher `subscription_version` is in force.
            RuntimeError: called on the event loop that `astart` was called on, which its coroutine listener needs.
        """
        self._check_not_on_program_loop("wait() would block", "use await await_()")
        if timeout is not None:
            arguments.duration("timeout", timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            told = self._told
            if self._ended.is_set():
                return self._end_reached()
            raise_persistent(self.health.failures)
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            with self._news:
                self._news.wait_for(lambda: self._told != told, left)  # noqa: B023 - called before the next round

    async def await_(self, timeout: float | None = None) -> bool:
        """`wait` for asyncio code, on any event loop. Cancelled, it leaves no thread that goes on waiting."""
        if timeout is not None:
            arguments.duration("timeout", timeout)
        loop, news = asyncio.get_running_loop(), asyncio.Event()
        deadline = None if timeout is None else loop.time() + timeout

        def hear() -> None:
            with contextlib.suppress(RuntimeError):  # that loop is gone
                loop.call_soon_threadsafe(news.set)

        with self._news:
            self._hearers.add(hear)
        try:
            while True:
                news.clear()
                if self._ended.is_set():
                    return self._end_reached()
                raise_persistent(self.health.failures)
                try:
                    async with asyncio.timeout_at(deadline):
                        await news.wait()
                except TimeoutError:
                    return self._ended.is_set() and self._end_reached()
        finally:
            with self._news:
                self._hearers.discard(hear)

    def _end_reached(self) -> bool:
        """True, or the error with which it has ended."""
        if self._ended_by is not None:
            raise copy(self._ended_by)
        return True

    def _superseded(self, error: SubscriptionMismatch) -> None:
        """A subscription of a higher version is in force: finish what is in hand, and leave. Called on the loop."""
        self._ended_by = error
        threading.Thread(target=self.shutdown, name=f"raymq-shutdown-{self.group}").start()

    @property
    def is_calling(self) -> bool:
        """Whether who asks is its listener, in one of its calls, which cannot wait for its own end."""
        return self._runner is not None and self._runner.is_caller

    def pause(self) -> None:
        """Call the listener no more until `resume`; running calls end, the queues stay this member's.

        When it returns no further call begins. One that is paused before it starts joins, and calls nothing.
        """
        self._paused = True
        if self._consuming is not None:
            self._on_loop(self._consuming.pause)

    def resume(self) -> None:
        """Call the listener again."""
        self._paused = False
        if self._consuming is not None:
            self._on_loop(self._consuming.resume)

    def _on_loop(self, do: Callable[[], None]) -> None:
        """Do it on the connection's loop; when this returns it is done, unless the caller is on that loop."""
        if self._mq.is_on_loop:
            do()
            return

        async def done() -> None:
            do()

        self._mq.run(done())

    def shutdown(self, timeout: float = 30.0) -> None:
        """Wait for running listeners, at most `timeout` seconds, commit what they did, and leave the group.

        From inside the listener it returns at once, since the call that runs cannot be waited for: it ends like any
        other, what it answers counts, and the rest is done behind it. So it does from a signal handler that has
        interrupted `start`. `wait` tells when.

        Raises:
            RuntimeError: called on the event loop that `astart` was called on, which its coroutine listener needs.
        """
        self._check_not_on_program_loop("shutdown() would block", "use await ashutdown()")
        self.begin_close(arguments.duration("timeout", timeout))()

    def _check_not_on_program_loop(self, what: str, remedy: str) -> None:
        runner = self._runner
        if runner is not None and runner.is_on_program_loop and not runner.is_caller and not self._ended.is_set():
            raise RuntimeError(f"the listener runs on this event loop, which {what}: {remedy}")

    def begin_close(self, timeout: float) -> Callable[[], None]:
        """As any client's: it stops at once, and what is returned waits for the end of it."""
        if self._runner is not None and self._runner.is_on_program_loop and not self.is_calling:
            timeout = 0.0  # no call of a coroutine listener can end while its loop waits here
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
        """Somebody else shuts it down, or has, or will when it has started, or it was never started."""
        if self._starter == threading.get_ident():
            return  # a signal handler that has interrupted the start, which ends it behind it
        if self._runner is None:
            self._has_ended()
        elif not self._runner.is_caller:
            stopping = self._stopping
            if stopping is not None:
                # He may be whom a signal handler, which waits here, has interrupted: then he goes on behind it.
                wait([stopping], timeout)
                timeout = min(timeout, _REST_SECONDS)
            self._ended.wait(timeout)

    def _begin_stop(self, consuming: Engine, timeout: float) -> Future[None]:
        try:
            return self._mq.submit(consuming.stop(timeout))
        except Exception as error:  # noqa: BLE001 - whoever waits for it is told
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
            self._mq.let_go(self)
            self._has_ended()

    def _has_ended(self) -> None:
        self._ended.set()
        self._tell()

    def _tell(self) -> None:
        with self._news:
            self._told += 1
            self._news.notify_all()
            hearers = list(self._hearers)
        for hear in hearers:
            hear()

    async def ashutdown(self, timeout: float = 30.0) -> None:
        """`shutdown` for asyncio code."""
        await asyncio.to_thread(self.shutdown, timeout)

    def _leave_to_parent(self) -> None:
        """In a forked child: a consumer that runs is the parent's, with its queues, locks and commits."""
        self._starting, self._ending, self._news = threading.Lock(), threading.RLock(), threading.Condition()
        self._starter = None
        self._ended, self._hearers = threading.Event(), set()
        if self._runner is not None:
            leave_to_parent((self._consuming, self._last_consuming, self._runner))
            self._consuming = self._last_consuming = self._runner = self._stopping = None
            self._closed = self._is_parents = True
        if self._closed:
            self._ended.set()
        else:  # it was not started yet: the child may
            self._mq.adopt(self)

    def close(self, timeout: float = 10.0) -> None:
        """`shutdown`, as a connection calls it that is closed."""
        self.shutdown(timeout)

    def wait_for_end(self, timeout: float) -> bool:
        """`wait` whatever fails: False if it still runs after `timeout` seconds."""
        return self._ended.wait(timeout)

    def _make_engine(self, runner: ListenerRunner) -> Engine:
        if not self._settings.pops:
            return Consuming(self._mq, self._settings, runner, self._superseded)
        from raymq.client.push.pop_engine import PopEngine

        return PopEngine(self._mq, self._settings, runner, self._superseded)

    async def _begin(self, runner: ListenerRunner, attempt: _Attempt) -> Engine:
        if attempt.is_given_up:
            raise asyncio.CancelledError
        attempt.task = asyncio.current_task()
        consuming = self._make_engine(runner)
        consuming.supervisor.on_failure(self._tell)
        attempt.is_paused = self._paused
        if attempt.is_paused:
            consuming.pause()
        try:
            await consuming.start()
        except BaseException as error:  # nobody waits for the end of what was given up
            await consuming.stop(0.0 if isinstance(error, RayMQError) else _STOP_SECONDS)
            raise
        attempt.begun = consuming
        return consuming


async def _cancel(attempt: _Attempt) -> None:
    if attempt.task is not None:
        attempt.task.cancel()


async def _end(attempt: _Attempt) -> None:
    """Have nothing be left of an attempt that was cancelled: it ends itself, unless it had come to its end."""
    if attempt.task is not None:
        await asyncio.wait((attempt.task,))
    if attempt.begun is not None:
        await attempt.begun.stop(_STOP_SECONDS)
