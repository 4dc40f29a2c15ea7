"""The rules of one send: how many tries, how long each may take, and what the outcome is called. No I/O.

Source: RocketMQ's DefaultMQProducerImpl; the share of a try is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from raymq.actors.backoff import Backoff
from raymq.actors.errors import (
    Attempt,
    BrokerUnavailable,
    ConnectionLost,
    NotMaster,
    NotStored,
    OutcomeUnknown,
    PermissionDenied,
    QueueNotFound,
    RayMQError,
    SendError,
    SequenceGap,
    ServerBusy,
    Timeout,
    TopicNotFound,
    TopicUnavailable,
    WriteUnknown,
)
from raymq.actors.protocol import MessageQueue, SendStatus

#: Answers after which another broker may take the message; any other answer is final.
RETRIED_CODES = frozenset({"TOPIC_NOT_EXIST", "SERVICE_NOT_AVAILABLE", "SYSTEM_ERROR", "SYSTEM_BUSY", "NO_PERMISSION"})
#: A name server that does not know the cluster yet is asked again after this pause.
LOOK_AGAIN_SECONDS = 0.2
#: However many tries there are, one has so much of the budget: less is no time for an answer.
LEAST_TRY_SECONDS = 0.05


def try_seconds(remaining: float, tries_left: int) -> float:
    """What the next try may take of the `remaining` seconds: its share, so that a paused broker eats no more."""
    return max(remaining / max(1, tries_left), min(remaining, LEAST_TRY_SECONDS))


def is_unanswered(error: BaseException) -> bool:
    """Whether a try reached a socket and got no answer."""
    return isinstance(error, ConnectionLost | Timeout)


def is_unknown(error: BaseException) -> bool:
    """Whether a try that ended so may have stored the message: it was not answered, or by a disk's failure under it."""
    return is_unanswered(error) or isinstance(error, WriteUnknown)


def never_arrived(error: BaseException) -> bool:
    """Whether the try surely did not reach a broker."""
    return isinstance(error, BrokerUnavailable) and not is_unanswered(error)


def is_refusal_by_broker(error: RayMQError) -> bool:
    """Whether a broker refused for its own sake, so that another one may take the message."""
    return error.code in RETRIED_CODES


@dataclass(slots=True)
class SendPlan:
    """One send's budget and history. `clock` in seconds; `timeout` is the one budget of all `1 + retries` tries.

    `queue_is_given`: the caller has chosen the queue, so that there is no other one to go to.
    """

    clock: Callable[[], float]
    timeout: float
    retries: int
    backoff: Backoff = field(default_factory=Backoff)
    attempts: list[Attempt] = field(default_factory=list)
    #: Brokers that may hold the message by a try of before.
    doubtful: set[str] = field(default_factory=set)
    queue_is_given: bool = False
    #: Whether a queue was chosen by a route that is old: its broker does not have it.
    route_is_old: bool = False
    #: Queues whose broker does not know the producer's count any more, as it has said once.
    _forgotten: set[MessageQueue | None] = field(default_factory=set)
    _deadline: float = 0.0
    _unknown: bool = False

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
        """What the next try may take, in seconds."""
        return try_seconds(self.remaining, 1 + self.retries - len(self.attempts))

    def failed(self, queue: MessageQueue | None, error: RayMQError, elapsed: float) -> float | None:
        """Count a failed try; `queue` is None where none was chosen.

        A name server that has just started and says "come again", or that all brokers of the topic are away, costs time
        of the budget, but no try; so does a broker that is not its group's master any more, and one that has forgotten
        what the producer had counted in a queue, which it then counts anew, if it shall try again at all; so
        does, once, a queue that was chosen by an old route and is none any more.

        Returns:
            seconds to wait before the next try, None if there is none: then raise `outcome()`.
        """
        nobody_there = queue is None and isinstance(error, ServerBusy | TopicUnavailable)
        if (nobody_there or isinstance(error, NotMaster)) and self.remaining > LOOK_AGAIN_SECONDS:
            return LOOK_AGAIN_SECONDS
        forgot = self.retries and isinstance(error, SequenceGap) and queue not in (None, *self._forgotten)
        if forgot and not self._unknown:
            self._forgotten.add(queue)
            return 0.0
        if isinstance(error, QueueNotFound) and not (self.queue_is_given or self.route_is_old or self._unknown):
            self.route_is_old = True
            return 0.0
        self._unknown = self._unknown or is_unknown(error)
        if queue is not None and is_unknown(error):
            self.doubtful.add(queue.broker)
        self.attempts.append(
            Attempt(None if queue is None else queue.broker, queue, error.code, _reason(error), elapsed)
        )
        elsewhere = is_unknown(error) or never_arrived(error) or is_refusal_by_broker(error)
        if len(self.attempts) > self.retries or not elsewhere:
            return None
        wait = self.backoff.next_delay() if isinstance(error, ServerBusy) else 0.0
        return wait if wait < self.remaining else None

    def not_ok(self, queue: MessageQueue, status: SendStatus, elapsed: float) -> RayMQError | None:
        """Count a try that was stored with another status than SEND_OK, where that is not enough.

        Returns:
            what to report of it, None if there is no further try: then the status is the outcome.
        """
        if len(self.attempts) >= self.retries or not self.remaining:
            return None
        error = RayMQError(f"stored, but {status.value}", code=status.value)
        self._unknown = True
        self.doubtful.add(queue.broker)
        self.attempts.append(Attempt(queue.broker, queue, status.value, _reason(error), elapsed))
        return error

    def outcome(self) -> SendError:
        """The error of a send whose tries ran out."""
        if self._unknown:
            return OutcomeUnknown("the message may or may not be stored", self.attempts)
        return NotStored("not stored", self.attempts)


def _reason(error: RayMQError) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def is_final_refusal(error: RayMQError, attempts: Sequence[Attempt]) -> bool:
    """Whether `error`, the last one, says all there is to say: raise it rather than NotStored.

    So it is where the first answer refuses the message itself, where no broker was tried for want of the topic, and
    where none may take it.
    """
    if isinstance(error, TopicNotFound):
        return all(attempt.broker is None for attempt in attempts)
    if isinstance(error, PermissionDenied):
        return all(attempt.code == error.wire_code for attempt in attempts)
    refused = error.code not in RETRIED_CODES and not is_unknown(error) and not never_arrived(error)
    return refused and len(attempts) == 1
