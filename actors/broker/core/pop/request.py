"""What a pop asks for, and what it gives."""

from __future__ import annotations

from dataclasses import dataclass, field

from raymq.actors.broker.core.reading.filtered_reading import Scan
from raymq.actors.filter.subscription import EVERYTHING, Filter
from raymq.storage.records.record import Buffer
from raymq.storage.tables.in_flight import Ending


@dataclass(frozen=True, slots=True)
class PopRequest:
    """What a consumer asks for.

    Attributes:
        queue_ids: where from.
        max_reconsume_times: what is delivered now and fails goes to the dead letters if it came again so often.
        wanted: only messages that pass it. Others are passed over for good.
        from_end: a group that never committed begins behind what is there, instead of before it.
        ordered: nothing of a queue while something of it is out.
        attempt_id: an ordered request that repeats a former one of this id gets what that one got.
        ending: what it means when the time of the deliveries is over: a failed try; with UNSEEN it does not count
            before `SettleAction.RUN`; with UNANSWERED calls begin with the messages at once.
    """

    group: str
    topic: str
    queue_ids: range
    max_messages: int
    max_bytes: int
    invisible_ms: int
    max_reconsume_times: int
    wanted: Filter = EVERYTHING
    from_end: bool = False
    ordered: bool = False
    attempt_id: str | None = None
    ending: Ending = Ending.TRIED


@dataclass(slots=True)
class Taken:
    """Records of one queue.

    `pieces` are their bytes; `reconsume_times` is what each of `offsets` says there. Those of `suspects` were
    with consumers that ended without an answer: twice, or once before their last try.
    """

    offsets: list[int] = field(default_factory=list)
    reconsume_times: list[int] = field(default_factory=list)
    pieces: list[Buffer] = field(default_factory=list)
    size_bytes: int = 0
    suspects: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PoppedQueue:
    """What one queue gave: records in `taken`."""

    queue_id: int
    taken: Taken


@dataclass(slots=True)
class Popped:
    """What a pop gave.

    Attributes:
        rest: how many messages the queues have besides, about.
        unseen: it has passed over as many unwanted messages as one call does; there may be wanted ones behind.
        scan: how many of them it may yet look at.
    """

    pop_time_ms: int
    queues: list[PoppedQueue] = field(default_factory=list)
    rest: int = 0
    unseen: bool = False
    scan: Scan = field(default_factory=Scan)
