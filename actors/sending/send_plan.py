"""Hold the parameters, the plan and the outcome of one send.

The module performs no I/O. All ways to send use it. `timeout` is the budget of the whole send. A try that surely stored
nothing does not count against `retries`, and is repeated after a pause while there is time.

Source: RocketMQ's DefaultMQProducerImpl. The share of a try and the uncounted tries are RayMQ's additions.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from raymq.actors.backoff import Backoff
from raymq.actors.errors import (
    Attempt,
    BrokerUnavailable,
    ConnectionLost,
    NotStored,
    OutcomeUnknown,
    PermissionDenied,
    QueueNotFound,
    RayMQError,
    SendError,
    SequenceGap,
    ServerBusy,
    Timeout,
    TooFewInSync,
    TopicNotFound,
    WriteUnknown,
)
from raymq.actors.protocol import MessageQueue, SendStatus

#: Answers after which another broker may take the message; any other answer is final.
RETRIED_CODES = frozenset({"TOPIC_NOT_EXIST", "SERVICE_NOT_AVAILABLE", "SYSTEM_ERROR", "SYSTEM_BUSY", "NO_PERMISSION"})
#: The longest time-out of a try while a further try is left.
MAX_TRY_SECONDS = 3.0
#: The shortest time-out of a try, however many tries are left: less is too short for an answer.
LEAST_TRY_SECONDS = 0.05
#: The first and the longest pause after tries that stored nothing.
_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.05, 1.0
#: The last pause leaves this many seconds for the last try, but at most this part of the budget.
_LAST_TRY_SECONDS, _LAST_TRY_PART = 0.25, 0.1
#: The most tries that an error lists; tries in the middle are left out.
_MAX_ATTEMPTS = 64


def try_seconds(remaining: float, tries_left: int) -> float:
    """Return the next try's seconds: a share of `remaining`, or all for the last try."""
    if tries_left <= 1:
        return remaining
    return max(min(remaining / tries_left, MAX_TRY_SECONDS), min(remaining, LEAST_TRY_SECONDS))


def is_unanswered(error: BaseException) -> bool:
    """Return True if a try reached a socket and got no answer."""
    return isinstance(error, ConnectionLost | Timeout)


def is_unknown(error: BaseException) -> bool:
    """Return True if a try that failed with `error` may have stored the message.

    It may if there was no answer, or if the broker's disk failed during the write.
    """
    return is_unanswered(error) or isinstance(error, WriteUnknown)


def was_never_sent(error: BaseException) -> bool:
    """Return True if the try surely did not reach a broker."""
    return isinstance(error, BrokerUnavailable) and not is_unanswered(error)


def stored_nothing(queue: MessageQueue | None, error: BaseException) -> bool:
    """Return True if the try surely stored nothing and may succeed when repeated.

    That is so if no broker was reached, the broker is not its group's master, too few replicas are in sync, or no name
    server knows the cluster yet. `queue` is None if none was chosen.
    """
    return was_never_sent(error) or isinstance(error, TooFewInSync) or (queue is None and isinstance(error, ServerBusy))


def is_refusal_by_broker(error: RayMQError) -> bool:
    """Return True if another broker may accept the message.

    The broker refused it because of its own state.
    """
    return error.code in RETRIED_CODES


def _pauses() -> Backoff:
    return Backoff(first=_PAUSE_SECONDS, cap=_LONGEST_PAUSE_SECONDS)


@dataclass(slots=True)
class SendPlan:
    """The budget and the history of one send.

    Attributes:
        clock: returns seconds.
        timeout: the budget of the whole send, in seconds.
        retries: counted tries after the first one.
        backoff: the pauses after SYSTEM_BUSY.
        attempts: every try that failed.
        doubtful: the brokers that may have stored the message in an earlier try.
        queue_is_given: the caller has fixed the queue, so that there is no alternative.
        is_idempotent: the producer is idempotent, so that a try without an answer does not count either.
        waits: False: every try counts, and there is no pause before the next one.
        route_is_old: a queue was chosen from an outdated route: its broker does not have it.
        pauses: the pauses after tries that stored nothing.
        counted: the number of tries that have counted.
    """

    clock: Callable[[], float]
    timeout: float
    retries: int
    backoff: Backoff = field(default_factory=Backoff)
    attempts: list[Attempt] = field(default_factory=list)
    doubtful: set[str] = field(default_factory=set)
    queue_is_given: bool = False
    is_idempotent: bool = False
    waits: bool = True
    route_is_old: bool = False
    pauses: Backoff = field(default_factory=_pauses)
    counted: int = 0
    #: Queues whose broker has reported once that it lost the producer's sequence.
    _forgotten: set[MessageQueue | None] = field(default_factory=set)
    #: Tries without an answer that did not count.
    _uncounted_unknown: int = 0
    _deadline: float = 0.0
    _unknown: bool = False
    #: The remedy of the last try's error.
    _remedy: str = ""

    def __post_init__(self) -> None:
        self._deadline = self.clock() + self.timeout

    @property
    def remaining(self) -> float:
        """Return the seconds left of the budget, at least 0."""
        return max(0.0, self._deadline - self.clock())

    @property
    def is_in_doubt(self) -> bool:
        """Return True if a failed try may have stored the message."""
        return self._unknown

    def try_timeout(self) -> float:
        """Return the next try's time-out in seconds.

        It is at most 3 s while a further try is left, else all that is left.
        """
        return try_seconds(self.remaining, 1 + self.retries - self.counted - self._uncounted_unknown)

    def reach_timeout(self) -> float:
        """Return a try's time-out in seconds for finding a route or connecting.

        It leaves time for another try, because such a failure does not count. If `waits` is False, it is that of
        `try_timeout`.
        """
        if not self.waits:
            return self.try_timeout()
        return try_seconds(self.remaining, max(2, 1 + self.retries - self.counted))

    def failed(self, queue: MessageQueue | None, error: RayMQError, elapsed: float) -> float | None:
        """Record a failed try, and return the pause before the next one.

        `queue` is None if none was chosen. A try counts against `retries` unless it surely stored nothing
        (`stored_nothing`), or the broker would recognise its repetition. SYSTEM_BUSY has a longer back-off and does not
        count, unless `retries` is 0. The first report of a broker that it lost a queue's sequence does not count, nor
        does a queue that was chosen from an outdated route.

        Returns:
            seconds to wait before the next try; None if there is none: then raise `outcome()`.
        """
        forgot = self.retries and isinstance(error, SequenceGap) and queue not in (None, *self._forgotten)
        if forgot and not self._unknown:
            self._forgotten.add(queue)
            return 0.0
        if isinstance(error, QueueNotFound) and not (self.queue_is_given or self.route_is_old or self._unknown):
            self.route_is_old = True
            return 0.0
        unknown = is_unknown(error)
        self._unknown = self._unknown or unknown
        if queue is not None and unknown:
            self.doubtful.add(queue.broker)
        self._record(queue, error.code, error, elapsed)
        recognised = self.is_idempotent and is_unanswered(error)
        if self.waits and (recognised or stored_nothing(queue, error)):
            self._uncounted_unknown += recognised
            return self._pause(self.pauses)
        if self.waits and self.retries and isinstance(error, ServerBusy):
            wait = self.backoff.next_delay()
            return wait if wait < self.remaining else None
        self.counted += 1
        elsewhere = unknown or was_never_sent(error) or is_refusal_by_broker(error)
        if self.counted > self.retries or not elsewhere:
            return None
        if isinstance(error, ServerBusy):
            wait = self.backoff.next_delay()
        elif isinstance(error, ConnectionLost) and self.waits:
            wait = (
                self.pauses.next_delay()
            )  # a crashing broker refuses connections a moment later, and such tries do not count
        else:
            wait = 0.0
        return wait if wait < self.remaining else None

    def record_bad_status(self, queue: MessageQueue, status: SendStatus, elapsed: float) -> RayMQError | None:
        """Count a try whose message was stored with an insufficient status, not SEND_OK.

        Returns:
            the error to report; None if there is no further try: then the status is the outcome.
        """
        if self.counted >= self.retries or not self.remaining:
            return None
        error = RayMQError(f"stored, but {status.value}", code=status.value)
        self._unknown = True
        self.doubtful.add(queue.broker)
        self.counted += 1
        self._record(queue, status.value, error, elapsed)
        return error

    def is_final_refusal(self, error: RayMQError) -> bool:
        """Return True if the last `error` is to be raised rather than `outcome()`.

        That is so if the first answer refuses the message itself, if no broker was tried because the topic does not
        exist, or if no broker permits the write.
        """
        if isinstance(error, TopicNotFound):
            return all(attempt.broker is None for attempt in self.attempts)
        if isinstance(error, PermissionDenied):
            return all(attempt.code == error.wire_code for attempt in self.attempts)
        refused = error.code not in RETRIED_CODES and not is_unknown(error) and not stored_nothing(None, error)
        return refused and self.counted == 1 and not self._unknown

    def outcome(self) -> SendError:
        """Return the error of a send that has no tries or no time left."""
        last = f": {self.attempts[-1].error}" if self.attempts else ""
        error: SendError = NotStored(f"not stored{last}", self.attempts)
        if self._unknown:
            error = OutcomeUnknown(f"the message may or may not be stored{last}", self.attempts)
        if self._remedy:
            error.remedy = self._remedy
        return error

    def _pause(self, pauses: Backoff) -> float | None:
        """Return the next pause, shortened to leave time for a last try.

        Return None if there is no time.
        """
        remaining = self.remaining - min(_LAST_TRY_SECONDS, max(0.0, _LAST_TRY_PART * self.timeout))
        return min(pauses.next_delay(), remaining) if remaining > 0.0 else None

    def _record(self, queue: MessageQueue | None, code: str | None, error: RayMQError, elapsed: float) -> None:
        if len(self.attempts) >= _MAX_ATTEMPTS:
            del self.attempts[_MAX_ATTEMPTS // 2]
        self.attempts.append(Attempt(None if queue is None else queue.broker, queue, code, _reason(error), elapsed))
        self._remedy = error.remedy


@dataclass(frozen=True, slots=True)
class SendParameters:
    """The parameters of one send.

    Attributes:
        timeout: the budget of all tries together, in seconds; 0 if it is used up already.
        retries: further tries after the first.
        queue, sharding_key: fix the queue; every try goes there.
        same_broker: a try after one that may have stored the message stays on its broker.
        delayed: the records have a DELAY property and wait in the schedule topic first.
        require_send_ok: a status other than SEND_OK is tried again, also on another broker.
        by_key: `queue` was computed from sharding keys and a route. If the queue accepts nothing, the caller chooses
            another one. The caller also puts failed messages into the outbox, with their keys.
        waits: a try that surely stored nothing is repeated while there is time, and does not count against `retries`;
            False: every try counts.
        idempotent: the first record gets the batch's sequence number, so that no broker stores the batch twice.
    """

    timeout: float
    retries: int
    queue: MessageQueue | None = None
    sharding_key: str | None = None
    same_broker: bool = False
    delayed: bool = False
    require_send_ok: bool = False
    by_key: bool = False
    waits: bool = True
    idempotent: bool = False

    def plan(self, began: float | None = None) -> SendPlan:
        """Return the plan of a send that began at `began` (monotonic clock), or now."""
        remaining = self.timeout if began is None else began + self.timeout - time.monotonic()
        return SendPlan(
            time.monotonic,
            remaining,
            self.retries,
            queue_is_given=self.queue is not None,
            is_idempotent=self.idempotent,
            waits=self.waits,
        )

    def check_time(self) -> None:
        """Raise NotStored if the budget was used up before the first try."""
        if self.timeout <= 0.0:
            raise NotStored("the timeout ended before the send began")

    def without_sharding_key(self) -> SendParameters:
        """Return the same parameters without a sharding key."""
        return self if self.sharding_key is None else replace(self, sharding_key=None)


def _reason(error: RayMQError) -> str:
    """Return the first line of the error.

    The remedy is left out, because the send's own error has it.
    """
    text = Exception.__str__(error)
    return text.splitlines()[0] if text else type(error).__name__
