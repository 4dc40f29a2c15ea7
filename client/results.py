"""What calls answer: plain frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from raymq.actors.protocol import BrokerInfo, MessageQueue, SendStatus


class SendResult(NamedTuple):
    """Where a sent message lies. A delayed one's `queue` is the schedule topic's, where it waits."""

    status: SendStatus
    message_id: str
    unique_key: str
    queue: MessageQueue
    queue_offset: int
    recall_handle: str | None = None
    transaction_id: str | None = None


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
    """

    committed_offset: int | None
    max_offset: int | None
    lag: int | None
    owner: str | None


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
class ClusterInfo:
    """The cluster as it answers now."""

    brokers: list[BrokerInfo]
    name_servers: list[NameServerInfo]
    scheduler: SchedulerInfo
