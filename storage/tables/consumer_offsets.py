"""The committed offsets of consumer groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final

from raymq.storage.journal.journaled_table import Fields, JournaledTable
from raymq.storage.journal.recovery_bounds import RecoveryBounds

#: Kinds of events: a committed offset, a reset one, a reset that the group has applied, deleted offsets of a topic, and
#: all offsets of a topic.
_COMMITTED: Final = "c"
_RESET: Final = "r"
_APPLIED: Final = "h"
_DELETED: Final = "g"
_QUEUES: Final = "q"


class ConsumerOffsets(JournaledTable):
    """The next offset that each group will consume, by topic and queue.

    Events: ["c" or "r", group, topic, queue id, offset], ["h", group, topic, queue id], ["g", group, topic],
    ["q", group, topic, [[queue id, offset], ...]].

    Used by the store's thread. Each change survives a process crash when its call returns, and raises StoreFull or
    StoreFailed if the disk refuses it; then nothing has changed.
    """

    NUMBER: ClassVar = 4

    def __init__(self) -> None:
        #: By group, topic and queue id; callers must not change it.
        self.offsets: dict[str, dict[str, dict[int, int]]] = {}
        #: The queues with a pending reset: the group has not yet moved to the offset that was set.
        self.resets: set[tuple[str, str, int]] = set()

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set the offset, also to a lower one."""
        if self.get(group, topic, queue_id) != offset or self.is_reset_pending(group, topic, queue_id):
            self.record(_COMMITTED, group, topic, queue_id, offset)

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set the offset and mark the reset as pending for the group.

        The reset is pending until `clear_reset`, or until the offset is set again.
        """
        self.record(_RESET, group, topic, queue_id, offset)

    def is_reset_pending(self, group: str, topic: str, queue_id: int) -> bool:
        """Return True if the group has not yet applied a reset of its offset."""
        return bool(self.resets) and (group, topic, queue_id) in self.resets

    def clear_reset(self, group: str, topic: str, queue_id: int) -> None:
        """Clear the pending reset after the group has moved to the new offset."""
        if self.is_reset_pending(group, topic, queue_id):
            self.record(_APPLIED, group, topic, queue_id)

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the committed offset, or None if there is none."""
        return self.offsets.get(group, {}).get(topic, {}).get(queue_id)

    def of(self, group: str, topic: str) -> dict[int, int]:
        """Return the group's offsets by queue id."""
        return dict(self.offsets.get(group, {}).get(topic, {}))

    def topics_of(self, group: str) -> list[str]:
        """Return the topics in which the group has committed offsets."""
        return list(self.offsets.get(group, {}))

    def groups(self) -> list[str]:
        """Return all groups that have committed offsets."""
        return list(self.offsets)

    def delete(self, group: str, topic: str) -> None:
        """Delete the group's offsets of one topic."""
        if topic in self.offsets.get(group, {}):
            self.record(_DELETED, group, topic)

    def raise_offsets(self, offsets: dict[str, dict[str, dict[int, int]]]) -> Iterator[Fields]:
        """Return the events that raise lower offsets to `offsets`, and add missing ones."""
        for group, topics in offsets.items():
            for topic, queues in topics.items():
                known = self.offsets.get(group, {}).get(topic, {})
                higher = {queue_id: offset for queue_id, offset in queues.items() if offset > known.get(queue_id, -1)}
                if higher:
                    yield _QUEUES, group, topic, list(higher.items())

    def apply(self, fields: Fields) -> None:
        """Apply an event; see the class."""
        kind, group, topic, *rest = fields
        if kind in (_COMMITTED, _RESET):
            queue_id, offset = rest
            self.offsets.setdefault(group, {}).setdefault(topic, {})[queue_id] = offset
            if kind == _RESET:
                self.resets.add((group, topic, queue_id))
            elif self.resets:
                self.resets.discard((group, topic, queue_id))
        elif kind == _APPLIED:
            self.resets.discard((group, topic, *rest))
        elif kind == _DELETED:
            self._forget(group, topic)
        elif kind == _QUEUES:
            (queues,) = rest
            self.offsets.setdefault(group, {}).setdefault(topic, {}).update(queues)
            self.resets.difference_update((group, topic, queue_id) for queue_id, _ in queues)
        else:
            raise ValueError(f"no kind of event: {kind!r:.20}")

    def snapshot(self) -> Iterator[Fields]:
        """Return an event for each group and topic, and one for each pending reset."""
        resets = self.resets.copy()
        for group, topics in self.offsets.copy().items():
            for topic, queues in topics.copy().items():
                yield _QUEUES, group, topic, list(queues.copy().items())
        for group, topic, queue_id in resets:
            if (offset := self.get(group, topic, queue_id)) is not None:
                yield _RESET, group, topic, queue_id, offset

    def clamp(self, bounds: RecoveryBounds) -> Iterator[Fields]:
        """Limit each offset to the queue's maximum."""
        for group, topics in self.offsets.items():
            for topic, queues in topics.items():
                for queue_id, offset in queues.items():
                    if offset > (limit := bounds.max_offset(topic, queue_id)):
                        is_reset = self.is_reset_pending(group, topic, queue_id)
                        yield _RESET if is_reset else _COMMITTED, group, topic, queue_id, limit

    def forget_topic(self, topic: str, log_end: int) -> None:  # noqa: ARG002 - all offsets are of the deleted topic
        """Remove all groups' offsets in a deleted topic."""
        for group in [group for group, topics in self.offsets.items() if topic in topics]:
            self._forget(group, topic)

    def _forget(self, group: str, topic: str) -> None:
        topics = self.offsets.get(group, {})
        for queue_id in topics.pop(topic, ()):
            self.resets.discard((group, topic, queue_id))
        if not topics:
            self.offsets.pop(group, None)
