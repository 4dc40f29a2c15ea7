"""What groups have consumed on one broker: commits, where a group begins, and resets by an administrator.

A reset sets the group's offset, and waits for the group's next pull of that queue, which is sent there. Until then the
running consumers know nothing of it, so their commits are swallowed. A waiting reset survives SIGKILL.

A topic that was deleted and made anew is another one: an offset that was meant in the old one says nothing of it. Who
consumes it is sent to where the new one begins, or the group is in it, by the fetch or commit that names the old one.

A commit may say from which offset its consumer goes on. If the group is before that by now, it was sent back since, and
the commit comes too late: it is refused, and the consumer goes to where the group is.

A commit may say the recovery epoch under which its consumer has read. What it has read and the log has lost since is
not done, for other messages have these offsets now: such a commit is refused. So each offset is one of the log as it
is: those from before a loss were cut to what the log kept.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from raymq.actors.broker.core.groups.settings import GroupSettings
from raymq.actors.errors import InvalidInput, MessageNotFound, OffsetReset
from raymq.storage.store import Store

#: A queue is young while all of its messages lie within so many bytes of the log's end: RocketMQ's "still in memory".
YOUNG_BYTES = int(0.4 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))

#: (topic, queue id) -> (min offset, max offset)
Bounds = Callable[[str, int], tuple[int, int]]


class GroupOffsets:
    """The committed offsets of all groups. `bounds` raises for what is not there; `elapsed` is a steady clock."""

    def __init__(self, store: Store, groups: GroupSettings, bounds: Bounds, elapsed: Callable[[], float]) -> None:
        self._store = store
        self._groups = groups
        self._bounds = bounds
        self._offsets = store.consumer_offsets
        self._elapsed = elapsed
        #: When each group committed last, by `elapsed`, since this broker has started.
        self._committed: dict[str, float] = {}

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """A group's offset in a queue, or None if it never committed one there."""
        return self._offsets.get(group, topic, queue_id)

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
        since: int | None = None,
        incarnation: int | None = None,
        epoch: int | None = None,
    ) -> bool:
        """Remember that `group` consumed everything below `offset`; it survives a kill when this returns.

        Args:
            forward_only: a lower offset than the known one changes nothing.
            overrules_reset: whoever commits means this offset, whatever an administrator did before.
            since: the group's offset as who commits knows it, negative if it has none; None: he does not say.
            incarnation: of the topic in which `offset` was meant; None: he does not say.
            epoch: the recovery epoch under which everything below `offset` was read; None or 0: he does not say.

        Returns:
            False if a reset waits for the group's next pull: then nothing changes.

        Raises:
            OffsetReset: to somebody who says `since`, and so understands this: the group was sent back before that, or
                beyond `offset`, or has begun where he knows of none, or a reset waits for it; or, to somebody who says
                these, the topic was made anew, or the log has lost what lay below `offset`. Nothing changes.
            GroupNotFound, TopicNotFound, QueueNotFound: there is none.
            InvalidInput: the queue does not reach so far.
        """
        self._groups.get(group)
        low, limit = self._bounds(topic, queue_id)
        if incarnation is not None and self._store.incarnation(topic) > incarnation:
            raise self.start_anew(group, topic, queue_id)
        if epoch and epoch != self._store.epoch:
            kept = self._store.kept_to(topic, queue_id, epoch)
            if kept is not None and offset > kept:
                raise self.after_loss(group, topic, queue_id, kept)
        if not 0 <= offset <= limit:
            raise InvalidInput("offset", f"0..{limit}", offset)
        if self._offsets.awaits(group, topic, queue_id) and not overrules_reset:
            if since is not None:
                raise OffsetReset(max(self.get(group, topic, queue_id) or 0, low))
            return False
        known = self.get(group, topic, queue_id)
        if known is not None and since is not None and (since < 0 or known < since or offset < known):
            raise OffsetReset(known)
        if known is None or offset > known or not forward_only:
            self._offsets.commit(group, topic, queue_id, offset)
        else:
            self._offsets.heeded(group, topic, queue_id)
        self._committed[group] = self._elapsed()
        return True

    def since_commit(self, group: str) -> float | None:
        """Return the seconds since a group committed last; None if it did not since this broker has started."""
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
        """Send a group, running or not, to `offset`, cut to what the queue holds. Raises as `commit`."""
        self._groups.get(group)
        low, high = self._bounds(topic, queue_id)
        self._offsets.reset(group, topic, queue_id, min(max(offset, low), high))

    def awaits_reset(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether a reset waits for the group in this queue."""
        return self._offsets.awaits(group, topic, queue_id)

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """The reset that waits for the group in this queue, if any; it waits no longer."""
        if not self._offsets.awaits(group, topic, queue_id):
            return None
        self._offsets.heeded(group, topic, queue_id)
        return self.get(group, topic, queue_id)

    def heed_reset(self, group: str, topic: str, queue_id: int, position: int) -> int | None:
        """Where a consumer at `position` has to go because of a reset; None if it is there, or none waits for it.

        Told again and again until it is there, since an answer may be lost on its way.
        """
        if not self._offsets.awaits(group, topic, queue_id):
            return None
        target = max(self.get(group, topic, queue_id) or 0, self._bounds(topic, queue_id)[0])
        if position != target:
            return target
        self._offsets.heeded(group, topic, queue_id)
        return None

    def start_anew(self, group: str | None, topic: str, queue_id: int) -> OffsetReset:
        """Where who consumed a topic that was deleted goes on in the one of the same name; raises as `commit`."""
        low, high = self._bounds(topic, queue_id)
        committed = None if group is None else self.get(group, topic, queue_id)
        start = low if committed is None or not low <= committed <= high else committed
        return OffsetReset(start, self._store.incarnation(topic))

    def after_loss(self, group: str | None, topic: str, queue_id: int, kept: int) -> OffsetReset:
        """Where who has read what the log has lost goes on; the queue is still what it read up to `kept`.

        That is where its group is. Before that it may have been given out and not be done; and what lies behind `kept`
        and before that was done by those who have read the new messages.
        """
        committed = None if group is None else self.get(group, topic, queue_id)
        return OffsetReset(kept if committed is None else committed)

    def _is_young(self, topic: str, queue_id: int) -> bool:
        low, high = self._bounds(topic, queue_id)
        if low > 0 or high == 0:
            return low == 0
        positions, _, _ = self._store.entries(topic, queue_id, 0, 1)
        return self._store.max_physical_offset - int(positions[0]) <= YOUNG_BYTES
