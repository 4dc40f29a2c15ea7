"""Make a run's listener calls on one thread, and predict their duration.

A run is a number of calls that one thread makes one after the other, with messages of one queue: one call if calls are
slow, up to `CALLS_PER_RUN` if they are quick. The event loop hands runs over, may take the rest of a run back, and
processes the results of a run together.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from raymq.actors.backoff import Backoff
from raymq.actors.protocol import MessageQueue
from raymq.client.client_metrics import ConsumeCounts
from raymq.client.message import ReceivedMessage
from raymq.client.push.delivery_order import DeliveryOrder, Failures
from raymq.client.push.failures import CallFailure
from raymq.client.push.listener import ListenerRunner

#: The most calls of one run, and how long they are expected to take in all.
CALLS_PER_RUN: Final = 64
RUN_SECONDS: Final = 2e-3
#: The longest duration of a quick call.
QUICK_SECONDS: Final = 1e-3
#: The usual duration is averaged over about this many calls.
_AVERAGED: Final = 16
#: After this many quick calls in a row, the pause after a slow call starts at its shortest again.
STREAK: Final = 1_000


class ListenerLatency:
    """A prediction of the next calls' duration from the calls so far.

    `clock` is monotonic seconds. Any thread may use it.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._streak = 0
        self._usual_seconds: float | None = None
        self._not_before = 0.0
        self._respite = Backoff(first=0.25, factor=2.0, cap=60.0)

    def took(self, seconds: float, calls: int = 1, longest: float | None = None) -> None:
        """Record the duration of some calls, and of the longest of them.

        After a slow call no call counts as quick for a while, longer each time.
        """
        mean = seconds / calls
        self._average(mean, calls)
        if (mean if longest is None else longest) > QUICK_SECONDS:
            self._streak = 0
            self._not_before = self._clock() + self._respite.next_delay()
            return
        if self._streak < STREAK <= self._streak + calls:
            self._respite.reset()
        self._streak += calls

    def runs_for(self, seconds: float) -> None:
        """Count the duration of an unended call for the length of runs."""
        self._average(seconds, 1)

    def _average(self, seconds: float, calls: int) -> None:
        usual = seconds if self._usual_seconds is None else self._usual_seconds
        self._usual_seconds = usual + (seconds - usual) * min(1.0, calls / _AVERAGED)

    @property
    def is_quick(self) -> bool:
        """Return True if the next call is expected to be quick.

        That is so if the last call was quick and no slow call was shortly before.
        """
        return self._streak > 0 and self._clock() >= self._not_before

    @property
    def calls_per_run(self) -> int:
        """Return how many calls should take `RUN_SECONDS` together; 1 if that is not known."""
        if self._usual_seconds is None:
            return 1
        return max(1, min(CALLS_PER_RUN, int(RUN_SECONDS / max(self._usual_seconds, 1e-7))))


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


@dataclass(eq=False, slots=True)
class ListenerRun:
    """The calls of one run. Its thread sets `started`, `messages`, `failures`, `last_size` and `ended`."""

    order: DeliveryOrder
    #: The messages of each call that has not begun. Its thread takes the first ones, and the loop may take all.
    waiting: deque[list[ReceivedMessage]]
    #: The only call during an outage.
    probe: bool = False
    #: No call follows one that has failed for one of its messages.
    stops_at_failure: bool = False
    #: When the present or last call began.
    started: float | None = None
    #: The messages of the calls that have begun, and the results of those that have ended.
    messages: list[ReceivedMessage] = field(default_factory=list)
    failures: Failures = field(default_factory=list)
    #: How many messages the last call had.
    last_size: int = 0
    #: It counts as failed, and has been processed up to this number of messages.
    abandoned: bool = False
    expired: int = 0
    #: The results may not be processed yet.
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


class RunCaller:
    """Calls one listener for runs. Any thread may use it."""

    def __init__(
        self,
        runner: ListenerRunner,
        clock: Callable[[], float],
        gate: ConsumeGate | None,
        failed: Callable[[BaseException], None],
        counts: Callable[[str], ConsumeCounts],
    ) -> None:
        """Initialize the caller.

        Args:
            gate: allows each call to begin; None: all calls may begin.
            failed: called with an unexpected error around a call.
            counts: returns the counts of a topic's calls.
        """
        self._runner = runner
        self._clock = clock
        self._failed = failed
        self._counts = counts
        self.latency = ListenerLatency(clock)
        self.gate = gate
        self.paused = False
        self.stopping = False

    def make_calls(self, run: ListenerRun) -> None:
        """Make a run's calls until one is slow, it must stop, or none is left."""
        try:
            self._make_calls(run)
        except BaseException as error:  # noqa: BLE001 - a run has to end after any error
            missing = len(run.messages) - len(run.failures)
            run.failures += [CallFailure.raised(error)] * missing
            self._failed(error)

    def _make_calls(self, run: ListenerRun) -> None:
        process, clock, call, gate = run.order.process, self._clock, self._runner.call, self.gate
        if not threading.main_thread().is_alive():  # the program ends: its messages are redelivered elsewhere
            return
        calls, longest = 0, 0.0
        first = began = clock()
        while not (process.dropped or self.stopping or self.paused):
            if gate is not None and not gate.may_begin(process.queue):
                break
            try:
                messages = run.waiting.popleft()
            except IndexError:  # none is left, or the loop has taken them back
                break
            run.started = began
            run.messages += messages
            run.last_size = len(messages)
            failures = call(messages)
            run.failures += failures
            ended = clock()
            calls += 1
            longest = max(longest, ended - began)
            began = ended
            if ended - first > 2 * RUN_SECONDS or (run.stops_at_failure and any(failures)):
                break
        if calls:
            self.latency.took(began - first, calls, longest)
            counts = self._counts(process.queue.topic)
            counts.calls += calls
            counts.messages += len(run.failures)
            counts.failures += len(run.failures) - run.failures.count(None)
            counts.seconds += began - first
