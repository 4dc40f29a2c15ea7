"""The plan of one send: its budget, which tries count, how long each may take, the pauses, and the outcome. No I/O.

All ways to send use it. `timeout` is the budget of the whole send, and it is used: a try that surely stored nothing
does not count against `retries`, and is repeated after a pause while there is time.

Source: RocketMQ's DefaultMQProducerImpl; the share of a try and the uncounted tries are ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

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
#: While a further try is left, a try gets at most so much.
MOST_TRY_SECONDS = 3.0
#: However many tries there are, one has so much of the budget: less is no time for an answer.
LEAST_TRY_SECONDS = 0.05
#: The pauses behind tries that stored nothing.
_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.05, 1.0
#: The last pause leaves so much of the budget for the last try, and at most this part of it.
_LAST_TRY_SECONDS, _LAST_TRY_PART = 0.25, 0.1
#: An error lists so many tries; those in the middle are left out.
_MOST_ATTEMPTS = 64


def try_seconds(remaining: float, tries_left: int) -> float:
    """What the next try may take of the `remaining` seconds: a share while others are left, else all of it."""
    if tries_left <= 1:
        return remaining
    return max(min(remaining / tries_left, MOST_TRY_SECONDS), min(remaining, LEAST_TRY_SECONDS))


def is_unanswered(error: BaseException) -> bool:
    """Whether a try reached a socket and got no answer."""
    return isinstance(error, ConnectionLost | Timeout)


def is_unknown(error: BaseException) -> bool:
    """Whether a try that ended so may have stored the message: it was not answered, or by a disk's failure under it."""
    return is_unanswered(error) or isinstance(error, WriteUnknown)


def never_arrived(error: BaseException) -> bool:
    """Whether the try surely did not reach a broker."""
    return isinstance(error, BrokerUnavailable) and not is_unanswered(error)


def stored_nothing(queue: MessageQueue | None, error: BaseException) -> bool:
    """Whether a try surely stored nothing, and the next one may succeed though nothing else changes but the cluster.

    So it is where no broker was reached, where it is not its group's master, where too few replicas are in sync, and
    where no name server knows the cluster yet; `queue` is None where none was chosen.
    """
    return never_arrived(error) or isinstance(error, TooFewInSync) or (queue is None and isinstance(error, ServerBusy))


def is_refusal_by_broker(error: RayMQError) -> bool:
    """Whether a broker refused for its own sake, so that another one may take the message."""
    return error.code in RETRIED_CODES


def _pauses() -> Backoff:
    return Backoff(first=_PAUSE_SECONDS, cap=_LONGEST_PAUSE_SECONDS)


@dataclass(slots=True)
class SendPlan:
    """One send's budget and history.

    Attributes:
        clock: seconds.
        timeout: the budget of the whole send, seconds.
        retries: counted tries after the first one.
        backoff: the pauses after SYSTEM_BUSY.
        attempts: every try that failed.
        doubtful: the brokers that may hold the message by a try of before.
        queue_is_given: the caller has chosen the queue, so that there is no other one to go to.
        repeats_are_recognised: the producer is idempotent: a try without an answer does not count either.
        waits: False: every try counts, and none is waited for.
        route_is_old: a queue was chosen by an old route: its broker does not have it.
        pauses: the pauses after tries that stored nothing.
        counted: how many tries have counted.
    """

    clock: Callable[[], float]
    timeout: float
    retries: int
    backoff: Backoff = field(default_factory=Backoff)
    attempts: list[Attempt] = field(default_factory=list)
    doubtful: set[str] = field(default_factory=set)
    queue_is_given: bool = False
    repeats_are_recognised: bool = False
    waits: bool = True
    route_is_old: bool = False
    pauses: Backoff = field(default_factory=_pauses)
    counted: int = 0
    #: Queues whose broker does not know the producer's count any more, as it has said once.
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
        """Seconds left of the budget, at least 0."""
        return max(0.0, self._deadline - self.clock())

    @property
    def in_doubt(self) -> bool:
        """Whether the message may be stored by a try that failed."""
        return self._unknown

    def try_timeout(self) -> float:
        """What the next try may take, in seconds: at most 3 s while a further one is left, else all that is left."""
        return try_seconds(self.remaining, 1 + self.retries - self.counted - self._uncounted_unknown)

    def reach_timeout(self) -> float:
        """What a try may take to find a route or to connect, in seconds: if that fails there is always another try."""
        if not self.waits:
            return self.try_timeout()
        return try_seconds(self.remaining, max(2, 1 + self.retries - self.counted))

    def failed(self, queue: MessageQueue | None, error: RayMQError, elapsed: float) -> float | None:
        """Record a failed try; `queue` is None where none was chosen.

        A try counts against `retries` unless it surely stored nothing (`stored_nothing`), or its repetition is
        recognised. SYSTEM_BUSY has a longer back-off instead, unless `retries` is 0. A broker that has forgotten what
        the producer had counted in a queue costs no try once, nor does a queue that was chosen by an old route.

        Returns:
            seconds to wait before the next try, None if there is none: then raise `outcome()`.
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
        recognised = self.repeats_are_recognised and is_unanswered(error)
        if self.waits and (recognised or stored_nothing(queue, error)):
            self._uncounted_unknown += recognised
            return self._pause(self.pauses)
        if self.waits and self.retries and isinstance(error, ServerBusy):
            wait = self.backoff.next_delay()
            return wait if wait < self.remaining else None
        self.counted += 1
        elsewhere = unknown or never_arrived(error) or is_refusal_by_broker(error)
        if self.counted > self.retries or not elsewhere:
            return None
        if isinstance(error, ServerBusy):
            wait = self.backoff.next_delay()
        elif isinstance(error, ConnectionLost) and self.waits:
            wait = self.pauses.next_delay()  # who dies refuses a moment later: that does not count
        else:
            wait = 0.0
        return wait if wait < self.remaining else None

    def not_ok(self, queue: MessageQueue, status: SendStatus, elapsed: float) -> RayMQError | None:
        """Count a try that was stored with another status than SEND_OK, where that is not enough.

        Returns:
            what to report of it, None if there is no further try: then the status is the outcome.
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
        """Return True if `error`, the last one, says all there is to say: raise it rather than `outcome()`.

        So it is where the first answer refuses the message itself, where no broker was tried for want of the topic, and
        where none may take it.
        """
        if isinstance(error, TopicNotFound):
            return all(attempt.broker is None for attempt in self.attempts)
        if isinstance(error, PermissionDenied):
            return all(attempt.code == error.wire_code for attempt in self.attempts)
        refused = error.code not in RETRIED_CODES and not is_unknown(error) and not stored_nothing(None, error)
        return refused and self.counted == 1 and not self._unknown

    def outcome(self) -> SendError:
        """The error of a send whose tries or time ran out."""
        last = f": {self.attempts[-1].error}" if self.attempts else ""
        error: SendError = NotStored(f"not stored{last}", self.attempts)
        if self._unknown:
            error = OutcomeUnknown(f"the message may or may not be stored{last}", self.attempts)
        if self._remedy:
            error.remedy = self._remedy
        return error

    def _pause(self, pauses: Backoff) -> float | None:
        """The next pause, shortened so that time for a last try is left; None if there is no time."""
        left = self.remaining - min(_LAST_TRY_SECONDS, max(0.0, _LAST_TRY_PART * self.timeout))
        return min(pauses.next_delay(), left) if left > 0.0 else None

    def _record(self, queue: MessageQueue | None, code: str | None, error: RayMQError, elapsed: float) -> None:
        if len(self.attempts) >= _MOST_ATTEMPTS:
            del self.attempts[_MOST_ATTEMPTS // 2]
        self.attempts.append(Attempt(None if queue is None else queue.broker, queue, code, _reason(error), elapsed))
        self._remedy = error.remedy


def _reason(error: RayMQError) -> str:
    """Its first line; the remedy is said once, by the send's own error."""
    text = Exception.__str__(error)
    return text.splitlines()[0] if text else type(error).__name__
