"""Messages that were delivered to consumers and not acknowledged, by group and queue."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import ClassVar, Final, NamedTuple

from raymq.storage.journal.journaled_table import Fields, JournaledTable
from raymq.storage.journal.recovery_bounds import RecoveryBounds

#: group, topic, queue id
GroupQueue = tuple[str, str, int]

#: A value of `reconsume_times` that older versions wrote: the first delivery was returned unseen.
UNCOUNTED: Final = -1
#: The limit of `reconsume_times`: a higher number is not a count.
_MAX_TIMES: Final = 1 << 30

#: The deliveries in one event of a snapshot.
_DELIVERIES_AT_ONCE: Final = 500
#: Kinds of events: delivered messages, acknowledged ones, all of a queue, and all from an offset on.
_DELIVERED: Final = "d"
_DONE: Final = "a"
_FORGOTTEN: Final = "f"
_CUT: Final = "n"


class ExpiryReason(enum.IntEnum):
    """The meaning of the end of a delivery's lease; the numbers are stored on disk."""

    #: The delivery counts as a failed try.
    TRIED = 0
    #: The message was prefetched or returned: no program has seen it, so the delivery does not count.
    UNSEEN = 1
    #: A listener's call had begun, and the consumer neither acknowledged the message nor renewed the lease.
    UNANSWERED = 2
    #: The listener failed, and the delay before the next try is over.
    FAILED = 3


class InFlightMessage(NamedTuple):
    """One delivered message that is not acknowledged.

    Attributes:
        pop_time_ms: identifies the delivery of the message; a receipt handle contains it.
        visible_at_ms: when the message becomes available to every member again.
        reconsume_times: how often it had been delivered before; UNCOUNTED: this delivery does not count, either.
        max_reconsume_times: at how many the consumer wants it to become a dead letter.
        lease_ms: the length of the lease, independent of the wall clock; 0 in what older versions wrote.
        ending: an `ExpiryReason`: the meaning of the end of the lease.
        unanswered: how many earlier deliveries were UNANSWERED when their lease ended.
        reason: why the listener failed on its last try; "" if it gave no reason.
    """

    pop_time_ms: int
    visible_at_ms: int
    reconsume_times: int
    max_reconsume_times: int
    lease_ms: int = 0
    ending: int = ExpiryReason.TRIED
    unanswered: int = 0
    reason: str = ""

    @property
    def next_reconsume_times(self) -> int:
        """Return the reconsume times of the next delivery."""
        if self.reconsume_times == UNCOUNTED:
            return 0
        return min(max(0, self.reconsume_times), _MAX_TIMES) + (self.ending != ExpiryReason.UNSEEN)

    @property
    def next_unanswered_count(self) -> int:
        """Return how many deliveries were UNANSWERED, including this one."""
        return self.unanswered + (self.ending == ExpiryReason.UNANSWERED)

    @property
    def is_final_delivery(self) -> bool:
        """Return True if the message becomes a dead letter when this lease ends."""
        return self.ending != ExpiryReason.UNSEEN and self.reconsume_times >= self.max_reconsume_times


@dataclass(slots=True)
class InFlightQueue:
    """A queue with messages in flight, by ascending offset.

    `next_offset` is the first offset that was never delivered.
    """

    next_offset: int
    deliveries: dict[int, InFlightMessage] = field(default_factory=dict)


class InFlightTable(JournaledTable):
    """The table of messages in flight.

    Events: ["d", group, topic, queue id, next offset, [[offset, *InFlightMessage], ...]], ["a", group, topic, queue id,
    [offset, ...]], ["f", group, topic, queue id], ["n", group, topic, queue id, next offset].

    Used by the store's thread. Each change survives a process crash when its call returns, and raises StoreFull or
    StoreFailed if the disk refuses it; then nothing has changed.
    """

    NUMBER: ClassVar = 6

    def __init__(self) -> None:
        self._queues: dict[GroupQueue, InFlightQueue] = {}

    @property
    def queues(self) -> Mapping[GroupQueue, InFlightQueue]:
        """Return all queues with messages in flight; callers must not change it."""
        return self._queues

    def deliver(self, queue: GroupQueue, next_offset: int, deliveries: Mapping[int, InFlightMessage]) -> InFlightQueue:
        """Record `deliveries` and return the queue, which then has messages in flight.

        New deliveries are in ascending order, with higher offsets than all that are in flight.
        """
        self.record(_DELIVERED, *queue, next_offset, [[offset, *delivery] for offset, delivery in deliveries.items()])
        return self._queues[queue]

    def acknowledge(self, queue: GroupQueue, offsets: Iterable[int]) -> None:
        """Remove the messages at these offsets as done."""
        self.record(_DONE, *queue, list(offsets))

    def forget(self, queue: GroupQueue) -> None:
        """Remove all in-flight messages of the queue."""
        if queue in self._queues:
            self.record(_FORGOTTEN, *queue)

    def apply(self, fields: Fields) -> None:
        """Apply an event; see the class."""
        kind, group, topic, queue_id, *rest = fields
        queue = group, topic, queue_id
        if kind == _DELIVERED:
            next_offset, packed = rest
            outstanding = self._queues.setdefault(queue, InFlightQueue(next_offset))
            outstanding.next_offset = next_offset
            for offset, *delivery in packed:
                outstanding.deliveries[offset] = InFlightMessage(*delivery)
        elif kind == _DONE:
            (offsets,) = rest
            known = self._queues.get(queue)
            if known is not None:  # a replay over a newer snapshot may lack the queue
                for offset in offsets:
                    known.deliveries.pop(offset, None)
                if not known.deliveries:
                    del self._queues[queue]
        elif kind == _FORGOTTEN:
            self._queues.pop(queue, None)
        elif kind == _CUT:
            self._cut(queue, *rest)
        else:
            raise ValueError(f"no kind of event: {kind!r:.20}")

    def apply_after_loss(self, fields: Fields) -> None:
        """Apply an event unless it is a delivery.

        The lost events may contain deliveries of earlier messages, which would be skipped otherwise. So these messages
        are delivered again. Acknowledgements stay valid.
        """
        if fields[0] != _DELIVERED:
            self.apply(fields)

    def snapshot(self) -> Iterator[Fields]:
        """Return events with all messages in flight."""
        for queue, known in self._queues.copy().items():
            next_offset, deliveries = known.next_offset, iter(known.deliveries.copy().items())
            chunk = list(islice(deliveries, _DELIVERIES_AT_ONCE))
            while chunk:
                following = list(islice(deliveries, _DELIVERIES_AT_ONCE))
                # An event's next offset must not skip deliveries of the following event, which may be damaged.
                behind = chunk[-1][0] + 1 if following else next_offset
                yield _DELIVERED, *queue, behind, [[offset, *each] for offset, each in chunk]
                chunk = following

    def clamp(self, bounds: RecoveryBounds) -> Iterator[Fields]:
        """Remove deliveries of lost messages, whose offsets other messages will get."""
        for queue, known in self._queues.items():
            limit = bounds.max_offset(*queue[1:])
            # A snapshot may be newer than the events that were replayed over it.
            known.deliveries = dict(sorted(known.deliveries.items()))
            if known.next_offset > limit:  # the offsets of all deliveries are below it
                yield _CUT, *queue, limit

    def forget_topic(self, topic: str, log_end: int) -> None:  # noqa: ARG002 - all messages are of the deleted topic
        """Remove all in-flight messages of a deleted topic."""
        for queue in [queue for queue in self._queues if queue[1] == topic]:
            del self._queues[queue]

    def _cut(self, queue: GroupQueue, limit: int) -> None:
        known = self._queues.get(queue)
        if known is None:
            return
        known.next_offset = min(known.next_offset, limit)
        known.deliveries = {offset: each for offset, each in known.deliveries.items() if offset < limit}
        if not known.deliveries:
            del self._queues[queue]
