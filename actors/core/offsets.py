"""What groups have consumed on one broker: commits, where a group begins, and resets by an administrator.

A reset sets the group's offset, and waits for the group's next pull of that queue, which is sent there. Until then the
running consumers know nothing of it, so their commits are swallowed.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from raymq.actors.core.group_settings import GroupSettings
from raymq.actors.errors import InvalidInput, MessageNotFound
from raymq.storage.store import Store

#: A queue is young while all of its messages lie within so many bytes of the log's end: RocketMQ's "still in memory".
YOUNG_BYTES = int(0.4 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))

#: (topic, queue id) -> (min offset, max offset)
Bounds = Callable[[str, int], tuple[int, int]]


class GroupOffsets:
    """The committed offsets of all groups. `bounds` raises for a topic or queue that is not there."""

    def __init__(self, store: Store, groups: GroupSettings, bounds: Bounds) -> None:
        self._store = store
        self._groups = groups
        self._bounds = bounds
        self._resets: dict[tuple[str, str, int], int] = {}

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """A group's offset in a queue, or None if it never committed one there."""
        return self._store.consumer_offsets.get(group, topic, queue_id)

    def start_of(self, group: str, topic: str, queue_id: int) -> int:
        """Where a group goes on, by RocketMQ's rule: its offset, else 0 on a young queue that still begins at 0.

        Raises:
            MessageNotFound: it never committed, and has to choose for itself.
        """
        committed = self.get(group, topic, queue_id)
        if committed is not None:
            return committed
        if not self._is_young(topic, queue_id):
            raise MessageNotFound(f"group {group} has no offset in queue {queue_id} of {topic}")
        return 0

    def commit(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        forward_only: bool = True,
        overrules_reset: bool = False,
    ) -> bool:
        """Remember that `group` consumed everything below `offset`; it survives a kill when this returns.

        Args:
            forward_only: a lower offset than the known one changes nothing.
            overrules_reset: whoever commits means this offset, whatever an administrator did before.

        Returns:
            False if a reset waits for the group's next pull: then nothing changes.

        Raises:
            GroupNotFound, TopicNotFound, QueueNotFound: there is none.
            InvalidInput: the queue does not reach so far.
        """
        self._groups.get(group)
        _, limit = self._bounds(topic, queue_id)
        if not 0 <= offset <= limit:
            raise InvalidInput("offset", f"0..{limit}", offset)
        if (group, topic, queue_id) in self._resets:
            if not overrules_reset:
                return False
            del self._resets[group, topic, queue_id]
        known = self.get(group, topic, queue_id)
        if known is None or offset > known or not forward_only:
            self._store.consumer_offsets.commit(group, topic, queue_id, offset)
        return True

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Send a group, running or not, to `offset`, cut to what the queue holds. Raises as `commit`."""
        self._groups.get(group)
        low, high = self._bounds(topic, queue_id)
        offset = min(max(offset, low), high)
        self._store.consumer_offsets.commit(group, topic, queue_id, offset)
        self._resets[group, topic, queue_id] = offset

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """The reset that waits for the group in this queue, if any; it waits no longer."""
        return self._resets.pop((group, topic, queue_id), None) if self._resets else None

    def heed_reset(self, group: str, topic: str, queue_id: int, position: int) -> int | None:
        """Where a consumer at `position` has to go because of a reset; None if it is there, or none waits for it.

        Told again and again until it is there, since an answer may be lost on its way.
        """
        reset = self._resets.get((group, topic, queue_id)) if self._resets else None
        if reset is None:
            return None
        target = max(reset, self._bounds(topic, queue_id)[0])
        if position != target:
            return target
        del self._resets[group, topic, queue_id]
        return None

    def forget_topic(self, topic: str) -> None:
        """The topic is deleted: no reset waits for it, and a new one of that name is consumed from its beginning."""
        for group in self._store.consumer_offsets.groups():
            self._store.consumer_offsets.delete(group, topic)
        self._resets = {key: offset for key, offset in self._resets.items() if key[1] != topic}

    def _is_young(self, topic: str, queue_id: int) -> bool:
        low, high = self._bounds(topic, queue_id)
        if low > 0 or high == 0:
            return low == 0
        positions, _, _ = self._store.entries(topic, queue_id, 0, 1)
        return self._store.max_physical_offset - int(positions[0]) <= YOUNG_BYTES
