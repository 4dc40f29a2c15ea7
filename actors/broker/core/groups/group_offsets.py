"""Manage the offsets of groups on one broker: commits, initial offsets and resets.

An administrator's reset sets the group's offset, and stays pending until the group's next pull of that queue, which
gets the new offset. Until then the running consumers do not know of it, so their commits are ignored. A pending reset
survives SIGKILL.

A topic that was deleted and recreated is another topic: an offset of the old one does not apply to it. A consumer that
names the old one in a fetch or a commit is sent to the beginning of the new one, or to the group's offset in it.

A commit may carry the offset from which its consumer continued (`since`). If the group's offset is lower by now, the
group was reset since, and the commit is too late: it is refused, and the consumer is sent to the group's offset.

A commit may carry the recovery epoch under which its consumer has read. If the log has lost messages that the consumer
has read since, other messages have these offsets now, so the commit is refused. Thus each committed offset refers to
the log as it is: offsets from before a loss were cut to the part that the log kept.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from raymq.actors.broker.core.groups.group_settings import GroupSettings
from raymq.actors.errors import InvalidInput, MessageNotFound, OffsetReset
from raymq.storage.store import Store

#: A queue is young while all its messages lie within this many bytes of the log's end: RocketMQ's "still in memory".
YOUNG_BYTES = int(0.4 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))

#: (topic, queue id) -> (min offset, max offset)
Bounds = Callable[[str, int], tuple[int, int]]


class GroupOffsets:
    """The committed offsets of all groups.

    `bounds` raises if the topic or queue does not exist; `elapsed` is a steady clock.
    """

    def __init__(self, store: Store, groups: GroupSettings, bounds: Bounds, elapsed: Callable[[], float]) -> None:
        self._store = store
        self._groups = groups
        self._bounds = bounds
        self._offsets = store.consumer_offsets
        self._elapsed = elapsed
        #: When each group last committed, by `elapsed`, since this broker started.
        self._committed: dict[str, float] = {}

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return a group's offset in a queue, or None if it never committed one there."""
        return self._offsets.get(group, topic, queue_id)

    def initial_offset(self, group: str, topic: str, queue_id: int) -> int:
        """Return where a group continues, by RocketMQ's rule.

        It is the group's offset, else 0 on a young queue that still begins at 0.

        Raises:
            MessageNotFound: the group never committed, and its consumer has to choose an offset itself.
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
        since: int | None = None,
        incarnation: int | None = None,
        epoch: int | None = None,
    ) -> bool:
        """Commit that `group` consumed everything below `offset`.

        It survives a kill when this returns.

        Args:
            forward_only: a lower offset than the known one changes nothing.
            overrules_reset: the commit applies even if an administrator's reset is pending.
            since: the group's offset as the consumer knows it, negative if it knows of none; None: not given.
            incarnation: the topic's incarnation that `offset` refers to; None: not given.
            epoch: the recovery epoch under which everything below `offset` was read; None or 0: not given.

        Returns:
            False if a reset is pending for the group's next pull: then nothing changes.

        Raises:
            OffsetReset: with `since`: the group was reset to before `since`, or is beyond `offset`, or has an offset
                though the consumer knows of none, or a reset is pending. With `incarnation`: the topic was recreated.
                With `epoch`: the log has lost messages below `offset`. Nothing changes.
            GroupNotFound, TopicNotFound, QueueNotFound: there is none.
            InvalidInput: the offset is outside of the queue.
        """
        self._groups.get(group)
        low, limit = self._bounds(topic, queue_id)
        if incarnation is not None and self._store.incarnation(topic) > incarnation:
            raise self.after_recreation(group, topic, queue_id)
        if epoch and epoch != self._store.epoch:
            valid_to = self._store.valid_to(topic, queue_id, epoch)
            if valid_to is not None and offset > valid_to:
                raise self.after_loss(group, topic, queue_id, valid_to)
        if not 0 <= offset <= limit:
            raise InvalidInput("offset", f"0..{limit}", offset)
        if self._offsets.is_reset_pending(group, topic, queue_id) and not overrules_reset:
            if since is not None:
                raise OffsetReset(max(self.get(group, topic, queue_id) or 0, low))
            return False
        known = self.get(group, topic, queue_id)
        if known is not None and since is not None and (since < 0 or known < since or offset < known):
            raise OffsetReset(known)
        if known is None or offset > known or not forward_only:
            self._offsets.commit(group, topic, queue_id, offset)
        else:
            self._offsets.clear_reset(group, topic, queue_id)
        self._committed[group] = self._elapsed()
        return True

    def since_commit(self, group: str) -> float | None:
        """Return the seconds since a group last committed.

        The result is None if it has not committed since this broker started.
        """
        at = self._committed.get(group)
        return None if at is None else max(0.0, self._elapsed() - at)

    def forget_topic(self, group: str, topic: str) -> int:
        """Forget a group's offsets in a topic; return how many there were."""
        count = len(self._offsets.of(group, topic))
        self._offsets.delete(group, topic)
        return count

    def forget_group(self, group: str) -> None:
        """Forget all offsets of a group."""
        for topic in self._offsets.topics_of(group):
            self._offsets.delete(group, topic)
        self._committed.pop(group, None)

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set the offset of a group, running or not, to `offset` within the queue's bounds.

        It raises as `commit`.
        """
        self._groups.get(group)
        low, high = self._bounds(topic, queue_id)
        self._offsets.reset(group, topic, queue_id, min(max(offset, low), high))

    def has_pending_reset(self, group: str, topic: str, queue_id: int) -> bool:
        """Return True if a reset is pending for the group in this queue."""
        return self._offsets.is_reset_pending(group, topic, queue_id)

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return and clear the pending reset of the group in this queue, if any."""
        if not self._offsets.is_reset_pending(group, topic, queue_id):
            return None
        self._offsets.clear_reset(group, topic, queue_id)
        return self.get(group, topic, queue_id)

    def follow_reset(self, group: str, topic: str, queue_id: int, position: int) -> int | None:
        """Return where a consumer at `position` has to go because of a pending reset.

        The result is None if the consumer is there, or if no reset is pending. It is returned again on each call until
        the consumer is there, because a response may be lost.
        """
        if not self._offsets.is_reset_pending(group, topic, queue_id):
            return None
        target = max(self.get(group, topic, queue_id) or 0, self._bounds(topic, queue_id)[0])
        if position != target:
            return target
        self._offsets.clear_reset(group, topic, queue_id)
        return None

    def after_recreation(self, group: str | None, topic: str, queue_id: int) -> OffsetReset:
        """Return the OffsetReset for a consumer of a topic that was deleted and recreated.

        It raises as `commit`.
        """
        low, high = self._bounds(topic, queue_id)
        committed = None if group is None else self.get(group, topic, queue_id)
        start = low if committed is None or not low <= committed <= high else committed
        return OffsetReset(start, self._store.incarnation(topic))

    def after_loss(self, group: str | None, topic: str, queue_id: int, valid_to: int) -> OffsetReset:
        """Return the OffsetReset for a consumer that read messages which the log has lost.

        The queue is unchanged up to `valid_to`. The consumer is sent to its group's offset, or to `valid_to` if the
        group has none. If the offset is lower than `valid_to`, messages from it on may have been delivered but not
        consumed. If it is higher, members that read the new messages have consumed those between `valid_to` and the
        offset.
        """
        committed = None if group is None else self.get(group, topic, queue_id)
        return OffsetReset(valid_to if committed is None else committed)

    def _is_young(self, topic: str, queue_id: int) -> bool:
        low, high = self._bounds(topic, queue_id)
        if low > 0 or high == 0:
            return low == 0
        positions, _, _ = self._store.entries(topic, queue_id, 0, 1)
        return self._store.max_physical_offset - int(positions[0]) <= YOUNG_BYTES
