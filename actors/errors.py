"""Errors of a cluster, and the wire codes of errors in answers.

The root of the tree and the errors of a store are in `raymq.storage.errors`. This module adds

    RayMQError
    +-- InvalidInput
    |   +-- MessageIllegal             a message cannot be stored as it is
    +-- SendError                      .attempts: the failure of every try
    |   +-- NotStored                  every try was refused by an answer or never reached a socket
    |   |   +-- BufferFull             the producer's buffer is full
    |   +-- OutcomeUnknown (TimeoutError)   after one try the message may be stored
    |   +-- PartlyStored               a part of a batch or a table is stored, the rest is surely not
    +-- BrokerUnavailable              .broker; raised as this class itself: nothing was sent
    |   +-- TopicUnavailable           no broker of the topic is registered now
    |   +-- NotMaster                  the broker is not its group's master now; nothing was done
    |   +-- ConnectionLost             the connection broke before the answer
    |   +-- Timeout (TimeoutError)     the answer did not arrive in time
    +-- UnknownAttribute (InvalidInput)
    +-- BadSubscription  SubscriptionMismatch  ConsumerNotOnline  NotRecallable  ClientClosed  OffsetReset
    +-- TransactionEnded               the transaction was decided otherwise, or given up
    +-- WriteIncomplete                .transaction, .rows, .missing: a committed write that has lost rows
    +-- FencedEpoch                    another broker is master, in a larger epoch
    +-- TooFewInSync                   a broker group has too few replicas in sync; nothing was stored
    +-- BrokerGroupNotFound            the register has no such group
    +-- ElectionFailed                 no replica, or not the designated one, may become master
    +-- PermissionDenied  ServerBusy  NothingToPop  SequenceGap  StaleHandle  WorkFailed
    +-- ProtocolError
        +-- VersionMismatch            the peer runs an incompatible RayMQ; nothing was done
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raymq.actors.naming import is_system_topic
from raymq.actors.protocol import MessageQueue
from raymq.storage.errors import (
    BackupFailed,
    FormatTooNew,
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
    StoreFollows,
    StoreFull,
    StoreLocked,
    TopicExists,
    TopicNotFound,
    WriteUnknown,
    WrongType,
)

__all__ = [
    "Attempt",
    "BackupFailed",
    "BadSubscription",
    "BrokerGroupNotFound",
    "BrokerUnavailable",
    "BufferFull",
    "ClientClosed",
    "ConnectionLost",
    "ConsumerNotOnline",
    "ElectionFailed",
    "FencedEpoch",
    "FormatTooNew",
    "GroupNotFound",
    "InvalidInput",
    "MessageExpired",
    "MessageIllegal",
    "MessageNotFound",
    "NotFoundError",
    "NotMaster",
    "NotRecallable",
    "NotStored",
    "NothingToPop",
    "OffsetOutOfRange",
    "OffsetReset",
    "OutcomeUnknown",
    "PartlyStored",
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
    "StoreFollows",
    "StoreFull",
    "StoreLocked",
    "SubscriptionMismatch",
    "Timeout",
    "TooFewInSync",
    "TopicExists",
    "TopicNotFound",
    "TopicUnavailable",
    "TransactionEnded",
    "UnknownAttribute",
    "VersionMismatch",
    "WorkFailed",
    "WriteIncomplete",
    "WriteUnknown",
    "WrongType",
]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try of a send.

    `code` is that of the broker's answer (None: no answer), and `elapsed` is in seconds. `broker` and `queue` are None
    if the try ended before one was chosen.
    """

    broker: str | None
    queue: MessageQueue | None
    code: str | None
    error: str
    elapsed: float


#: The most tries in the text of an error; `.attempts` has all of them.
_MAX_LINES = 8


class SendError(RayMQError):
    """A failed send; `.attempts` lists each try.

    `.results` of a batch has an entry per message, in order: a `SendResult`, or the `NotStored` or `OutcomeUnknown` of
    that message. `.results` of a table has an entry per part, with its number of rows in `.rows`. An entry that was
    never tried is NotStored without attempts. `.results` of a single send is empty.
    """

    results: Sequence[Any] = ()
    rows: int = 1

    def __init__(self, message: str, attempts: Sequence[Attempt] = ()) -> None:
        lines = [
            f"\n  try {number}: broker {a.broker or '-'} queue {'-' if a.queue is None else a.queue.queue_id}: "
            f"{a.code or 'no answer'}: {a.error} ({a.elapsed:.3f} s)"
            for number, a in enumerate(attempts, 1)
        ]
        if len(lines) > _MAX_LINES:
            lines[_MAX_LINES // 2 : -_MAX_LINES // 2] = [f"\n  ... {len(lines) - _MAX_LINES} more ..."]
        super().__init__(message + "".join(lines))
        self.attempts = list(attempts)
        self.code = next((a.code for a in reversed(self.attempts) if a.code), None)

    @property
    def not_stored(self) -> list[int]:
        """Return the indices in `.results` of entries that have to be sent again.

        They are surely not stored, and an outbox does not keep them.
        """
        return [place for place, entry in enumerate(self.results) if isinstance(entry, NotStored) and not entry.kept]

    @property
    def unknown(self) -> list[int]:
        """Return the indices in `.results` of entries that may be stored.

        Entries that an outbox keeps are left out.
        """
        return [
            place for place, entry in enumerate(self.results) if isinstance(entry, OutcomeUnknown) and not entry.kept
        ]


class MessageIllegal(InvalidInput):
    """A message breaks a rule with its body, its properties, its flags or its encoding."""

    wire_code = "MESSAGE_ILLEGAL"


class NotStored(SendError):
    """The message is surely not stored.

    Every try was refused by a broker's answer or never reached a socket.
    """

    retriable = True


class PartlyStored(SendError):
    """Some messages of a batch or a table are stored, and others surely not.

    `.results` has the result of each.
    """

    remedy = "send again what is not stored: error.not_stored lists the places in .results"


class BufferFull(NotStored):
    """The buffer of a producer that gathers messages is full; the message was not accepted."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message)


class OutcomeUnknown(SendError, TimeoutError):
    """The message may or may not be stored.

    A try got no answer, or the broker's disk failed during the write. `.transaction` names the write that the error is
    about; None: it is about messages. Do not repeat a write before its outcome is known. `.committed`: the write is
    surely committed, but not all of it is visible yet.
    """

    retriable = True

    def __init__(
        self,
        message: str,
        attempts: Sequence[Attempt] = (),
        *,
        transaction: str | None = None,
        committed: bool = False,
    ) -> None:
        super().__init__(message, attempts)
        self.transaction = transaction
        self.committed = committed
        if transaction is not None:
            self.retriable = False


class WriteIncomplete(RayMQError):
    """A write is committed, but some of its rows are lost.

    The staged data of these rows is missing or damaged. `.transaction` names the write. `.rows` rows are stored once
    each, or will be without further action; `.missing` rows are lost, and `.reasons` says why, by broker. The stored
    rows are visible, so repeating the whole write would store them twice.
    """

    def __init__(self, transaction: str, rows: int, missing: int, reasons: Mapping[str, str]) -> None:
        details = "".join(f"\n  {broker}: {reason}" for broker, reason in reasons.items())
        super().__init__(
            f"the write {transaction} is committed, but {missing} of its {rows + missing} rows are lost;"
            f" {rows} are stored: do not repeat the whole write{details}"
        )
        self.transaction = transaction
        self.rows = rows
        self.missing = missing
        self.reasons = dict(reasons)


class TransactionEnded(RayMQError):
    """A transaction has ended otherwise than is requested now, or was given up."""

    wire_code = "ILLEGAL_OPERATION"


class BrokerUnavailable(RayMQError):
    """A broker (or name server, or actor) cannot be reached.

    `.broker` is its name or address.
    """

    retriable = True
    wire_code = "SERVICE_NOT_AVAILABLE"

    def __init__(self, broker: str, reason: str = "not reachable", *, remedy: str | None = None) -> None:
        super().__init__(f"{broker}: {reason}", remedy=remedy)
        self.broker = broker

    def at_address(self, address: str, name: str | None) -> None:
        """Add the name of the broker to an error that has only its address.

        Nothing changes if `name` is None, or if the error is about another broker.
        """
        if name is not None and self.broker == address:
            reason = str(self.args[0]).removeprefix(f"{address}: ")
            self.args = (f"{name} ({address}): {reason}",)
            self.broker = name


class TopicUnavailable(BrokerUnavailable):
    """No broker of the topic is registered now, though one was lately.

    It is also raised if no broker at all is registered, so that the topic's existence is unknown. `.broker` names the
    brokers that have left the routes. RocketMQ's clients receive the code of "no such topic".

    Args:
        words: the text in place of "topic ... is away", for RocketMQ's clients.
    """

    wire_code = "TOPIC_NOT_EXIST"

    def __init__(self, topic: str, brokers: Sequence[str], words: str = "") -> None:
        self.broker = ", ".join(brokers) or "cluster"
        have = "has" if len(brokers) == 1 else "have"
        away = f"{self.broker} {have} the topic, but left the routes" if brokers else "no broker is registered"
        RayMQError.__init__(self, f"{words or f'topic {topic} is unavailable'}: {away}", remedy=CLUSTER_INFO_HINT)


def no_route_to(topic: str) -> str:
    """Return RocketMQ's text for a topic without a route, for its clients."""
    return f"No topic route info in name server for the topic: {topic}"


# -- errors of missing things: one text per cause; the remedy is a Python call, which the command line translates -----

#: The remedy where a broker is missing.
CLUSTER_INFO_HINT = "Admin.cluster_info() lists the brokers"
#: The remedy if no name server answers at its address.
NO_CLUSTER_HINT = "cluster.start() starts a cluster; name_servers= names those of another one"


def topic_not_found(topic: str, broker: str = "", *, more: str = "") -> TopicNotFound:
    """Return the error of a topic that does not exist (on `broker`).

    Args:
        more: a remedy besides creating the topic.
    """
    create = f'create it: Admin.create_topic("{topic}")' if not is_system_topic(topic) else ""
    remedy = "; ".join(filter(None, (create, more)))
    return TopicNotFound(f"topic {topic} does not exist" + (f" on {broker}" if broker else ""), remedy=remedy)


def group_not_found(group: str, broker: str = "") -> GroupNotFound:
    """Return the error of a consumer group that does not exist (on `broker`)."""
    return GroupNotFound(
        f"consumer group {group} does not exist" + (f" on {broker}" if broker else ""),
        remedy="a group is created by its first consumer; Admin.groups() lists the existing ones",
    )


def queue_not_found(queue: MessageQueue) -> QueueNotFound:
    """Return the error of a queue that its topic does not have."""
    return QueueNotFound(
        f"topic {queue.topic} has no queue {queue.queue_id} on {queue.broker}",
        remedy=f'Admin.topic_stats("{queue.topic}") lists its queues',
    )


def broker_not_found(broker: str, where: str) -> BrokerGroupNotFound:
    """Return the error of a broker that was not found in `where`."""
    return BrokerGroupNotFound(f"there is no broker {broker} in {where}", remedy=CLUSTER_INFO_HINT)


class NotMaster(BrokerUnavailable):
    """The broker is not its group's master now, and did nothing.

    Its group has, or is about to elect, another master.
    """


class ConnectionLost(BrokerUnavailable):
    """The connection broke after a request was sent, so its outcome is unknown."""


class Timeout(BrokerUnavailable, TimeoutError):
    """No answer arrived in time; the request may still be carried out."""


class UnknownAttribute(InvalidInput):
    """A topic's attribute is unknown, or cannot have that value."""

    wire_code = "SYSTEM_ERROR"


class BadSubscription(RayMQError):
    """A filter expression cannot be parsed, or its language is not supported."""

    wire_code = "SUBSCRIPTION_PARSE_FAILED"


class SubscriptionMismatch(RayMQError):
    """A member's subscription differs from its group's; the message names both.

    `.in_force` is the group's `subscription_version` if the member has a lower one; else None.
    """

    wire_code = "SUBSCRIPTION_PARSE_FAILED"
    in_force: int | None = None


class ConsumerNotOnline(RayMQError):
    """The group has no member on this broker, or the given client is none."""

    wire_code = "CONSUMER_NOT_ONLINE"


class OffsetReset(RayMQError):
    """The group's offset was reset: go on at `.offset`.

    An administrator did that, or the topic was deleted and created again; then `.incarnation` is that of the new topic,
    else None.
    """

    wire_code = "PULL_OFFSET_MOVED"

    def __init__(self, offset: int, incarnation: int | None = None) -> None:
        super().__init__(f"the group was reset to offset {offset}")
        self.offset = offset
        self.incarnation = incarnation


class NotRecallable(RayMQError):
    """The message is no timer message, or its time had passed when sent."""

    wire_code = "ILLEGAL_OPERATION"


class ClientClosed(RayMQError):
    """The client or its connection was closed."""


class NothingToPop(RayMQError):
    """A pop found no message within its time."""

    wire_code = "POLLING_TIMEOUT"


class StaleHandle(RayMQError):
    """The delivery of a receipt handle has ended.

    It was acknowledged, renewed or reset, or it has expired.
    """

    wire_code = "NO_MESSAGE"


class PermissionDenied(RayMQError):
    """The permission of the topic or group forbids the operation."""

    wire_code = "NO_PERMISSION"


class ServerBusy(RayMQError):
    """Flow control: try again later.

    `.bound` names the broker's limit that was reached; empty for other causes.
    """

    retriable = True
    wire_code = "SYSTEM_BUSY"
    bound: str = ""

    def __init__(self, message: str = "", *, code: str | None = None, bound: str = "") -> None:
        super().__init__(message, code=code)
        self.bound = bound


class FencedEpoch(RayMQError):
    """A broker acts as master, but another one has a larger epoch.

    The other broker is or was the master of the same group in that epoch.
    """

    wire_code = "CONTROLLER_FENCED_MASTER_EPOCH"


class TooFewInSync(RayMQError):
    """A broker group has fewer replicas in sync than required; nothing was written."""

    retriable = True
    remedy = "bring the other replicas back; a smaller min_in_sync makes acknowledged messages less safe"


class BrokerGroupNotFound(NotFoundError):
    """The register has no such broker group, or no replica of it has ever started."""

    wire_code = "CONTROLLER_BROKER_METADATA_NOT_EXIST"


class ElectionFailed(RayMQError):
    """No replica, or not the designated one, may become a group's master now.

    The message says why, and which replica is master.
    """

    retriable = True
    wire_code = "CONTROLLER_ELECT_MASTER_FAILED"


class SequenceGap(RayMQError):
    """An idempotent producer's batch does not follow the last one in the broker.

    Nothing was stored.
    """

    retriable = True


class ProtocolError(RayMQError):
    """The peer violated the protocol, or answered with a code that has no error class."""


class VersionMismatch(ProtocolError):
    """The peer runs another RayMQ, and only one of the two supports the request.

    Nothing was done.

    Attributes:
        peer: the address of the peer.
        theirs, ours: the oldest and the newest version of RayMQ's own protocol that each side speaks.
        release: the version of the peer's RayMQ; empty if it is not reported.
    """

    wire_code = "VERSION_NOT_SUPPORTED"

    def __init__(
        self,
        peer: str,
        theirs_oldest: int,
        theirs_newest: int,
        ours_oldest: int,
        ours_newest: int,
        release: str = "",
        request: str = "",
    ) -> None:
        older = "that server" if theirs_newest < ours_newest else "this program"
        name = f"{peer} (RayMQ {release})" if release else peer
        details = f": {request.strip()}" if request else ""
        super().__init__(
            f"{name} speaks versions {theirs_oldest} to {theirs_newest} of RayMQ's protocol, "
            f"this side {ours_oldest} to {ours_newest}{details}",
            remedy=f"upgrade the RayMQ of {older}, or use this one with servers of its own version",
        )
        self.peer = peer
        self.theirs = (theirs_oldest, theirs_newest)
        self.ours = (ours_oldest, ours_newest)
        self.release = release


class WorkFailed(RayMQError):
    """Some work of a consumer fails repeatedly with an unexpected error.

    See `.work`, `.reason` and `.in_a_row`.
    """

    def __init__(self, work: str, reason: str, in_a_row: int) -> None:
        super().__init__(f"{work} failed {in_a_row} times in a row: {reason}")
        self.work = work
        self.reason = reason
        self.in_a_row = in_a_row
