"""Hide the records of a commit from readers until all of them are appended.

For every reader, a queue with a read barrier ends where it stood when the barrier was set; records that others append
meanwhile are hidden too. Several owners may block one queue: its records become visible when the last owner has removed
its barrier, because before that only a part of the others' records may exist.

A barrier belongs to a queue, not to the name of a topic: a topic that is deleted and recreated has queues without a
barrier. The deleted topic's records, which stay in the log, remain hidden by the old barrier from searches by id or
key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from raymq.storage.log.consume_queue import ConsumeQueue
from raymq.storage.log.dispatch import Dispatcher

TopicQueue = tuple[str, int]


@dataclass(slots=True, eq=False)
class _QueueBarrier:
    """The barrier of one queue; `queue` is None if it was deleted before the opening.

    Attributes:
        begin: the first offset that the barrier hides.
    """

    queue: ConsumeQueue | None
    begin: int
    owners: set[str] = field(default_factory=set)


class ReadBarrier:
    """The read barriers of a store's queues, which a restart of the process removes.

    They belong to the store's writer.

    Attributes:
        is_active: whether any queue has a barrier.
    """

    def __init__(self, dispatcher: Dispatcher, deleted_topics: Mapping[str, int]) -> None:
        """Start without barriers.

        `deleted_topics` holds the log's end at each topic's last deletion.
        """
        self._dispatcher = dispatcher
        self._deleted_topics = deleted_topics
        #: All barriers for a topic and queue id; there may be several if the topic was deleted and recreated.
        self._barriers: dict[TopicQueue, list[_QueueBarrier]] = {}
        self.is_active = False

    def block(
        self, owner: str, ends: Mapping[TopicQueue, int | None], *, with_room: bool = True
    ) -> dict[TopicQueue, int]:
        """End the queues at these offsets for readers, and return where each one ends.

        None as an offset stands for the queue's present end. A shorter queue ends at its own end, and a queue that
        already has a barrier ends at the lower of both. A queue that was never written is created empty: otherwise its
        first records would be visible, and a later call would hide them.

        Args:
            with_room: make sure that entries can be written now. A start writes none and does not need it.

        Raises:
            StoreFull, StoreFailed: there is no room for entries; some of the barriers may be set.
        """
        ended: dict[TopicQueue, int] = {}
        for topic_queue, end in ends.items():
            queue = self._dispatcher.reserve(topic_queue) if with_room else self._dispatcher.open(*topic_queue)
            at = queue.max_offset if end is None else min(end, queue.max_offset)
            barrier = self._of(topic_queue, queue, at)
            barrier.owners.add(owner)
            barrier.begin = queue.barrier_offset = min(at, barrier.begin)
            ended[topic_queue] = barrier.begin
        return ended

    def block_deleted(self, owner: str, ends: Mapping[TopicQueue, int]) -> None:
        """Hide the messages behind these offsets in queues whose topics were deleted since.

        Queues for which `owner` has such a barrier are skipped.
        """
        for topic_queue, end in ends.items():
            if not any(
                owner in barrier.owners
                for barrier in self._barriers.get(topic_queue, ())
                if not self._is_current(topic_queue, barrier)
            ):
                barrier = self._of(topic_queue, None, end)
                barrier.owners.add(owner)
                barrier.begin = min(end, barrier.begin)

    def unblock(self, owner: str) -> list[TopicQueue]:
        """Remove the barriers of `owner`, whose records are all appended.

        Return the queues of which more messages are visible now.
        """
        lifted: list[TopicQueue] = []
        for topic_queue, barriers in list(self._barriers.items()):
            for barrier in [barrier for barrier in barriers if owner in barrier.owners]:
                barrier.owners.discard(owner)
                if not barrier.owners:
                    barriers.remove(barrier)
                    if barrier.queue is not None:
                        barrier.queue.barrier_offset = None
                        lifted.append(topic_queue)
            if not barriers:
                del self._barriers[topic_queue]
        self.is_active = bool(self._barriers)
        return lifted

    def is_blocked(self, topic_queue: TopicQueue) -> bool:
        """Return True if the queue has a barrier."""
        return any(self._is_current(topic_queue, barrier) for barrier in self._barriers.get(topic_queue, ()))

    def hides(self, topic_queue: TopicQueue, offset: int, physical_offset: int) -> bool:
        """Return True if a barrier hides the message with this queue and physical offset.

        The physical offset decides whether the message belongs to the present topic or to a deleted one.
        """
        is_now = physical_offset >= self._deleted_topics.get(topic_queue[0], 0)
        return any(
            offset >= barrier.begin and self._is_current(topic_queue, barrier) is is_now
            for barrier in self._barriers.get(topic_queue, ())
        )

    def _of(self, topic_queue: TopicQueue, queue: ConsumeQueue | None, begin: int) -> _QueueBarrier:
        """Return the barrier of a queue, adding one if there is none."""
        barriers = self._barriers.setdefault(topic_queue, [])
        self.is_active = True
        for barrier in barriers:
            if barrier.queue is queue:
                return barrier
        barriers.append(_QueueBarrier(queue, begin))
        return barriers[-1]

    def _is_current(self, topic_queue: TopicQueue, barrier: _QueueBarrier) -> bool:
        """Return True if the barrier belongs to an existing queue, not to a deleted one."""
        return barrier.queue is not None and self._dispatcher.queues.get(topic_queue) is barrier.queue
