"""Pull from one queue, with RocketMQ's four results and their offsets.

No I/O except the store's memory maps.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.broker.core.reading.filtered_reader import read_filtered
from raymq.actors.errors import OffsetOutOfRange, PermissionDenied, QueueNotFound
from raymq.actors.filter.fetch_spec import FetchSpec
from raymq.actors.protocol import PERM_READ
from raymq.storage.log.lease import Lease


class PullStatus(enum.Enum):
    """The status of a pull."""

    FOUND = "FOUND"
    #: The offset is the queue's end.
    NOTHING_NEW = "NOTHING_NEW"
    #: There were messages but none passed the filter; `next_offset` is after them.
    NOTHING_MATCHED = "NOTHING_MATCHED"
    #: The offset is outside of the queue, or an administrator reset it: continue at `next_offset`.
    OFFSET_MOVED = "OFFSET_MOVED"


@dataclass(frozen=True, slots=True)
class PullResult:
    """The result of a pull.

    `lease` has the records if the status is FOUND, else it is None. The code that writes the response releases it.
    """

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    lease: Lease | None = None


def pull(core: BrokerCore, group: str, want: FetchSpec, max_messages: int, max_bytes: int) -> PullResult:
    """Read one queue for a group, within both limits.

    At least one message is returned if there is one.

    Raises:
        TopicNotFound, QueueNotFound.
        PermissionDenied: the topic may not be read.
        StoreCorrupt: the record at the offset is damaged.
    """
    topic, queue_id, offset = want.topic, want.queue_id, want.offset
    if not core.topic(topic).perm & PERM_READ:
        raise PermissionDenied(f"the topic[{topic}] pulling message is forbidden")
    low, high = core.bounds(topic, queue_id)
    reset = core.offsets.take_reset(group, topic, queue_id)
    if reset is not None and reset != offset:
        return PullResult(PullStatus.OFFSET_MOVED, reset, low, high)
    try:
        lease = read_filtered(core.store, topic, queue_id, offset, max_messages, max_bytes, want.filter)
    except QueueNotFound:  # nothing was ever written to it
        status = PullStatus.NOTHING_NEW if offset == 0 else PullStatus.OFFSET_MOVED
        return PullResult(status, 0, 0, 0)
    except OffsetOutOfRange:
        valid_to = core.store.valid_at_open(topic, queue_id) if offset > high else None
        return PullResult(
            PullStatus.OFFSET_MOVED, low if offset < low else high if valid_to is None else valid_to, low, high
        )
    if len(lease):
        return PullResult(PullStatus.FOUND, lease.next_offset, low, high, lease)
    status = PullStatus.NOTHING_NEW if lease.next_offset == offset else PullStatus.NOTHING_MATCHED
    return PullResult(status, lease.next_offset, low, high)
