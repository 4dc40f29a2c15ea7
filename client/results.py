"""What calls answer: plain frozen values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from raymq.actors.protocol import BrokerInfo, MessageQueue, SendStatus
from raymq.client.health import SetAside

_T = TypeVar("_T")


class FoundMessages(list[_T]):
    """The messages that a search has found.

    `not_asked` are the names of the brokers that have the topic and were away: what they have is not among these.
    `unreadable` are messages that are damaged in their broker's files, where they were looked for one by one.
    `truncated` is True where there are more than the limit of the call, which are left out.
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
    """Where a sent message lies. A delayed one's `queue` is the schedule topic's, where it waits."""

    status: SendStatus
    message_id: str
    unique_key: str
    queue: MessageQueue
    queue_offset: int
    recall_handle: str | None = None
    transaction_id: str | None = None


class PartResult(SendResult):
    """Where a part of a table lies, in the error of a send that failed half-way: its first row's place, and `rows`."""

    rows: int = 1


@dataclass(frozen=True, slots=True)
class TableResult:
    """Where a sent table lies: `parts` are (queue, first offset, rows)."""

    rows: int
    parts: list[tuple[MessageQueue, int, int]]


@dataclass(frozen=True, slots=True)
class QueueStats:
    """What a queue holds; `max_offset` is the next message's. Times are seconds, 0.0 where the queue is empty."""

    min_offset: int
    max_offset: int
    last_store_timestamp: float


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """How far a group is in a queue; None where it is not known (never committed, broker unreachable), never 0.

    `owner` is the client id of the member that fetched from the queue last, None where no member of now has.
    `subscribed` is whether the group's members subscribe to the queue's topic; None where no member is connected.
    """

    committed_offset: int | None
    max_offset: int | None
    lag: int | None
    owner: str | None
    subscribed: bool | None = None


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """One consumer group.

    Attributes:
        members: how many clients are in it now.
        lag: messages that it has not consumed, as far as it has committed; without topics that its members do not
            subscribe to any more. None where nothing is known.
    """

    group: str
    members: int
    lag: int | None


@dataclass(frozen=True, slots=True)
class GroupDeletion:
    """What was deleted with a consumer group, or would be.

    Attributes:
        offsets: queues in which it had committed.
        in_flight: messages that were lent to its simple consumers.
        retries: messages that waited for their retry.
        dead_letters: its dead letters; they stay unless they were asked for.
        deleted: False: nothing was changed.
    """

    group: str
    offsets: int
    in_flight: int
    retries: int
    dead_letters: int
    deleted: bool


class GroupProgress(dict[MessageQueue, QueueProgress]):
    """How far a group is in each queue.

    Attributes:
        missing_topics: topics that members subscribe to and that do not exist, sorted; they have no queues.
    """

    def __init__(self, table: Mapping[MessageQueue, QueueProgress], missing_topics: Iterable[str] = ()) -> None:
        super().__init__(table)
        self.missing_topics = sorted(missing_topics)


@dataclass(frozen=True, slots=True)
class NameServerInfo:
    """A name server; `pid` is None where it does not answer."""

    address: str
    pid: int | None


@dataclass(frozen=True, slots=True)
class SchedulerInfo:
    """The scheduler as the brokers know it; None where none has called. `lateness` in seconds."""

    pid: int | None
    lateness: float | None


@dataclass(frozen=True, slots=True)
class KeeperInfo:
    """A keeper of the register that says which replica of a broker group is the master.

    Attributes:
        id: its number, from 1 on.
        pid: None where it does not answer.
        voter: whether it is one of those whose majority decides; None where nobody answers who would know.
        state: "running"; "quiet": it has just started, and lets nobody take a master away; "empty", "damaged", "older
            copy": its file is gone, not what was written, or older than what it has told, and it has no voice;
            "failed": its disk has failed; "unreachable".
    """

    id: int
    address: str
    pid: int | None
    voter: bool | None
    state: str


@dataclass(frozen=True, slots=True)
class Election:
    """What an election by hand has brought about. Replicas are counted from 0.

    Attributes:
        replica: the master; None: there is none.
        epoch: how many elections the broker has had.
        in_sync: the replicas that have everything that is acknowledged.
        changed: whether there was an election; a master that serves, and is the wanted one, stays.
        warning: what may be lost by it; empty: nothing.
    """

    broker: str
    replica: int | None
    epoch: int
    in_sync: list[int]
    changed: bool = False
    warning: str = ""


@dataclass(frozen=True, slots=True)
class BrokerChange:
    """What was done to brokers.

    Attributes:
        brokers: who it was done to, by the names of their actors and folders.
        steps: what was done, in words; what would be, of a dry run.
        dry_run: nothing was changed.
        kept: directories that nobody uses any more, and nobody has removed, as "machine:path".
    """

    brokers: list[str]
    steps: list[str]
    dry_run: bool = False
    kept: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """The cluster as it answers now. `keepers` is empty where each broker group has one copy."""

    brokers: list[BrokerInfo]
    name_servers: list[NameServerInfo]
    scheduler: SchedulerInfo
    keepers: list[KeeperInfo] = field(default_factory=list)
