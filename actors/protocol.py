"""Values that cross process boundaries, shared by clients and servers.

All are frozen and picklable, and have no behaviour beyond conversion to and from plain data.
"""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

PERM_READ = 4
PERM_WRITE = 2
#: The permission of a topic that serves as the template of auto-created topics.
PERM_INHERIT = 1
MASTER_ID = 0
#: The interval of the brokers' heartbeats to name servers.
HEARTBEAT_SECONDS = 1.0
#: Brokers drop a client this long after its last connection closed, unless it has reconnected.
SESSION_GRACE_SECONDS = 2.0
#: A group with a commit within this time counts as in use, because pull consumers and Spark are not members.
IDLE_SECONDS = 60.0
#: A queue's lock lasts this long from its last request.
LEASE_SECONDS = 60.0
#: A broker that has left the routes is expected back for this long, and its sharding keys wait for it.
RECENTLY_LEFT_SECONDS = 300.0
#: The default limit of an append's wait: an append that may have waited longer is refused.
APPEND_WAIT_MS = 200
#: The delay level that makes a failed message a dead letter at once.
STRAIGHT_TO_DLQ = -1


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue:
    """One ordered queue of a topic, identified by topic, broker name and queue id."""

    topic: str
    broker: str
    queue_id: int


class SendStatus(enum.Enum):
    """The status of a stored message; with all four it is in the master's log."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


class TransactionOutcome(enum.Enum):
    """The decision of a producer about its transaction."""

    #: Consumers get the message.
    COMMIT = "COMMIT"
    #: No consumer ever gets the message.
    ROLLBACK = "ROLLBACK"
    #: Not decided yet; the broker asks again later.
    UNKNOWN = "UNKNOWN"


class MessageType(enum.Enum):
    """The type of a topic's messages, RocketMQ's attribute `message.type`."""

    #: Neither delayed nor transactional.
    NORMAL = "NORMAL"
    #: As NORMAL; the messages of one sharding key are in order.
    FIFO = "FIFO"
    #: With a delay level or a delivery time.
    DELAY = "DELAY"
    #: Sent in transactions.
    TRANSACTION = "TRANSACTION"
    #: Of any type.
    MIXED = "MIXED"


#: The name of the topic attribute.
MESSAGE_TYPE = "message.type"


class RecallStatus(enum.Enum):
    """The result of recalling a timer message."""

    #: The message will never be delivered.
    WITHDRAWN = "WITHDRAWN"
    #: The message was delivered already.
    DELIVERED = "DELIVERED"
    #: The broker does not have the message, or no longer.
    UNKNOWN = "UNKNOWN"


class RedriveStatus(enum.Enum):
    """The result of sending a dead letter to its group again."""

    REDRIVEN = "redriven"
    ALREADY = "already"
    UNKNOWN = "unknown"


class SettleAction(enum.IntEnum):
    """What a consumer does with a delivery. The numbers are used on the wire."""

    #: Acknowledge the message.
    ACK = 0
    #: A listener call with the message begins or goes on: keep it invisible for so many milliseconds from now on.
    RUN = 1
    #: No listener call has begun yet, but one will: keep the message invisible for so many milliseconds from now on.
    HOLD = 2
    #: No listener call has begun: any member may receive the message at once, and this delivery does not count.
    RETURN = 3
    #: The listener failed: deliver again after a delay level's wait (0: by the ladder), or make it a dead letter (-1).
    RETRY = 4


class SettleOutcome(enum.IntEnum):
    """The result of settling a delivery. The numbers are used on the wire."""

    #: Nothing was done: the delivery had expired or was settled before, or the group's offset was reset.
    STALE = 0
    DONE = 1
    #: The message becomes a dead letter.
    DEAD = 2


class SettleResult(NamedTuple):
    """The result of settling a delivery.

    `delay_ms` is the wait before the next try of a failed message.
    """

    outcome: SettleOutcome
    delay_ms: int = 0


class Settlement(NamedTuple):
    """A request to settle one delivery: its position, its pop time, and the action.

    Position and pop time identify the delivery. `reason` says why the listener failed; if this was the last try, it
    becomes the dead letter's reason.
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
    """The state of a group on one broker.

    Attributes:
        exists: whether the broker has any state of the group, including its retry topic.
        members: client ids of its members, at most 100.
        since_commit: seconds since its last commit; None if there was none since the broker's start.
        offsets: the number of queues in which it has committed.
        in_flight: the number of messages that its pop consumers have received and not settled.
        retries: the number of messages that wait for their retry.
        dead_letters: the number of its dead letters, without deleted ones.
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
    """The number of queues of a topic on one broker, and their permissions."""

    broker: str
    read_queues: int
    write_queues: int
    perm: int = PERM_READ | PERM_WRITE


class RecentlyLeftQueues(NamedTuple):
    """A topic's queues on a broker that left the routes `seconds` ago."""

    data: QueueData
    seconds: float


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """The queues of a topic and the addresses of its brokers.

    `addresses` maps a broker's name to its master's "host:port". `body_limits` maps it to the longest body that the
    broker accepts, its `max_message_bytes`, if the broker has reported it. `away` are the brokers that had the topic
    and left the routes less than `RECENTLY_LEFT_SECONDS` ago.
    """

    topic: str
    queues: tuple[QueueData, ...]
    addresses: dict[str, str] = field(default_factory=dict)
    body_limits: dict[str, int] = field(default_factory=dict)
    away: tuple[RecentlyLeftQueues, ...] = ()

    def max_body_bytes(self, broker: str | None = None) -> int | None:
        """Return the longest body that `broker`, or each broker of the topic, accepts.

        Return None if no limit was reported.
        """
        return min(self.body_limits.values(), default=None) if broker is None else self.body_limits.get(broker)

    def readable(self) -> list[MessageQueue]:
        """Return all readable queues, sorted."""
        return sorted(
            MessageQueue(self.topic, data.broker, queue_id)
            for data in self.queues
            if data.perm & PERM_READ
            for queue_id in range(data.read_queues)
        )

    def writable(self) -> list[MessageQueue]:
        """Return all writable queues, sorted."""
        return sorted(
            MessageQueue(self.topic, data.broker, queue_id)
            for data in self.queues
            if data.perm & PERM_WRITE
            for queue_id in range(data.write_queues)
        )

    def readable_away(self) -> list[MessageQueue]:
        """Return the readable queues on brokers that have left the route, sorted."""
        return TopicRoute(self.topic, tuple(each.data for each in self.away)).readable()

    def writable_away(self) -> list[MessageQueue]:
        """Return all queues on brokers that have left and that were writable, sorted."""
        return TopicRoute(self.topic, tuple(each.data for each in self.away)).writable()

    def is_writable_on(self, broker: str) -> bool:
        """Return True unless the topic's permission on that broker forbids writing."""
        return all(data.perm & PERM_WRITE for data in self.queues if data.broker == broker)

    def forbids_write(self, queue: MessageQueue) -> bool:
        """Return True if the queue exists and only its topic's permission forbids writing."""
        return any(
            data.broker == queue.broker and not data.perm & PERM_WRITE and 0 <= queue.queue_id < data.write_queues
            for data in self.queues
        )


@dataclass(frozen=True, slots=True)
class ClusterView:
    """All registered brokers: name -> (cluster, {replica id: "host:port"}).

    `left` are the brokers that have left the routes lately: name -> "host:port", where they listened.
    """

    brokers: dict[str, tuple[str, dict[int, str]]]
    left: dict[str, str] = field(default_factory=dict)

    @property
    def masters(self) -> dict[str, str]:
        """Return the masters: broker name -> "host:port"."""
        return {name: replicas[MASTER_ID] for name, (_, replicas) in self.brokers.items() if MASTER_ID in replicas}


#: Numbers of some records: an array, or for a single record a tuple, which costs less to create.
Numbers = npt.NDArray[np.int32] | npt.NDArray[np.int64] | tuple[int, ...]


class RecordPositions(NamedTuple):  # like `SendOutcome` a tuple, which is the fastest to create
    """The positions of appended records, one entry each.

    `topic` is the schedule topic if the records are delayed.
    """

    topic: str
    queue_ids: Numbers
    queue_offsets: Numbers
    physical_offsets: Numbers


@dataclass(frozen=True, slots=True)
class DueReport:
    """A broker's report after delivering due messages.

    `delivered` is how many messages were delivered. `next_due_ms` is when the next one is due; None if none waits.
    `lateness_ms` is the largest lateness of this pass; 0 if none was delivered. `wait_ms` is the time until the next
    message is due, below 0 if the broker is behind; it does not depend on the caller's clock.
    """

    delivered: int
    next_due_ms: int | None
    lateness_ms: int
    wait_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Tls:
    """The files (PEM) of one side of a TLS connection, as picklable paths.

    Attributes:
        ca_file: the certificates that have signed the other side's certificate; None for the system's trusted ones.
        cert_file, key_file: the side's own certificate with its chain, and its key. A server needs them.
        client_auth: a server requires a certificate from every client, signed by `ca_file`.
        check_host: a client compares the server's address with its certificate.
    """

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    client_auth: bool = False
    check_host: bool = True


@dataclass(frozen=True, slots=True)
class Etcd:
    """The etcd cluster with a cluster's register, in place of keepers.

    Attributes:
        endpoints: the addresses of its servers, such as "http://10.0.0.1:2379".
        tls: how to check its servers and how to authenticate to them; None: the system's defaults.
    """

    endpoints: tuple[str, ...]
    tls: Tls | None = None


@dataclass(frozen=True, slots=True)
class NameServerSpec:
    """The arguments of a name-server actor; a restart gets the same ones.

    `arguments` are those of the cluster's start, kept so that a second start can be compared with the first, and
    `start_id` identifies that start. `cluster` is the name of the cluster.
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
    """The arguments of a broker actor; a restart gets the same ones.

    `store` has the fields of `raymq.storage.config.StoreConfig` that differ from their defaults. An append that may
    have waited for longer than `append_wait_ms` is refused with SYSTEM_BUSY. `keepers` is the location of the cluster's
    register: the set of keepers (`KeeperSet.to_json`), with their addresses at the cluster's start, or another location
    (`keeper.serving.register_location`); None if each group has one copy.

    If `replicas` is more than 1, `replica` is the index of this replica, from 0 on; its number in the register is 1
    more. `replication` and `min_in_sync` are the group's `ReplicationPolicy`. Of equal replicas the one with the lowest
    `priority` becomes master.

    `metrics` says where metrics are published: "ray", "prometheus" (at `metrics_host` and `metrics_port`), "both" or
    "off". `metrics_address` is that of the open port; the broker sets it.
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
    metrics: str = "off"
    metrics_host: str = "127.0.0.1"
    metrics_port: int = 0
    metrics_address: str = ""


@dataclass(frozen=True, slots=True)
class KeeperSpec:
    """The arguments of a keeper actor; a restart gets the same ones.

    `number` is its number in the set of keepers, from 1 on. Its files are `<directory>/keeper-<number>.*`. Port 0 takes
    the port that it had before, or any free one.
    """

    number: int
    cluster: str
    directory: str
    host: str
    port: int = 0
    tls: Tls | None = None


@dataclass(frozen=True, slots=True)
class CoordinatorSpec:
    """The arguments of the coordinator actor; a restart gets the same ones.

    `keepers` is as in `BrokerSpec`. `groups` are the broker groups that should exist, and `replication` and
    `min_in_sync` their policy.
    """

    cluster: str
    keepers: dict[str, Any]
    groups: tuple[str, ...] = ()
    replication: str = "async"
    min_in_sync: int = 1
    tls: Tls | None = None


@dataclass(frozen=True, slots=True)
class SchedulerSpec:
    """The arguments of the scheduler actor."""

    namespace: str
    brokers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Corruption:
    """A place in a store whose bytes are corrupt."""

    file: str
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """The state that a broker reports.

    `lateness` is in seconds; `scheduler_pid` is None until a scheduler has called.

    `refusals` are the appends that the broker has refused since its start, by cause: "appends_under_way",
    "bytes_under_way", "age" and "page_cache" (answered with SYSTEM_BUSY), "disk_full", "no_descriptors", "disk_failed"
    (SERVICE_NOT_AVAILABLE), and for all others the name of the response code. "connections" are those that were closed
    because there were too many.

    In a group of several replicas, `replica` counts from 0, `epoch` is that of its master, `replicas` are all replicas
    of the group and `in_sync` those that are in sync. `confirmed_offset` is the offset up to which all of these have
    the log, `end_offset` the end of this replica's log, and `lag_bytes` its distance to the end of the master's log.
    They are None in a group of one copy, or if unknown.

    `version` is the version of the broker's RayMQ; empty if it is too old to report it, or if the broker is away.
    `metrics` is the address of its metrics, "host:port"; empty if it has none. `address` is empty for a broker that is
    away and whose address is not known any more: after `RECENTLY_LEFT_SECONDS`, or a restart of the name servers.
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
    metrics: str = ""
    replicas: list[int] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for a command's header."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> BrokerInfo:
        """Return the info from `as_dict`; fields of later versions are ignored."""
        known = {each.name: data[each.name] for each in fields(cls) if each.name in data}
        return cls(**{**known, "corruption": [Corruption(**item) for item in data["corruption"]]})
