"""Derive the timer log from the commit log, on masters and replicas.

From the timer queue come the entries of waiting, withdrawn and moved messages. A master records the copies that it
delivers itself. Copies that a timer log lacks, those of a killed master or of a replica's master, are found in the log:
a copy names the queue offset that it was made from (`DELIVERED_FROM`, "0:<offset>").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from raymq.actors.broker.core.copies.republisher import rejection_reason
from raymq.actors.broker.core.delay.delivery_recovery import DeliveredCopy, next_delivered_copies
from raymq.actors.broker.core.delay.timer_records import (
    TIMER_LEVEL,
    TIMER_QUEUE,
    ParsedTimerRecords,
    delete_key,
    parse_timer_records,
)
from raymq.storage.errors import QueueNotFound, StoreCorrupt
from raymq.storage.store import Store
from raymq.storage.store_paths import StorePaths
from raymq.storage.timers.expiry_watermark import ExpiryWatermark
from raymq.storage.timers.timer_entry import ENTRY, HOUR_MS, NO_ENTRIES, Entries, EntryKind, key_of, pending_entries
from raymq.storage.timers.timer_log import TimerLog

_INDEXED_MESSAGES: Final = 4_096
_INDEXED_BYTES: Final = 8 << 20
#: The most digits of a due time in ms.
_MAX_MS_DIGITS: Final = 14


@dataclass(frozen=True, slots=True)
class NewTimerRecords:
    """Records of the timer queue that are not indexed yet.

    Attributes:
        parsed: the readable records.
        following: the queue offset after them.
        reason: why the only record cannot be read; empty: it can.
    """

    parsed: ParsedTimerRecords
    following: int
    reason: str = ""


class TimerIndexer:
    """Fills the timer log of one store. It belongs to the store's writer.

    Attributes:
        log: the timer log.
    """

    def __init__(self, store: Store, *, keeps_dropped: bool = True) -> None:
        """Open the timer log; see `TimerLog`.

        It has to be opened after each opening of the store before anything is appended. Otherwise entries of lost
        records could count for others that are stored in their place.
        """
        self._store = store
        self.log = TimerLog(
            StorePaths(store.directory).timers,
            log_end=store.max_physical_offset,
            queue_end=self.bounds()[1],
            memory_lost=store.recovery_bounds.memory_lost,
            keeps_dropped=keeps_dropped,
        )
        self._on_disk = DurableWatermark()

    def bounds(self) -> tuple[int, int]:
        """Return the timer queue's minimum and maximum offset."""
        try:
            return self._store.min_offset(*TIMER_QUEUE), self._store.max_offset(*TIMER_QUEUE, written=True)
        except QueueNotFound:
            return 0, 0

    def next_records(self) -> NewTimerRecords | None:
        """Return a limited number of records to index; None without any."""
        low, high = self.bounds()
        self.log.enqueued = max(self.log.enqueued, low)
        count = _INDEXED_MESSAGES
        while self.log.enqueued < high:
            try:
                with self._store.read(*TIMER_QUEUE, self.log.enqueued, count, _INDEXED_BYTES, written=True) as lease:
                    parsed = parse_timer_records(lease.records, lease.sizes, lease.queue_offsets)
                    return NewTimerRecords(parsed, lease.next_offset)
            except Exception as error:  # noqa: BLE001 - an error of a stored message concerns that message only
                reason = rejection_reason(error)
                if count == 1 or isinstance(error, StoreCorrupt):
                    nothing = ParsedTimerRecords(NO_ENTRIES, (), NO_ENTRIES, NO_ENTRIES)
                    return NewTimerRecords(nothing, self.log.enqueued + 1, reason)
                count //= 2
        return None

    def record(self, new: NewTimerRecords) -> Entries:
        """Write the entries of `new`, and return those of earlier messages that wait no more.

        If StoreFull or StoreFailed is raised, the records count as not indexed.
        """
        self.log.append(new.parsed.waits)
        ended = [new.parsed.moved]
        for withdrawal in new.parsed.withdrawals:
            found = self.log.find(withdrawal.due_ms, withdrawal.key)
            earlier = found[found["queue_offset"] < withdrawal.queue_offset]
            withdrawn = pending_entries(earlier)
            withdrawn["kind"] = EntryKind.WITHDRAWN
            withdrawn["physical_offset"] = withdrawal.physical_offset
            self.log.append(withdrawn)
            ended.append(earlier)  # all of them: their end may have been recorded before
        self.log.append(new.parsed.moved)
        self.log.enqueued = new.following
        return np.concatenate(ended)

    def search(self) -> bool:
        """Record the delivered copies in the next unsearched part of the log.

        Return True if all of the log has been searched. If StoreFull or StoreFailed is raised, the part counts as not
        searched.
        """
        copies, following = next_delivered_copies(self._store, self._search_begin())
        self.log.append(np.array([entry for copy in copies for entry in _delivered(copy)], ENTRY))
        self.log.log_end = following
        return following >= self._store.max_physical_offset

    def _search_begin(self) -> int:
        """Return from where on the log may have unknown copies: behind the first waiting message."""
        low, high = self.bounds()
        if low == high:
            return self._store.max_physical_offset
        places = self._store.entries(*TIMER_QUEUE, low, 1, written=True)[0]
        return max(self.log.log_end, int(places[0]))

    def checkpoint(self, log_end: int, drained_before_ms: int) -> Callable[[], None] | None:
        """Prepare a checkpoint of the timer log; see `TimerLog.checkpoint`.

        Args:
            log_end: all copies before it are in the timer log.
            drained_before_ms: no indexed message that is due before this time waits.
        """
        over_ms = drained_before_ms - drained_before_ms % HOUR_MS
        over = ExpiryWatermark(over_ms, self.log.enqueued, self._store.max_physical_offset)
        over_on_disk = self._on_disk.note(over, self._store.confirmed.durable_offset)
        return self.log.checkpoint(log_end, begin_ms=drained_before_ms, over=over_on_disk)


class DurableWatermark:
    """The ended timers that the timer log may forget, because their copies are durable.

    If a crash of the machine or a change of the master loses a copy, the message is delivered again, for which its
    entry is needed.
    """

    def __init__(self) -> None:
        self._last: ExpiryWatermark | None = None
        #: The next watermark; its copies are durable when the log is durable up to its `log_end`.
        self._next: ExpiryWatermark | None = None

    def note(self, over: ExpiryWatermark, durable: int) -> ExpiryWatermark | None:
        """Return the watermark up to which entries may be forgotten, or None.

        Args:
            over: the watermark of the entries that have ended by now.
            durable: the offset up to which the log is on disk, here and on the in-sync replicas.
        """
        if self._next is not None and self._next.log_end <= durable:
            self._last, self._next = self._next, None
        if self._next is None:
            self._next = over
        return self._last


def _delivered(copy: DeliveredCopy) -> list[tuple[int, int, int, int, int, int]]:
    """Return the entry of a delivered copy; none if it comes from a delay level."""
    sense, due_ms = copy.sense, copy.sense.due_ms or ""
    if copy.origin.level != TIMER_LEVEL or not due_ms.isdecimal() or len(due_ms) > _MAX_MS_DIGITS:
        return []
    key = key_of(delete_key(sense.topic, sense.unique_key))
    return [(int(due_ms), copy.origin.offset, copy.physical_offset, key, copy.size, EntryKind.DELIVERED)]
