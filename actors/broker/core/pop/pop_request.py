"""Define a pop request and its result."""

from __future__ import annotations

from dataclasses import dataclass, field

from raymq.actors.broker.core.reading.filtered_reader import ScanBudget
from raymq.actors.filter.tag_expression import MATCH_ALL, MessageFilter
from raymq.storage.records.record import Buffer
from raymq.storage.tables.in_flight_messages import ExpiryReason


@dataclass(frozen=True, slots=True)
class PopRequest:
    """The request of a consumer for messages.

    Attributes:
        queue_ids: the queues to pop from.
        max_reconsume_times: a message that fails with this many reconsume times becomes a dead letter.
        wanted: the filter; other messages are skipped for good.
        from_end: a group that never committed begins after the existing messages, instead of before them.
        ordered: deliver nothing of a queue that has messages in flight.
        attempt_id: an ordered request that repeats a former one of this id gets the same messages again.
        ending: what the expiry of the deliveries means. TRIED: a failed try. UNSEEN: the delivery does not count before
            `SettleAction.RUN`. UNANSWERED: the calls of the listener begin at once.
    """

    group: str
    topic: str
    queue_ids: range
    max_messages: int
    max_bytes: int
    invisible_ms: int
    max_reconsume_times: int
    wanted: MessageFilter = MATCH_ALL
    from_end: bool = False
    ordered: bool = False
    attempt_id: str | None = None
    ending: ExpiryReason = ExpiryReason.TRIED


@dataclass(slots=True)
class PoppedRecords:
    """Records of one queue.

    `pieces` are the bytes of the records. `reconsume_times` has the value in the record of each of `offsets`.
    `suspects` are the offsets of messages whose consumers ended without an answer: twice, or once before the last try.
    """

    offsets: list[int] = field(default_factory=list)
    reconsume_times: list[int] = field(default_factory=list)
    pieces: list[Buffer] = field(default_factory=list)
    size_bytes: int = 0
    suspects: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PopQueueResult:
    """The records that a pop took from one queue, in `taken`."""

    queue_id: int
    taken: PoppedRecords


@dataclass(slots=True)
class PopResult:
    """The result of a pop.

    Attributes:
        remaining: about how many more messages the queues have.
        has_more: the pop has skipped as many filtered messages as one call may; matching ones may follow.
        scan: how many more messages the pop may examine.
    """

    pop_time_ms: int
    queues: list[PopQueueResult] = field(default_factory=list)
    remaining: int = 0
    has_more: bool = False
    scan: ScanBudget = field(default_factory=ScanBudget)
