"""The values that cross process borders: one module, so that both ends mean the same.

All are frozen, picklable and free of behaviour beyond conversion to and from plain data.
"""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

PERM_READ = 4
PERM_WRITE = 2
#: A topic that others are made after.
PERM_INHERIT = 1
MASTER_ID = 0
#: Brokers tell name servers this often that they live.
HEARTBEAT_SECONDS = 1.0
#: A client is forgotten by its brokers so long after its last connection closed, unless it has come back.
GRACE_SECONDS = 2.0
#: A group that has committed in so many seconds is in use: pull consumers and Spark are no members.
IDLE_SECONDS = 60.0
#: A queue's lock lasts so long from the last time that it was asked for.
LEASE_SECONDS = 60.0
#: A broker that has left the routes is expected back for so long: its sharding keys wait for it.
AWAY_SECONDS = 300.0
#: What may have waited longer to be looked at is refused, unless a cluster's configuration says otherwise.
APPEND_WAIT_MS = 200
#: The delay level that sends a failed message to the dead letters at once.
STRAIGHT_TO_DLQ = -1


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue:
    """One ordered topic_queue of a topic: named by topic, broker name and queue id."""

    topic: str
    broker: str
    queue_id: int


class SendStatus(enum.Enum):
    """What became of a stored message; in all four it is in the master's log."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


class RecallStatus(enum.Enum):
    """What became of a message that was to be delivered at a time of its own and is called back."""

    #: It will never be delivered.
    WITHDRAWN = "WITHDRAWN"
    #: It was delivered already.
    DELIVERED = "DELIVERED"
    #: The broker does not know it, or not any more.
    UNKNOWN = "UNKNOWN"


class Redriven(enum.Enum):
    """What was done with a dead letter that its group should get again."""

    REDRIVEN = "redriven"
    ALREADY = "already"
    UNKNOWN = "unknown"


class SettleAction(enum.IntEnum):
    """What a consumer wants to become of a delivery. The numbers are on the wire."""

    #: The message is done.
    ACK = 0
    #: A call with it begins, or goes on: lend it for so many milliseconds from now on.
    RUN = 1
    #: No call with it has begun, but one will: lend it for so many milliseconds from now on.
    HOLD = 2
    #: No call with it has begun: it is any member's at once, and this delivery does not count.
    RETURN = 3
    #: The listener failed: lend it again after a delay level's wait (0 the ladder), or make it a dead letter (-1).
    RETRY = 4


class SettleOutcome(enum.IntEnum):
    """What was done with a delivery. The numbers are on the wire."""

    #: Its time was over, or it was settled, or the group's offset was reset: nothing was done.
    STALE = 0
    DONE = 1
    #: The message becomes a dead letter.
    DEAD = 2


class SettleResult(NamedTuple):
    """What was done with a delivery, and for how long the message waits for its next try, if it failed."""

    outcome: SettleOutcome
    delay_ms: int = 0


class Settlement(NamedTuple):
    """What is to become of one delivery: a place and a pop time, which name it, and the action with its argument.

    `reason` says why the listener failed; it becomes the dead letter's reason where this was the last try.
    """

    topic: str
    queue_id: int
    offset: int
    pop_time_ms: int
    action: SettleAction
    argument: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class GroupContent:
    """What one broker has of a group.

    Attributes:
        exists: whether there is anything of it, its retry topic included.
        members: client ids of its members, at most 100.
        since_commit: seconds since its last commit; None if there was none since the broker's start.
        offsets: queues in which it has committed.
        in_flight: messages that are lent to its pop consumers.
        retries: messages that wait for their retry.
        dead_letters: its dead letters, deleted ones left out.
    """

    exists: bool
    members: list[str]
    since_commit: float | None
    offsets: int
    in_flight: int
    retries: int
    dead_letters: int


@dataclass(frozen=True, slots=True)
class QueueData:
    """How many queues a topic has on one broker, and what may be done with them."""

    broker: str
    read_queues: int
    write_queues: int
    perm: int = PERM_READ | PERM_WRITE


class AwayQueues(NamedTuple):
    """What a broker had of a topic that left the routes so many `seconds` ago."""

    data: QueueData
    seconds: float


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """Where a topic lives. `addresses` maps a broker's name to its master's "host:port".

    `body_limits` maps it to the longest body that the broker takes, its `max_message_bytes`, where it has said so.
    `away` are the brokers that had the topic and have left the routes for less than `AWAY_SECONDS`.
    """

    topic: str
    queues: tuple[QueueData, ...]
    addresses: dict[str, str] = field(default_factory=dict)
    body_limits: dict[str, int] = field(default_factory=dict)
    away: tuple[AwayQueues, ...] = ()

    def max_body_bytes(self, broker: str | None = None) -> int | None:
        """The longest body that `broker` takes, or each broker of the topic; None if nobody has said."""
        return min(self.body_limits.values(), default=None) if broker is None else self.body_limits.get(broker)

    def readable(self) -> list[MessageQueue]:
        """Every queue that may be read, sorted."""
        return sorted(
            MessageQueue(self.topic, data.broker, queue_id)
            for data in self.queues
            if data.perm & PERM_READ
            for queue_id in range(data.read_queues)
        )

    def writable(self) -> list[MessageQueue]:
        """Every queue that may be written, sorted."""
        return sorted(
            MessageQueue(self.topic, data.broker, queue_id)
            for data in self.queues
            if data.perm & PERM_WRITE
            for queue_id in range(data.write_queues)
        )

    def writable_away(self) -> list[MessageQueue]:
        """Every queue that could be written if its broker were not away, sorted."""
        return TopicRoute(self.topic, tuple(each.data for each in self.away)).writable()

    def lets_write(self, broker: str) -> bool:
        """Whether the topic's permission on that broker lets it be written, as far as that is known."""
        return all(data.perm & PERM_WRITE for data in self.queues if data.broker == broker)

    def forbids(self, queue: MessageQueue) -> bool:
        """Whether it could be written if its topic's permission there allowed it."""
        return any(
            data.broker == queue.broker and not data.perm & PERM_WRITE and 0 <= queue.queue_id < data.write_queues
            for data in self.queues
        )


@dataclass(frozen=True, slots=True)
class ClusterView:
    """All brokers that the name server knows: name -> (cluster, {replica id: "host:port"})."""

    brokers: dict[str, tuple[str, dict[int, str]]]

    @property
    def masters(self) -> dict[str, str]:
        """Broker name -> the master's "host:port"."""
        return {name: replicas[MASTER_ID] for name, (_, replicas) in self.brokers.items() if MASTER_ID in replicas}


#: Numbers of some records: an array, or for one record, of which many are sent, what costs less to make.
Numbers = npt.NDArray[np.int32] | npt.NDArray[np.int64] | tuple[int, ...]


class Placed(NamedTuple):  # as `Sent`, and nothing is made quicker
    """Where appended records lie, one entry each. Delayed ones lie in the schedule topic: `topic` says so."""

    topic: str
    queue_ids: Numbers
    queue_offsets: Numbers
    physical_offsets: Numbers


@dataclass(frozen=True, slots=True)
class DueReport:
    """A broker's answer to "deliver what is due": how many went out, when the next one is due, how late they were.

    `next_due_ms` is None where nothing waits; `lateness_ms` is the largest of this pass, 0 where nothing went out.
    `wait_ms` is how long it is until the next one, below 0 where the broker is behind: who asks may have another clock.
    """

    delivered: int
    next_due_ms: int | None
    lateness_ms: int
    wait_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Tls:
    """The files (PEM) by which one side of a socket proves who it is and checks the other. Paths, so that it travels.

    Attributes:
        ca_file: who signed the other side's certificate; None for whom the system trusts.
        cert_file, key_file: the own certificate with its chain, and its key. A server needs them.
        client_auth: a server asks every client for a certificate that `ca_file` signed.
        check_host: a client compares the server's address with its certificate.
    """

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    client_auth: bool = False
    check_host: bool = True


@dataclass(frozen=True, slots=True)
class Etcd:
    """The etcd cluster that a cluster's register is on, in the place of keepers.

    Attributes:
        endpoints: of its servers, such as "http://10.0.0.1:2379".
        tls: how its servers are checked, and how we prove who we are to them; None: as the system does it.
    """

    endpoints: tuple[str, ...]
    tls: Tls | None = None


@dataclass(frozen=True, slots=True)
class NameServerSpec:
    """What a name-server actor is started with; a restart gets the same.

    `arguments` are those of the cluster's start, kept so that a second start can be compared with the first, and
    `start_id` names that start. `cluster` is whose name server it is.
    """

    index: int
    directory: str
    host: str
    port: int
    arguments: dict[str, Any] = field(default_factory=dict)
    tls: Tls | None = None
    start_id: str = ""
    cluster: str = ""


@dataclass(frozen=True, slots=True)
class BrokerSpec:
    """What a broker actor is started with; a restart gets the same.

    `store` holds the fields of `raymq.storage.config.StoreConfig` that differ from their defaults. What may have waited
    for longer than `append_wait_ms` to be looked at is refused with SYSTEM_BUSY. `keepers` is the cluster's set of them
    (`KeeperSet.to_json`), with the addresses of when the cluster was started, or what says where the register is
    in their place (`keeper.serving.location`); None where each group has one copy.

    Where `replicas` is more than 1, `replica` is which of them this is, from 0 on; in the register it has the number
    that is 1 more. `replication` and `min_in_sync` are what the group promises (`ReplicationPolicy`). Of replicas that
    are equal the one with the lower `priority` becomes master.
    """

    name: str
    cluster: str
    directory: str
    host: str
    name_servers: tuple[str, ...]
    auto_create_topics: bool = False
    append_wait_ms: int = APPEND_WAIT_MS
    store: dict[str, Any] = field(default_factory=dict)
    tls: Tls | None = None
    keepers: dict[str, Any] | None = None
    replica: int = 0
    replicas: int = 1
    replication: str = "async"
    min_in_sync: int = 1
    priority: int = 100


@dataclass(frozen=True, slots=True)
class KeeperSpec:
    """What a keeper actor is started with; a restart gets the same.

    `number` is its place in the set of keepers, from 1 on. Its files are `<directory>/keeper-<number>.*`. Port 0 takes
    the one it had before, or any free one.
    """

    number: int
    cluster: str
    directory: str
    host: str
    port: int = 0
    tls: Tls | None = None


@dataclass(frozen=True, slots=True)
class CoordinatorSpec:
    """What the coordinator actor is started with; a restart gets the same.

    `keepers` is as in `BrokerSpec`.
    `groups` are the broker groups that are to be there, `replication` and `min_in_sync` what they promise.
    """

    cluster: str
    keepers: dict[str, Any]
    groups: tuple[str, ...] = ()
    replication: str = "async"
    min_in_sync: int = 1
    tls: Tls | None = None


@dataclass(frozen=True, slots=True)
class SchedulerSpec:
    """What the scheduler actor is started with."""

    namespace: str
    brokers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Corruption:
    """A place in a store where bytes are not what was written."""

    file: str
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """What a broker says of itself. `lateness` is in seconds; `scheduler_pid` is None until one has called.

    `refusals` are the appends that it refused since its start, by cause: "appends_under_way", "bytes_under_way", "age"
    and "page_cache" (answered with SYSTEM_BUSY), "disk_full", "no_descriptors", "disk_failed" (SERVICE_NOT_AVAILABLE),
    for all others the name of the response code. "connections" are those that were closed because there were too many.

    Of a group of several replicas: `replica` counts from 0; `epoch` is that of its master; `in_sync` are the replicas
    in sync; `confirmed_offset` is up to where all of them have the log; `end_offset` is where this one's ends, and
    `lag_bytes` how much that is behind the master's. They are None of a group of one copy, or where it is not known.

    `version` is that of the RayMQ that it runs; empty of one from before brokers told it, and of one that is away.
    """

    name: str
    replica: int
    role: str
    state: str
    epoch: int
    address: str
    pid: int
    node_id: str
    store: str
    disk_ratio: float
    corruption: list[Corruption] = field(default_factory=list)
    scheduler_pid: int | None = None
    lateness: float = 0.0
    refusals: dict[str, int] = field(default_factory=dict)
    in_sync: list[int] | None = None
    confirmed_offset: int | None = None
    end_offset: int | None = None
    lag_bytes: int | None = None
    version: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain data for a command's header."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> BrokerInfo:
        """The reverse of `as_dict`; what a later version has added is passed over."""
        known = {each.name: data[each.name] for each in fields(cls) if each.name in data}
        return cls(**{**known, "corruption": [Corruption(**item) for item in data["corruption"]]})
