"""The errors that need a cluster to happen, and how an error travels in an answer.

The tree's root and the errors of a store are in `raymq.storage.errors`; this module adds

    RayMQError
    +-- InvalidInput
    |   +-- MessageIllegal             a message cannot be stored as it is
    +-- SendError                      .attempts: what every try met
    |   +-- NotStored                  every try was refused by an answer or never reached a socket
    |   |   +-- BufferFull             the producer holds as many messages as it may
    |   +-- OutcomeUnknown (TimeoutError)   after one try the message may be stored
    +-- BrokerUnavailable              .broker; where it is neither of these two, nothing was sent
    |   +-- ConnectionLost             the connection broke before the answer
    |   +-- Timeout (TimeoutError)     the answer did not come in time
    +-- UnknownAttribute (InvalidInput)
    +-- BadSubscription  SubscriptionMismatch  ConsumerNotOnline  NotRecallable  ClientClosed  OffsetReset
    +-- PermissionDenied  ServerBusy  NothingToPop  SequenceGap  StaleHandle  ProtocolError  WorkFailed
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raymq.actors.protocol import MessageQueue
from raymq.storage.errors import (
    GroupNotFound,
    InvalidInput,
    MessageExpired,
    MessageNotFound,
    NotFoundError,
    OffsetOutOfRange,
    QueueNotFound,
    RayMQError,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFailed,
    StoreFull,
    StoreLocked,
    TopicExists,
    TopicNotFound,
    WriteUnknown,
)

__all__ = [
    "Attempt",
    "BadSubscription",
    "BrokerUnavailable",
    "BufferFull",
    "ClientClosed",
    "ConnectionLost",
    "ConsumerNotOnline",
    "GroupNotFound",
    "InvalidInput",
    "MessageExpired",
    "MessageIllegal",
    "MessageNotFound",
    "NotFoundError",
    "NotRecallable",
    "NotStored",
    "NothingToPop",
    "OffsetOutOfRange",
    "OffsetReset",
    "OutcomeUnknown",
    "PermissionDenied",
    "ProtocolError",
    "QueueNotFound",
    "RayMQError",
    "SendError",
    "SequenceGap",
    "ServerBusy",
    "StaleHandle",
    "StoreBusy",
    "StoreCorrupt",
    "StoreError",
    "StoreFailed",
    "StoreFull",
    "StoreLocked",
    "SubscriptionMismatch",
    "Timeout",
    "TopicExists",
    "TopicNotFound",
    "UnknownAttribute",
    "WorkFailed",
    "WriteUnknown",
]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try of a send. `code` is the broker's answer (None: no answer), `elapsed` in seconds.

    `broker` and `queue` are None where the try ended before one was chosen.
    """

    broker: str | None
    queue: MessageQueue | None
    code: str | None
    error: str
    elapsed: float


class SendError(RayMQError):
    """A send failed; `.attempts` lists each try.

    `.kept` says that the producer's outbox has the messages and will send them: sending them again would do so twice.
    """

    kept: bool = False

    def __init__(self, message: str, attempts: Sequence[Attempt] = ()) -> None:
        lines = "".join(
            f"\n  try {number}: broker {a.broker or '-'} queue {'-' if a.queue is None else a.queue.queue_id}: "
            f"{a.code or 'no answer'}: {a.error} ({a.elapsed:.3f} s)"
            for number, a in enumerate(attempts, 1)
        )
        super().__init__(message + lines)
        self.attempts = list(attempts)
        self.code = next((a.code for a in reversed(self.attempts) if a.code), None)


class MessageIllegal(InvalidInput):
    """A message, not a name, breaks a rule: its body, its properties, its flags, how it is packed."""

    wire_code = "MESSAGE_ILLEGAL"


class NotStored(SendError):
    """Surely not stored: every try was refused by a broker's answer or never reached a socket."""

    retriable = True


class BufferFull(NotStored):
    """A producer that gathers messages holds as many as it may; the message was not taken."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message)


class OutcomeUnknown(SendError, TimeoutError):
    """A try got no answer, or the broker's disk failed under it: the message may or may not be stored."""

    retriable = True


class BrokerUnavailable(RayMQError):
    """A broker (or name server, or actor) cannot be reached; `.broker` is its name or address."""

    retriable = True
    wire_code = "SERVICE_NOT_AVAILABLE"

    def __init__(self, broker: str, reason: str = "not reachable", *, remedy: str | None = None) -> None:
        super().__init__(f"{broker}: {reason}", remedy=remedy)
        self.broker = broker

    def at_address(self, address: str, name: str | None) -> None:
        """Where the error knows its broker as `address` only, let it say that this is the broker `name`, too."""
        if name is not None and self.broker == address:
            reason = str(self.args[0]).removeprefix(f"{address}: ")
            self.args = (f"{name} ({address}): {reason}",)
            self.broker = name


class ConnectionLost(BrokerUnavailable):
    """The connection broke after a request went out: its outcome is unknown."""


class Timeout(BrokerUnavailable, TimeoutError):
    """No answer in time. The request may still be carried out: its outcome is unknown."""


class UnknownAttribute(InvalidInput):
    """An attribute of a topic that is not known, or cannot have that value."""

    wire_code = "SYSTEM_ERROR"


class BadSubscription(RayMQError):
    """A filter expression that cannot be read, or whose language is not served."""

    wire_code = "SUBSCRIPTION_PARSE_FAILED"


class SubscriptionMismatch(RayMQError):
    """A member's subscription differs from its group's; both are named."""

    wire_code = "SUBSCRIPTION_PARSE_FAILED"


class ConsumerNotOnline(RayMQError):
    """The group has no member here, or that client is none of them."""

    wire_code = "CONSUMER_NOT_ONLINE"


class OffsetReset(RayMQError):
    """An administrator sent the group to another place of the queue: go on at `.offset`.

    `.incarnation` is that of the topic, where this is because a topic of the same name was made anew; else None.
    """

    wire_code = "PULL_OFFSET_MOVED"

    def __init__(self, offset: int, incarnation: int | None = None) -> None:
        super().__init__(f"the group was sent to offset {offset}")
        self.offset = offset
        self.incarnation = incarnation


class NotRecallable(RayMQError):
    """The message is no timer, or its time had passed when it was sent."""

    wire_code = "ILLEGAL_OPERATION"


class ClientClosed(RayMQError):
    """The client or its connection was closed."""


class NothingToPop(RayMQError):
    """A pop found no message in its time."""

    wire_code = "POLLING_TIMEOUT"


class StaleHandle(RayMQError):
    """The delivery that a receipt handle names is over: acknowledged, renewed, expired, or reset."""

    wire_code = "NO_MESSAGE"


class PermissionDenied(RayMQError):
    """The topic or group forbids it."""

    wire_code = "NO_PERMISSION"


class ServerBusy(RayMQError):
    """Flow control: come again later. `.bound` names the broker's bound that was reached; empty elsewhere."""

    retriable = True
    wire_code = "SYSTEM_BUSY"
    bound: str = ""

    def __init__(self, message: str = "", *, code: str | None = None, bound: str = "") -> None:
        super().__init__(message, code=code)
        self.bound = bound


class SequenceGap(RayMQError):
    """An idempotent producer's batch is not the one that follows what the broker has of it; nothing was stored."""

    retriable = True


class ProtocolError(RayMQError):
    """The peer sent what the protocol does not allow, or answered with a code that has no class of its own."""


class WorkFailed(RayMQError):
    """Some work of a consumer fails again and again with what nobody expected: `.work`, `.reason`, `.in_a_row`."""

    def __init__(self, work: str, reason: str, in_a_row: int) -> None:
        super().__init__(f"{work} failed {in_a_row} times in a row: {reason}")
        self.work = work
        self.reason = reason
        self.in_a_row = in_a_row
