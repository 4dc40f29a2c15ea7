"""The results of calls: plain frozen values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from raymq.actors.protocol import BrokerInfo, MessageQueue, SendStatus
from raymq.client.consumer_health import SetAside
from raymq.client.message import ReceivedMessage

_T = TypeVar("_T")


class FoundMessages(list[_T]):
    """A list of the messages that a search has found.

    `not_asked` are the names of the brokers that have the topic and were away: their messages are missing from the
    list. `unreadable` are messages that are damaged in their broker's files, for searches that read record by record.
    `truncated` is True if there are more messages than the limit of the call.
    """

    not_asked: tuple[str, ...] = ()
    unreadable: tuple[SetAside, ...] = ()
    truncated: bool = False

    def __init__(
        self,
        found: Iterable[_T] = (),
        not_asked: Iterable[str] = (),
        unreadable: Iterable[SetAside] = (),
        *,
        truncated: bool = False,
    ) -> None:
        super().__init__(found)
        self.truncated = truncated
        self.not_asked = tuple(not_asked)
        self.unreadable = tuple(unreadable)


class SendResult(NamedTuple):
    """The position of a sent message.

    The `queue` of a delayed message is the queue of the schedule topic in which it waits.
    """

    status: SendStatus
    message_id: str
    unique_key: str
    queue: MessageQueue
    queue_offset: int
    recall_handle: str | None = None
    transaction_id: str | None = None


class PartResult(SendResult):
    """The position of a part of a table, in a failed send's error.

    The send failed after this part was stored. It is the position of the part's first row, and `rows` is the number of
    its rows.
    """

    rows: int = 1


@dataclass(frozen=True, slots=True)
class TableResult:
    """The positions of a sent table: `parts` are (queue, first offset, rows)."""

    rows: int
    parts: list[tuple[MessageQueue, int, int]]


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The settings of a topic.

    Attributes:
        queues: on each broker, to write to.
        permission: a sum of 4 (read) and 2 (write).
        message_type: the type of its messages, such as "FIFO"; None if it is not restricted.
        attributes: RocketMQ's topic attributes.
    """

    queues: int
    permission: int
    ordered: bool
    message_type: str | None
    attributes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class QueueStats:
    """The offsets of a queue and its last store time.

    `max_offset` is the offset of the next message. Times are seconds since 1970, 0.0 where the queue is empty.
    """

    min_offset: int
    max_offset: int
    last_store_timestamp: float


@dataclass(frozen=True, slots=True)
class TopicRates:
    """The rates of a topic on one broker: means of the last minute, 0.0 after the broker's restart.

    Attributes:
        messages_per_second, bytes_per_second: stored; None if the broker does not answer.
        delivered_per_second: the messages that each group received.
    """

    broker: str
    messages_per_second: float | None
    bytes_per_second: float | None
    delivered_per_second: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class BrokerRoute:
    """One broker of a topic's route.

    Attributes:
        address: of its master; None while the broker is away.
        permission: a sum of 4 (read) and 2 (write).
        replicas: the addresses of the group's other members.
    """

    broker: str
    address: str | None
    read_queues: int
    write_queues: int
    permission: int
    replicas: list[str]


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """The progress of a group in a queue.

    A value that is not known (never committed, broker unreachable) is None, never 0.

    Attributes:
        owner: the client id of the member that fetched from the queue last; None if no current member has.
        subscribed: whether the group's members subscribe to the queue's topic; None where no member is connected.
        in_flight: the number of messages that were given out and are not finished. With a tag filter the messages
            between them count, too. None where no member is connected and nothing is lent: pull consumers are no
            members, and how far they have read is not known.
        ready: the number of messages that could be given out now, to a new member if there is none; in a queue of a
            simple consumer or of a push consumer with `mode="pop"` these are neither leased nor waiting for a retry.
        oldest_unfinished_age: seconds since the oldest message was stored that the group has not finished; 0.0 if it
            has finished all.
    """

    committed_offset: int | None
    max_offset: int | None
    lag: int | None
    owner: str | None
    subscribed: bool | None = None
    in_flight: int | None = None
    ready: int | None = None
    oldest_unfinished_age: float | None = None


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that waits for the decision of its producer.

    Attributes:
        message: the message, with its real topic; its `message_id` names the transaction.
        producer_group: the group whose producers are asked.
        age: seconds since the message was made.
        checks: how often the producers were asked so far.
        state: "open", or "given up" if they were asked too often or it was too old.
    """

    message: ReceivedMessage
    producer_group: str
    age: float
    checks: int
    state: str


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """The members and the lag of one consumer group.

    Attributes:
        members: the number of clients that are in it now.
        lag: the number of messages after its committed offsets; without topics that its members do not subscribe to any
            more. None where nothing is known.
    """

    group: str
    members: int
    lag: int | None


@dataclass(frozen=True, slots=True)
class GroupMemberInfo:
    """A connected member of a consumer group.

    Attributes:
        address: of its connection to a broker.
        queues: those that it fetched from last; empty for members that pop.
        paused, calls, longest_call: whether its program has paused it, the number of running listener calls, and the
            seconds of the longest of them; each None if the member does not report it.
    """

    client_id: str
    address: str
    language: str
    queues: list[MessageQueue]
    paused: bool | None
    calls: int | None
    longest_call: float | None


@dataclass(frozen=True, slots=True)
class GroupDeletion:
    """The counts of what was deleted with a consumer group, or would be.

    Attributes:
        offsets: queues in which it had committed.
        in_flight: in-flight messages of its simple consumers.
        retries: messages that waited for their retry.
        dead_letters: its dead letters; they are deleted only on request.
        deleted: False: nothing was changed.
    """

    group: str
    offsets: int
    in_flight: int
    retries: int
    dead_letters: int
    deleted: bool


class GroupProgress(dict[MessageQueue, QueueProgress]):
    """The progress of a group by queue.

    Attributes:
        missing_topics: topics that members subscribe to and that do not exist, sorted; they have no queues.
    """

    def __init__(self, table: Mapping[MessageQueue, QueueProgress], missing_topics: Iterable[str] = ()) -> None:
        super().__init__(table)
        self.missing_topics = sorted(missing_topics)


@dataclass(frozen=True, slots=True)
class NameServerInfo:
    """A name server; `pid` is None if it does not answer."""

    address: str
    pid: int | None


@dataclass(frozen=True, slots=True)
class SchedulerInfo:
    """The scheduler as the brokers report it; `lateness` is in seconds.

    Both values are None if no broker has received a call of the scheduler.
    """

    pid: int | None
    lateness: float | None


@dataclass(frozen=True, slots=True)
class KeeperInfo:
    """A keeper: a server of the register that stores each broker group's master.

    Attributes:
        id: its number, from 1 on.
        pid: None if it does not answer.
        voter: whether it is one of the voters, whose majority decides; None if no keeper answers that could tell.
        state: "running"; "quiet": it has just started, and votes for no change of a master until leases from before its
            restart have expired; "empty", "damaged", "older copy": its file is missing, damaged, or older than what it
            has reported, and it has no vote; "failed": its disk has failed; "unreachable".
    """

    id: int
    address: str
    pid: int | None
    voter: bool | None
    state: str


@dataclass(frozen=True, slots=True)
class Election:
    """The result of a requested election. Replicas are counted from 0.

    Attributes:
        replica: the master; None if there is none.
        epoch: how many elections the broker group has had.
        in_sync: the replicas that have everything that is acknowledged.
        changed: whether there was an election; there is none if the wanted master serves already.
        warning: the messages that may be lost by it; empty: none.
    """

    broker: str
    replica: int | None
    epoch: int
    in_sync: list[int]
    changed: bool = False
    warning: str = ""


@dataclass(frozen=True, slots=True)
class BrokerChange:
    """The result of a change of brokers.

    Attributes:
        brokers: the changed brokers, by the names of their actors and folders.
        steps: the steps that were carried out, in words; those of a dry run were not.
        dry_run: nothing was changed.
        kept: directories that are no longer used and were not removed, as "machine:path".
    """

    brokers: list[str]
    steps: list[str]
    dry_run: bool = False
    kept: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """The current state of the cluster.

    `keepers` is empty if no broker group has replicas.
    """

    brokers: list[BrokerInfo]
    name_servers: list[NameServerInfo]
    scheduler: SchedulerInfo
    keepers: list[KeeperInfo] = field(default_factory=list)

    @property
    def metrics(self) -> list[str]:
        """Return the addresses of the brokers' metrics for Prometheus, "host:port"; empty if they are off."""
        return [each.metrics for each in self.brokers if each.metrics]
