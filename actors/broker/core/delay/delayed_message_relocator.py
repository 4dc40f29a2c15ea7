"""Relocate waiting messages before the log files that contain them are deleted.

Half messages are stored again in the half topic, and staged rows in theirs (`staged_chunk_log`). A message of a delay
level is moved to the timer topic, where it waits for its due time. The timer queue is in the order of the log, so the
messages in the oldest log files are at its beginning. This beginning is scanned once, up to the files that are about to
be deleted, in steps of a bounded number of records, at all times of day.

A file may be deleted once the records are on disk that end the wait of its messages: their relocated copies, and copies
that were delivered a moment ago. Otherwise a loss of power could lose such a copy, and with it a message that was
durable as long as it waited. All in-sync replicas have these records by then, too: a replica deletes the file when its
master has deleted it, and may become the next master.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Final

import numpy as np

from raymq.actors.broker.core.appending.staged_chunk_log import StagedChunkLog
from raymq.actors.broker.core.copies.record_copy import RecordAppender, join, reencode
from raymq.actors.broker.core.copies.republisher import rejection_reason
from raymq.actors.broker.core.delay.schedule_message_service import ScheduleMessageService
from raymq.actors.broker.core.delay.timer_message_store import TimerMessageStore, WaitingRecords
from raymq.actors.broker.core.delay.timer_records import TIMER_QUEUE, origins_of, parse_timer_records
from raymq.actors.broker.core.transactions.transactional_message_service import TransactionalMessageService
from raymq.actors.naming import TIMER_TOPIC
from raymq.storage.errors import QueueNotFound, StoreCorrupt, StoreFull
from raymq.storage.records import property_names as names
from raymq.storage.records.record import Record, decode_properties
from raymq.storage.records.rewrite_destination import rewrite_destinations
from raymq.storage.store import Store
from raymq.storage.timers.timer_entry import Entries

#: One step reads at most this many records, or bytes of them, ...
_STEP_MESSAGES: Final = 100
_STEP_BYTES: Final = 256 << 10
#: ... or skips at most this many that are known, without being read, to wait no more.
_STEP_ENDED: Final = 1 << 14
#: Each relocation adds the property that names a record's origin; with more than this many per record on average, the
#: records are encoded again with only the last one.
_MAX_ORIGINS: Final = 4
_ORIGIN: Final = f"{names.DELIVERED_FROM}\x01".encode()
_log = logging.getLogger(__name__)


class DelayedMessageRelocator:
    """Stores waiting messages again whose log files are about to be deleted.

    Used on the broker's event loop.
    """

    def __init__(
        self,
        store: Store,
        timers: TimerMessageStore,
        schedule: ScheduleMessageService,
        transactions: TransactionalMessageService,
        staged: StagedChunkLog,
        append: RecordAppender,
    ) -> None:
        self._store = store
        self._timers = timers
        self._schedule = schedule
        self._transactions = transactions
        self._staged = staged
        self._append = append
        #: Messages before this offset of the timer queue wait no more, or were relocated.
        self._at = 0
        self._wanted = 0
        #: Before this physical offset no message of a delay level waits.
        self._no_level_before = 0
        #: Before this physical offset no message waits, and that is durable.
        self._clear = 0
        #: No message waits before the first offset; that is durable once the log is durable up to the second one.
        self._clearing: tuple[int, int] | None = None

    def relocate_before(self, log_min: int) -> int:
        """Make one step, and return up to where no message waits, at most `log_min`.

        Later calls continue the work. A message that could wait again after a loss of power or an election counts as
        waiting until the log is durable. On a full disk nothing is relocated, but files before the result may be
        deleted to make room.
        """
        self.want(log_min)
        with contextlib.suppress(StoreFull):
            self.step()
        self._note_clear()
        staged = self._staged.first_log_position()
        return min(log_min, self._clear, log_min if staged is None else staged)

    def _note_clear(self) -> None:
        """Update `_clear`, up to which no message waits and that is durable."""
        for _ in range(2):  # if all of the log is durable, the offset found now counts at once
            if self._clearing is None:
                firsts = self._schedule.first_log_position(), self._transactions.first_log_position()
                reached = min([self._reached(), *(first for first in firsts if first is not None)])
                self._clearing = reached, self._store.max_physical_offset
            clear, log_end = self._clearing
            if log_end > self._store.confirmed.durable_offset:
                return
            self._clear, self._clearing = clear, None

    def want(self, log_min: int) -> None:
        """Request that messages waiting before `log_min` of the log be relocated."""
        self._wanted = max(self._wanted, log_min)

    def step(self) -> bool:
        """Make one step, and return False if there was nothing to do.

        Raise StoreFull or StoreFailed if it was not done; the next call tries again.
        """
        if self._clear < self._wanted:
            self._note_clear()
        if self._move_halves() or self._move_levels() or self._move_staged():
            return True
        if self._reached() >= self._wanted:
            return False
        with self._store.bypass_disk_limit():
            self._timers.settle()
            if self._timers.index_new_records() and not self._pass_over():
                self._look(_STEP_MESSAGES)
        return True

    def _move_halves(self) -> bool:
        """Store some half messages anew.

        Return False if none lies in a file that is about to be deleted.
        """
        first = self._transactions.first_log_position()
        if first is None or first >= self._wanted:
            return False
        with self._store.bypass_disk_limit():
            self._transactions.move_before(self._wanted)
        return True

    def _move_staged(self) -> bool:
        """Store some staged rows again.

        Return False if there is nothing to do for any in a file that is about to be deleted.
        """
        first = self._staged.first_log_position()
        if first is None or first >= self._wanted:
            return False
        with self._store.bypass_disk_limit():
            return self._staged.move_before(self._wanted)

    def _move_levels(self) -> bool:
        """Move some messages of delay levels to the timer topic.

        Only messages whose log files are about to be deleted are moved. Return False if there are none.
        """
        if self._no_level_before >= self._wanted:
            return False
        moves = self._is_level_before(self._wanted)
        if moves:
            with self._store.bypass_disk_limit():
                self._schedule.move_to_timers(self._wanted, _STEP_MESSAGES, _STEP_BYTES)
        if not moves or not self._is_level_before(self._wanted):
            self._no_level_before = self._wanted  # new messages are appended after it
        return moves

    def _is_level_before(self, place: int) -> bool:
        first = self._schedule.first_log_position()
        return first is not None and first < place

    def _pass_over(self) -> bool:
        """Skip messages that are known to wait no more; return False if there are none."""
        ended = self._timers.log.ended_between(self._at, self._at + _STEP_ENDED)
        others = np.flatnonzero(ended != self._at + np.arange(len(ended)))
        leading = int(others[0]) if len(others) else len(ended)
        self._at += leading
        return leading > 0

    def _look(self, most: int) -> None:
        places = self._store.entries(*TIMER_QUEUE, self._at, most)[0]
        within = int(np.argmax(np.append(places >= self._wanted, True)))
        try:
            with self._store.read(*TIMER_QUEUE, self._at, within, _STEP_BYTES) as lease:
                waits = parse_timer_records(lease.records, lease.sizes, lease.queue_offsets).waits
                following = lease.next_offset
        except Exception as error:  # noqa: BLE001 - an error of a stored message concerns that message only
            reason = rejection_reason(error)
            if within > 1 and not isinstance(error, StoreCorrupt):  # the error does not name the message
                self._look(1)
                return
            _log.error("the message at offset %d of %s cannot be stored again: %s", self._at, TIMER_TOPIC, reason)
            self._at += 1
            return
        ended = self._timers.log.ended_between(self._at, following)
        waits = waits[~np.isin(waits["queue_offset"], ended) & (waits["due_ms"] >= self._timers.drained_before_ms())]
        waits = waits[np.array([self._is_known(entry) for entry in waits], np.bool_)]
        if len(waits):
            self._timers.copy(waits, self._relocate)
            self._timers.index_new_records()
        self._at = following

    def _is_known(self, entry: np.void) -> bool:
        """Return True if the timer log still has the entry.

        The timer log forgets an ended entry together with how it ended.
        """
        due_ms, key = int(entry["due_ms"]), int(entry["key"])
        log = self._timers.log
        return due_ms >= log.expired_before_ms or entry["queue_offset"] in log.find(due_ms, key)["queue_offset"]

    def _relocate(self, waits: Entries, waiting: WaitingRecords) -> None:
        origins = origins_of(waits)
        if bytes(waiting.batch.records).count(_ORIGIN) > _MAX_ORIGINS * len(origins):
            records = zip(waiting.records(), origins, strict=True)
            self._append(*join([_with_origin(record, origin) for record, origin in records]), TIMER_QUEUE, again=True)
        else:
            topic_queues = [TIMER_TOPIC] * len(origins)
            self._append(
                *rewrite_destinations(waiting.batch, topic_queues, TIMER_QUEUE[1], origins), TIMER_QUEUE, again=True
            )

    def _reached(self) -> int:
        """Return the physical offset of the first message that was not scanned yet."""
        try:
            low, high = self._store.min_offset(*TIMER_QUEUE), self._store.max_offset(*TIMER_QUEUE)
        except QueueNotFound:
            return self._store.max_physical_offset
        self._at = max(self._at, low)
        if self._at >= high:
            return self._store.max_physical_offset
        return int(self._store.entries(*TIMER_QUEUE, self._at, 1)[0][0])


def _with_origin(record: Record, origin: bytes) -> bytes:
    """Return a record for the timer queue that names its origin once."""
    return reencode(record, *TIMER_QUEUE, {**record.properties, **decode_properties(origin)})
