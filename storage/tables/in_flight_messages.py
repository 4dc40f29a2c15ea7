"""Messages that were delivered to consumers and not acknowledged, by group and queue.

Every change appends one frame to `raymq/in_flight.journal` with a single write. Then the kernel has it, and it survives
a process crash. Every entry holds the resulting state instead of a difference, so replaying any prefix followed by the
whole journal gives the same result. When the journal has grown, another thread writes the current table to a file
beside it while changes continue.
"""

from __future__ import annotations

import contextlib
import enum
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from raymq.storage.errors import StoreError
from raymq.storage.files.worker_thread import begin
from raymq.storage.tables.journal import Journal, ignore_failure
from raymq.storage.tables.recovery_bounds import UNBOUNDED, RecoveryBounds

#: group, topic, queue id
GroupQueue = tuple[str, str, int]

#: A value of `reconsume_times` that older versions wrote: the first delivery was returned unseen.
UNCOUNTED: Final = -1
#: The limit of `reconsume_times`: a higher number is not a count.
_MAX_TIMES: Final = 1 << 30

_REWRITE_BYTES: Final = 4 << 20
#: The deliveries in one frame; after each frame, other threads get the interpreter.
_STEP_DELIVERIES: Final = 500
_DELIVERED: Final = "d"
_DONE: Final = "a"
_FORGOTTEN: Final = "f"
#: A topic was deleted; the entry holds where the log ended.
_TOPIC_GONE: Final = "t"
#: The deletions of topics that the table includes.
_KNOWN: Final = "k"


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


class InFlightTable:
    """The table of messages in flight, and its journal.

    One thread, except for `sync`. Each change raises as `Journal.append` does.
    """

    def __init__(
        self,
        path: Path,
        *,
        writable: bool,
        on_failure: Callable[[StoreError], None] = ignore_failure,
        recovery_bounds: RecoveryBounds = UNBOUNDED,
    ) -> None:
        """Read the table, without messages that the log has lost.

        Args:
            on_failure: as in `Journal`.
        """
        self._queues: dict[GroupQueue, InFlightQueue] = {}
        self._journal = Journal(path, writable=writable, on_failure=on_failure)
        #: Where the log ended at each deletion of a topic whose messages were removed; None: an older version wrote the
        #: table.
        self._forgotten: dict[str, int] | None = None if self._journal.entries else {}
        #: The same for deletions that the journal does not contain yet; no file may list them as applied.
        self._pending: dict[str, int] = {}
        self._rewrite_at = _REWRITE_BYTES
        self._rewriting: threading.Thread | None = None
        try:
            self._recover(recovery_bounds, writable=writable)
        except BaseException:
            self._journal.close()
            raise

    def _recover(self, recovery_bounds: RecoveryBounds, *, writable: bool) -> None:
        """Replay the journal and clamp the result to what the log has."""
        if self._journal.empty and not self._journal.entries:
            self._journal.set_preamble((_KNOWN, "", "", 0, {}))
        for kind, group, topic, queue_id, *rest in self._journal.entries:
            self._apply(kind, (group, topic, queue_id), rest)
        for kind, group, topic, queue_id, *rest in self._journal.behind:
            # Deliveries after damage are skipped, so these messages are delivered again: the damaged frame may contain
            # deliveries of earlier messages, which would be skipped otherwise. Acknowledgements stay valid.
            if kind != _DELIVERED:
                self._apply(kind, (group, topic, queue_id), rest)
        self._journal.entries.clear()
        self._journal.behind.clear()
        unheeded = recovery_bounds.deleted_later(self._forgotten)
        affected = {topic for _, topic, _ in self._queues}.intersection(unheeded)
        for topic in unheeded:
            self._forget_topic(topic)
        known, self._forgotten = self._forgotten, dict(recovery_bounds.deleted_topics)
        # Clamp also the file beside an empty journal: the next start, when the log may reach further, would read it.
        clamped = self._clamp(recovery_bounds)
        if writable and (clamped or known != self._forgotten or not self._journal.empty):
            # Append the deletions first: if the rewrite is interrupted, the older frames are replayed after a table
            # that lists these deletions as applied.
            for topic in sorted(affected):
                self._journal.append((_TOPIC_GONE, "", topic, 0, recovery_bounds.deleted_topics[topic]))
            self._rewrite()

    def _clamp(self, recovery_bounds: RecoveryBounds) -> bool:
        """Remove deliveries of messages that the log has lost; return True if there were any.

        Their offsets will be given to other messages. See `recovery_bounds`.
        """
        clamped = False
        for queue, known in list(self._queues.items()):
            limit = recovery_bounds.max_offset(*queue[1:])
            clamped |= known.next_offset > limit  # the offsets of all deliveries are below it
            known.next_offset = min(known.next_offset, limit)
            # The table beside the journal may be newer than the frames that were replayed after it.
            known.deliveries = {
                offset: known.deliveries[offset] for offset in sorted(known.deliveries) if offset < limit
            }
            if not known.deliveries:
                del self._queues[queue]
        return clamped

    @property
    def damage(self) -> Sequence[tuple[Path, int, int]]:
        """Return the unreadable parts of the journal: file, offset, bytes."""
        return self._journal.damage

    @property
    def queues(self) -> Mapping[GroupQueue, InFlightQueue]:
        """Return all queues with messages in flight; callers must not change it."""
        return self._queues

    def deliver(self, queue: GroupQueue, next_offset: int, deliveries: Mapping[int, InFlightMessage]) -> InFlightQueue:
        """Record `deliveries` and return the queue, which then has messages in flight.

        New deliveries are in ascending order, with higher offsets than all that are in flight.
        """
        packed = [[offset, *delivery] for offset, delivery in deliveries.items()]
        self._change(_DELIVERED, queue, next_offset, packed)
        return self._queues[queue]

    def acknowledge(self, queue: GroupQueue, offsets: Iterable[int]) -> None:
        """Remove the messages at these offsets as done."""
        self._change(_DONE, queue, list(offsets))

    def forget(self, queue: GroupQueue) -> None:
        """Remove all in-flight messages of the queue."""
        if queue in self._queues:
            self._change(_FORGOTTEN, queue)

    def forget_topic(self, topic: str, log_end: int) -> None:
        """Remove all in-flight messages of a deleted topic, even if the disk refuses the change.

        Args:
            log_end: where the log ended when the topic was deleted. Every later opening also receives it through
                `RecoveryBounds.deleted_topics`.
        """
        entry = _TOPIC_GONE, "", topic, 0, log_end
        if self._journal.append_or_defer(entry):
            self._record_pending()
            self._apply(_TOPIC_GONE, ("", topic, 0), [log_end])
        else:
            self._pending[topic] = log_end
            self._forget_topic(topic)

    def prune_deletions(self, before: int) -> None:
        """Drop the records of deletions at or before `before`, a physical offset.

        No later start receives these deletions any more.
        """
        forgotten = self._forgotten or {}
        for topic in [topic for topic, place in forgotten.items() if place <= before]:
            del forgotten[topic]

    def _record_pending(self) -> None:
        """Mark the pending deletions as recorded, because the journal now contains them."""
        self._record_deletions(self._pending)
        self._pending.clear()

    def _record_deletions(self, deleted: Mapping[str, int]) -> None:
        # Update in place: the table may be large, and another thread may be about to copy it.
        if self._forgotten is None:
            self._forgotten = {}
        self._forgotten.update(deleted)

    def _forget_topic(self, topic: str) -> None:
        for queue in [queue for queue in self._queues if queue[1] == topic]:
            del self._queues[queue]

    def sync(self) -> None:
        """Wait until all changes are on disk; any thread may call it.

        Raise StoreFailed if they may not be on disk.
        """
        self._journal.sync()

    def close(self, *, rewrite: bool) -> None:
        """Close the file.

        Args:
            rewrite: reduce the file to the messages in flight first.
        """
        self._wait()
        if rewrite and not self._journal.empty:
            self._rewrite()
        self._journal.close()

    def _wait(self) -> None:
        if self._rewriting is not None:
            self._rewriting.join()

    def _change(self, kind: str, queue: GroupQueue, *rest: Any) -> None:
        self._journal.append((kind, *queue, *rest))
        if self._pending:
            self._record_pending()
        self._apply(kind, queue, rest)
        if self._journal.length >= self._rewrite_at:
            # The change is safe in the journal; a failed rewrite is tried again when the journal has grown as much
            # again.
            self._rewrite_at = self._journal.length + _REWRITE_BYTES
            if self._rewriting is None or not self._rewriting.is_alive():
                with contextlib.suppress(StoreError):
                    self._journal.rotate()
                    rewriting = threading.Thread(target=self._settle, name="raymq-in-flight", daemon=True)
                    begin(rewriting)
                    self._rewriting = rewriting

    def _apply(self, kind: str, queue: GroupQueue, rest: Iterable[Any]) -> None:
        if kind == _DELIVERED:
            next_offset, packed = rest
            outstanding = self._queues.setdefault(queue, InFlightQueue(next_offset))
            outstanding.next_offset = next_offset
            for offset, *delivery in packed:
                outstanding.deliveries[offset] = InFlightMessage(*delivery)
        elif kind == _DONE:
            (offsets,) = rest
            known = self._queues.get(queue)
            if known is not None:  # a replay over a newer table may lack the queue
                for offset in offsets:
                    known.deliveries.pop(offset, None)
                if not known.deliveries:
                    del self._queues[queue]
        elif kind == _FORGOTTEN:
            self._queues.pop(queue, None)
        elif kind == _TOPIC_GONE:
            (log_end,) = rest
            self._forget_topic(queue[1])
            self._record_deletions({queue[1]: log_end})
        elif kind == _KNOWN:
            (forgotten,) = rest
            self._forgotten = dict(forgotten)

    def _settle(self) -> None:
        with contextlib.suppress(StoreError):  # tried again when the journal has grown
            self._rewrite_at = max(_REWRITE_BYTES, 2 * self._journal.compact(self._entries()))

    def _rewrite(self) -> None:
        """Reduce the journal to the messages in flight, whichever file they were in.

        Entries that the start has clamped are not kept.
        """
        self._rewrite_at = max(_REWRITE_BYTES, 2 * self._journal.rewrite(self._entries()))
        self._record_pending()

    def _entries(self) -> Iterator[tuple[Any, ...]]:
        """Yield entries for all messages in flight; any thread may call it.

        Each copy of a table is one atomic operation of the interpreter.
        """
        # Copy it before the tables: a later deletion is in a frame that will be replayed.
        yield _KNOWN, "", "", 0, (self._forgotten or {}).copy()
        for queue, known in self._queues.copy().items():
            next_offset, deliveries = known.next_offset, iter(known.deliveries.copy().items())
            chunk = list(islice(deliveries, _STEP_DELIVERIES))
            while chunk:
                following = list(islice(deliveries, _STEP_DELIVERIES))
                # A frame's next offset must not skip deliveries of the following frame, which may be damaged.
                behind = chunk[-1][0] + 1 if following else next_offset
                yield (_DELIVERED, *queue, behind, [[offset, *each] for offset, each in chunk])
                chunk = following
                time.sleep(0)
