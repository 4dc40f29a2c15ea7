"""Veils: what a commit appends to some queues is not seen before all of it is there.

Under a veil a queue ends, for every reader, where it stood when the veil came down on it; what others append meanwhile
is behind it, too. Several owners may veil one queue: it is seen again when the last of them has lifted its own, for in
between only a part of the others' may be there.

A veil is a queue's, not a topic's name's: a topic that is deleted and made again has queues without one. The records of
the deleted one, which stay in the log, are hidden by the old veil from whoever looks for them by id or key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from raymq.storage.log.consume_queue import ConsumeQueue
from raymq.storage.log.dispatch import Dispatcher

TopicQueue = tuple[str, int]


@dataclass(slots=True, eq=False)
class _Veil:
    """That of one queue; None: of one that was deleted before the store was opened.

    Attributes:
        begin: the first offset that it hides.
    """

    queue: ConsumeQueue | None
    begin: int
    owners: set[str] = field(default_factory=set)


class Veils:
    """The veils of a store's queues. Belongs to the store's writer; they do not outlive the process.

    Attributes:
        are_down: whether any queue has one.
    """

    def __init__(self, dispatcher: Dispatcher, deleted_topics: Mapping[str, int]) -> None:
        """`deleted_topics`: where the log ended when a topic was deleted last."""
        self._dispatcher = dispatcher
        self._deleted_topics = deleted_topics
        #: Of the queues of one name, of which the topic may have been made several times.
        self._veils: dict[TopicQueue, list[_Veil]] = {}
        self.are_down = False

    def lower(
        self, owner: str, ends: Mapping[TopicQueue, int | None], *, with_room: bool = True
    ) -> dict[TopicQueue, int]:
        """Have the queues end at these offsets for readers, None: where they stand; where each ends by that.

        A queue that is shorter ends where it does, one that has a veil where that has it end. A queue that was never
        written is there from now on, empty: else what comes first would be seen, and hidden by the next one who looks.

        Args:
            with_room: so that entries can be written now. A start, which writes none, does without.

        Raises:
            StoreFull, StoreFailed: there is no room for entries; some of the veils may be down.
        """
        ended: dict[TopicQueue, int] = {}
        for topic_queue, end in ends.items():
            queue = self._dispatcher.reserve(topic_queue) if with_room else self._dispatcher.open(*topic_queue)
            at = queue.max_offset if end is None else min(end, queue.max_offset)
            veil = self._of(topic_queue, queue, at)
            veil.owners.add(owner)
            veil.begin = queue.veiled_from = min(at, veil.begin)
            ended[topic_queue] = veil.begin
        return ended

    def lower_on_deleted(self, owner: str, ends: Mapping[TopicQueue, int]) -> None:
        """Hide what is behind these offsets of queues whose topics were deleted since, if that is not done already."""
        for topic_queue, end in ends.items():
            if not any(
                owner in veil.owners for veil in self._veils.get(topic_queue, ()) if not self._is_now(topic_queue, veil)
            ):
                veil = self._of(topic_queue, None, end)
                veil.owners.add(owner)
                veil.begin = min(end, veil.begin)

    def lift(self, owner: str) -> list[TopicQueue]:
        """All that `owner` appended is there; the queues of which more may be seen now."""
        lifted: list[TopicQueue] = []
        for topic_queue, veils in list(self._veils.items()):
            for veil in [veil for veil in veils if owner in veil.owners]:
                veil.owners.discard(owner)
                if not veil.owners:
                    veils.remove(veil)
                    if veil.queue is not None:
                        veil.queue.veiled_from = None
                        lifted.append(topic_queue)
            if not veils:
                del self._veils[topic_queue]
        self.are_down = bool(self._veils)
        return lifted

    def is_down(self, topic_queue: TopicQueue) -> bool:
        """Whether a queue has a veil."""
        return any(self._is_now(topic_queue, veil) for veil in self._veils.get(topic_queue, ()))

    def hides(self, topic_queue: TopicQueue, offset: int, physical_offset: int) -> bool:
        """Whether the message at that offset of a queue, and that place of the log, is behind its veil."""
        is_now = physical_offset >= self._deleted_topics.get(topic_queue[0], 0)
        return any(
            offset >= veil.begin and self._is_now(topic_queue, veil) is is_now
            for veil in self._veils.get(topic_queue, ())
        )

    def _of(self, topic_queue: TopicQueue, queue: ConsumeQueue | None, begin: int) -> _Veil:
        """The veil of a queue, which is there from now on."""
        veils = self._veils.setdefault(topic_queue, [])
        self.are_down = True
        for veil in veils:
            if veil.queue is queue:
                return veil
        veils.append(_Veil(queue, begin))
        return veils[-1]

    def _is_now(self, topic_queue: TopicQueue, veil: _Veil) -> bool:
        """Whether it is that of a queue that is there, and not of one that was deleted."""
        return veil.queue is not None and self._dispatcher.queues.get(topic_queue) is veil.queue
