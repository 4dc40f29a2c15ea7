"""The errors that need a cluster to happen, and how an error travels in an answer.

The tree's root and the errors of a store are in `raymq.storage.errors`; this module adds

    RayMQError
    +-- InvalidInput
    |   +-- MessageIllegal             a message cannot be stored as it is
    +-- SendError                      .attempts: what every try met
    |   +-- NotStored                  every try was refused by an answer or never reached a socket
    |   |   +-- BufferFull             the producer holds as many messages as it may
    |   +-- OutcomeUnknown (TimeoutError)   after one try the message may be stored
    |   +-- PartlyStored               of a batch or a table some is stored, some is not, and nothing is unknown
    +-- BrokerUnavailable              .broker; where it is neither of these two, nothing was sent
    |   +-- TopicUnavailable           no broker of the topic is there now
    |   +-- NotMaster                  the broker is a replica now; nothing was done
    |   +-- ConnectionLost             the connection broke before the answer
    |   +-- Timeout (TimeoutError)     the answer did not come in time
    +-- UnknownAttribute (InvalidInput)
    +-- BadSubscription  SubscriptionMismatch  ConsumerNotOnline  NotRecallable  ClientClosed  OffsetReset
    +-- WriteIncomplete                .transaction, .rows, .missing: a committed write of which rows are lost
    +-- FencedEpoch                    another broker is master, in a larger epoch
    +-- TooFewInSync                 a broker group has fewer replicas in sync than its policy wants; nothing was stored
    +-- BrokerGroupNotFound            the register knows no such group
    +-- ElectionFailed                 nobody, or not the wanted replica, may become master
    +-- PermissionDenied  ServerBusy  NothingToPop  SequenceGap  StaleHandle  WorkFailed
    +-- ProtocolError
        +-- VersionMismatch            the other side runs an older RayMQ, or a newer one; nothing was done
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
    "UnknownAttribute",
    "VersionMismatch",
    "WorkFailed",
    "WriteIncomplete",
    "WriteUnknown",
    "WrongType",
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


#: The text of an error shows so many tries; `.attempts` has them all.
_MOST_LINES = 8


class SendError(RayMQError):
    """A send failed; `.attempts` lists each try.

    `.results` of a batch has an entry per message, in order: a `SendResult`, or the `NotStored` or `OutcomeUnknown`
    of that message; of a table one per part, and an entry's `.rows` says how many rows it is about. What was never
    tried is NotStored without attempts. Of a single send it is empty.
    """

    results: Sequence[Any] = ()
    rows: int = 1

    def __init__(self, message: str, attempts: Sequence[Attempt] = ()) -> None:
        lines = [
            f"\n  try {number}: broker {a.broker or '-'} queue {'-' if a.queue is None else a.queue.queue_id}: "
            f"{a.code or 'no answer'}: {a.error} ({a.elapsed:.3f} s)"
            for number, a in enumerate(attempts, 1)
        ]
        if len(lines) > _MOST_LINES:
            lines[_MOST_LINES // 2 : -_MOST_LINES // 2] = [f"\n  ... {len(lines) - _MOST_LINES} more ..."]
        super().__init__(message + "".join(lines))
        self.attempts = list(attempts)
        self.code = next((a.code for a in reversed(self.attempts) if a.code), None)

    @property
    def not_stored(self) -> list[int]:
        """The places in `.results` of what is surely not stored, nor kept by an outbox: send that again."""
        return [place for place, entry in enumerate(self.results) if isinstance(entry, NotStored) and not entry.kept]

    @property
    def unknown(self) -> list[int]:
        """The places in `.results` of what may be stored, and is not kept by an outbox."""
        return [
            place for place, entry in enumerate(self.results) if isinstance(entry, OutcomeUnknown) and not entry.kept
        ]


class MessageIllegal(InvalidInput):
    """A message, not a name, breaks a rule: its body, its properties, its flags, how it is packed."""

    wire_code = "MESSAGE_ILLEGAL"


class NotStored(SendError):
    """Surely not stored: every try was refused by a broker's answer or never reached a socket."""

    retriable = True


class PartlyStored(SendError):
    """Of a batch or a table some messages are stored and some are surely not: `.results` says which."""

    remedy = "send again what is not stored: error.not_stored lists the places in .results"


class BufferFull(NotStored):
    """A producer that gathers messages holds as many as it may; the message was not taken."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message)


class OutcomeUnknown(SendError, TimeoutError):
    """A try got no answer, or the broker's disk failed under it: the message may or may not be stored.

    `.transaction` names the write that this is about; None: it is about messages. A write is not to be repeated before
    it is known what has become of it. `.committed` says that it surely is committed, and not all of it visible yet.
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
    """A write is committed, and some of its rows are not there: what was staged of them is missing or damaged.

    `.transaction` names the write; `.rows` of its rows are there, each once, or come to be there by themselves;
    `.missing` rows are not, and `.reasons` says why, by broker. What is there is visible, so that to write all of it
    again doubles it.
    """

    def __init__(self, transaction: str, rows: int, missing: int, reasons: Mapping[str, str]) -> None:
        told = "".join(f"\n  {broker}: {reason}" for broker, reason in reasons.items())
        super().__init__(
            f"the write {transaction} is committed, and {missing} of its {rows + missing} rows are not there;"
            f" {rows} are: do not repeat it as a whole{told}"
        )
        self.transaction = transaction
        self.rows = rows
        self.missing = missing
        self.reasons = dict(reasons)


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


class TopicUnavailable(BrokerUnavailable):
    """No broker of the topic is there now, though it was lately, or no broker at all, so that nobody can say.

    `.broker` names those that are away. To RocketMQ's clients it is what "no such topic" is.

    Args:
        words: what it says instead of "topic ... is away", for RocketMQ's clients.
    """

    wire_code = "TOPIC_NOT_EXIST"

    def __init__(self, topic: str, brokers: Sequence[str], words: str = "") -> None:
        self.broker = ", ".join(brokers) or "cluster"
        away = f"{self.broker} had it and left the routes" if brokers else "no broker is registered"
        RayMQError.__init__(self, f"{words or f'topic {topic} is away'}: {away}", remedy=WHO_IS_THERE)


def no_route_to(topic: str) -> str:
    """RocketMQ's words, for its clients."""
    return f"No topic route info in name server for the topic: {topic}"


# -- what is not there: one text per cause, with its remedy in Python's words; the command line translates it ---------

#: The remedy where a broker is missing.
WHO_IS_THERE = "Admin.cluster_info() lists the brokers there are"
#: The remedy where nobody answers at the addresses of the name servers.
NOBODY_ANSWERS = "cluster.start() starts a cluster; name_servers= names those of another one"


def topic_not_found(topic: str, broker: str = "", *, more: str = "") -> TopicNotFound:
    """Return the error of a topic that does not exist (on `broker`).

    Args:
        more: what can be done besides creating it.
    """
    create = f'create it: Admin.create_topic("{topic}")' if not is_system_topic(topic) else ""
    remedy = "; ".join(filter(None, (create, more)))
    return TopicNotFound(f"topic {topic} does not exist" + (f" on {broker}" if broker else ""), remedy=remedy)


def group_not_found(group: str, broker: str = "") -> GroupNotFound:
    """Return the error of a consumer group that does not exist (on `broker`)."""
    return GroupNotFound(
        f"consumer group {group} does not exist" + (f" on {broker}" if broker else ""),
        remedy="a group is made by its first consumer; Admin.groups() lists those there are",
    )


def queue_not_found(queue: MessageQueue) -> QueueNotFound:
    """Return the error of a queue that its topic does not have."""
    return QueueNotFound(
        f"topic {queue.topic} has no queue {queue.queue_id} on {queue.broker}",
        remedy=f'Admin.topic_stats("{queue.topic}") lists its queues',
    )


def broker_not_found(broker: str, where: str) -> BrokerGroupNotFound:
    """Return the error of a broker that is not `where` it was looked for."""
    return BrokerGroupNotFound(f"there is no broker {broker} in {where}", remedy=WHO_IS_THERE)


class NotMaster(BrokerUnavailable):
    """The broker is a replica now: nothing was done. Its group has, or is about to have, another master."""


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
    """A member's subscription differs from its group's; both are named.

    `.in_force` is the group's `subscription_version`, where this member has a lower one; else None.
    """

    wire_code = "SUBSCRIPTION_PARSE_FAILED"
    in_force: int | None = None


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


class FencedEpoch(RayMQError):
    """A broker says that it is its group's master, and another one is, or was, in a larger epoch."""

    wire_code = "CONTROLLER_FENCED_MASTER_EPOCH"


class TooFewInSync(RayMQError):
    """A broker group has fewer replicas in sync than it has to have: nothing was written."""

    retriable = True
    remedy = "bring the other replicas back; with a smaller min_in_sync less is promised of what is acknowledged"


class BrokerGroupNotFound(NotFoundError):
    """The register knows no such broker group, or no replica of it has ever started."""

    wire_code = "CONTROLLER_BROKER_METADATA_NOT_EXIST"


class ElectionFailed(RayMQError):
    """Nobody may become a group's master now, or not the wanted replica; the message says why, and who is master."""

    retriable = True
    wire_code = "CONTROLLER_ELECT_MASTER_FAILED"


class SequenceGap(RayMQError):
    """An idempotent producer's batch is not the one that follows what the broker has of it; nothing was stored."""

    retriable = True


class ProtocolError(RayMQError):
    """The peer sent what the protocol does not allow, or answered with a code that has no class of its own."""


class VersionMismatch(ProtocolError):
    """A peer runs another RayMQ, and what is wanted of it only one of the two knows; nothing was done.

    Attributes:
        peer: its address.
        theirs, ours: the oldest and the newest version of RayMQ's own protocol that each side speaks.
        release: the version of its RayMQ; empty where that is not told.
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
        wanted: str = "",
    ) -> None:
        older = "that server" if theirs_newest < ours_newest else "this program"
        who = f"{peer} (RayMQ {release})" if release else peer
        told = f": {wanted.strip()}" if wanted else ""
        super().__init__(
            f"{who} speaks versions {theirs_oldest} to {theirs_newest} of RayMQ's protocol, "
            f"this side {ours_oldest} to {ours_newest}{told}",
            remedy=f"upgrade the RayMQ of {older}, or use this one with servers of its own version",
        )
        self.peer = peer
        self.theirs = (theirs_oldest, theirs_newest)
        self.ours = (ours_oldest, ours_newest)
        self.release = release


class WorkFailed(RayMQError):
    """Some work of a consumer fails again and again with what nobody expected: `.work`, `.reason`, `.in_a_row`."""

    def __init__(self, work: str, reason: str, in_a_row: int) -> None:
        super().__init__(f"{work} failed {in_a_row} times in a row: {reason}")
        self.work = work
        self.reason = reason
        self.in_a_row = in_a_row
