"""Store messages of the fixed delay levels, and deliver them when they are due.

Level n waits in queue n - 1 of SCHEDULE_TOPIC_XXXX, whose queue entries have the due time in place of a tags code. The
real topic and queue are in REAL_TOPIC and REAL_QID, as in RocketMQ.

A queue is in the order of due times as long as the table of levels does not change. Some messages are moved to the
timer topic, where they wait for their due time, and are skipped here: those that would delay later ones after the table
was changed, and those in log files that are about to be deleted.

Delivery is exactly once, also over SIGKILL. A delivered copy names the entry that it was made from (`DELIVERED_FROM`).
The position of each level is journaled after its copies are in the log, and a start searches the log for copies that
the journal does not cover. Each of these proves the delivery of one entry only: earlier entries are still delivered.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from raymq.actors.broker.core.appending.inbound_message import TIMER_NAMES, InboundMessage, delay_level
from raymq.actors.broker.core.copies.record_copy import (
    DROPPABLE_DELIVERED,
    DROPPABLE_MOVED,
    DROPPABLE_WAITING,
    RecordAppender,
    check_properties_size,
    join,
    parse_queue_id,
    reencode_trimmed,
)
from raymq.actors.broker.core.copies.republisher import LEVEL, CopyPurpose, MessageLocation, Republisher
from raymq.actors.broker.core.delay.delivery_recovery import find_delivered_copies, find_moved_copies
from raymq.actors.broker.core.delay.due_times import DueTimes
from raymq.actors.broker.core.delay.timer_records import TIMER_QUEUE, moved_properties
from raymq.actors.broker.core.delay.topic_incarnation import topic_of_waiting
from raymq.actors.broker.core.periodic_retry import PerKeyRetry
from raymq.actors.protocol import DueReport, RecordPositions
from raymq.storage.cooperative_steps import Steps
from raymq.storage.delay_levels import SCHEDULE_TOPIC
from raymq.storage.errors import InvalidInput, OffsetOutOfRange, QueueNotFound, StoreCorrupt, StoreError
from raymq.storage.records import property_names as properties
from raymq.storage.records.property_columns import properties_of_records
from raymq.storage.records.record import Record, decode
from raymq.storage.store import Store

#: Property of a delivered copy: "<level>:<offset in its schedule queue>". Hidden from users.
DELIVERED_FROM = properties.DELIVERED_FROM
#: One pass takes at most this many messages of all levels together, so that it never blocks the event loop for long.
_MAX_PER_PASS = 1_000
#: At most this much is read, copied and appended together, except for a single longer message.
_BYTES_A_STEP = 4 << 20
_MAX_LEVEL_DIGITS = 9
#: After this much growth of the log, it is stored that all copies in it are known. So a start after a kill searches
#: only that much and the copies delivered since, however many messages wait.
_NOTE_BYTES = 16 << 20
#: How many waiting messages are counted in a step.
_COUNTED_AT_ONCE = 4_096
_COUNTED_BYTES = 8 << 20
#: At most this many messages that were lost with their log files are quarantined one by one.
_MAX_REPORTED = 10_000
_log = logging.getLogger(__name__)


class ScheduleMessageService:
    """The delay levels of one broker.

    `clock` is wall time without jumps, in seconds: `SteadyClock`.
    """

    def __init__(self, store: Store, clock: Callable[[], float], append: RecordAppender, copying: Republisher) -> None:
        self._store = store
        self._clock = clock
        self._append = append
        self._copying = copying
        self._troubles = PerKeyRetry(clock)
        self._tables = store.delay_level_history
        self._due_times = {level: DueTimes() for level in range(1, self.levels + 1)}
        self._track_queues()
        #: By level, the position up to which it is delivered, if that is not stored yet.
        self._places: dict[int, int] = {}
        #: By level, delivered offsets after its position, as found at startup. While there are any, no position is
        #: stored: the next start has to find them, too.
        self._done: dict[int, set[int]] = {}
        #: The index of the level that comes first in the next pass.
        self._first = 0
        self._recover()
        #: By level, the offset before which waiting messages are moved to the timer topic.
        self._in_the_way: dict[int, int] = {}

    @property
    def levels(self) -> int:
        """Return the number of levels in the table."""
        return self._tables.levels

    def delay_ms(self, level: int) -> int:
        """Return how long a message that enters that level now waits, in milliseconds."""
        return self._tables.delay_ms(level - 1)

    @property
    def waiting(self) -> int:
        """Return how many messages wait in all levels."""
        count = 0
        for level in self._due_times:
            with contextlib.suppress(QueueNotFound):
                low, end = self._low(level), self._store.max_offset(SCHEDULE_TOPIC, level - 1, written=True)
                count += max(0, end - max(low, self._begin(level)))
        return count

    def bounds(self, level: int) -> tuple[int, int]:
        """Return the offset of a level's first waiting message, and its queue's end.

        Raise QueueNotFound if nothing was ever delayed by that level.
        """
        begin = max(self._low(level), self._begin(level))
        return begin, self._store.max_offset(SCHEDULE_TOPIC, level - 1, written=True)

    def count_steps(self, topic: str) -> Steps[int]:
        """Return how many messages wait in all levels for a topic, in steps."""
        count = 0
        for level in self._due_times:
            try:
                at, end = self.bounds(level)
            except QueueNotFound:
                continue
            while at < end:
                yield None
                try:
                    with self._store.read(
                        SCHEDULE_TOPIC, level - 1, at, _COUNTED_AT_ONCE, _COUNTED_BYTES, written=True
                    ) as lease:
                        column = properties_of_records(lease.records, lease.sizes).last(properties.REAL_TOPIC)
                        count += pc.sum(pc.equal(column, topic)).as_py() or 0
                        at = lease.next_offset
                except StoreCorrupt:
                    at += 1
                except OffsetOutOfRange as error:  # expired between two steps
                    at = max(at + 1, error.min_offset)
        return count

    def defer(self, records: memoryview, sizes: npt.NDArray[np.int32], topic_queue: tuple[str, int]) -> RecordPositions:
        """Store records of `topic_queue` in the delay levels of their DELAY properties."""
        waiting, queue_ids = [], []
        for record in _decoded(records, sizes):
            level, copy = self.defer_record(record, topic_queue)
            queue_ids.append(level - 1)
            waiting.append(copy)
        result = self._append(*join(waiting), *((SCHEDULE_TOPIC, queue_id) for queue_id in set(queue_ids)))
        return RecordPositions(
            SCHEDULE_TOPIC, np.array(queue_ids, np.int32), result.queue_offsets, result.physical_offsets
        )

    def defer_record(self, record: Record, topic_queue: tuple[str, int]) -> tuple[int, bytes]:
        """Return a record's delay level, from its DELAY property, and its waiting copy.

        Raises:
            InvalidInput: the record is of another queue than `topic_queue`, or has no valid level.
            MessageIllegal: its properties leave no room for those of its copies.
        """
        if (record.topic, record.queue_id) != topic_queue:
            raise InvalidInput("records", f"records of topic {topic_queue[0]}, queue {topic_queue[1]}", record.topic)
        level = min(_level(record), self.levels)
        check_properties_size(waiting_properties(record.properties, record.topic, record.queue_id, level))
        return level, self.waiting_copy(record, record.topic, record.queue_id, level)

    def waiting_copy(self, record: Record, topic: str, queue_id: int, level: int) -> bytes:
        """Return the record that waits in `level` for (`topic`, `queue_id`).

        Raise InvalidInput if the record cannot be encoded.
        """
        properties = waiting_properties(record.properties, topic, queue_id, level)
        return reencode_trimmed(record, SCHEDULE_TOPIC, level - 1, properties, DROPPABLE_WAITING)

    def redirect_delayed(self, draft: InboundMessage) -> None:
        """Redirect a draft with a delay level to the schedule topic.

        A delivery time that the draft also has is removed. Raise MessageIllegal if its properties leave no room for
        those of its copies.
        """
        level = min(delay_level(draft.properties), self.levels)
        properties = draft.properties
        for name in TIMER_NAMES:
            properties.pop(name, None)
        properties |= waiting_properties(properties, draft.topic, draft.queue_id, level)
        check_properties_size(properties)
        draft.topic, draft.queue_id = SCHEDULE_TOPIC, level - 1

    def deliver_due(self) -> DueReport:
        """Deliver due messages to their real queues, at most `_MAX_PER_PASS` in all.

        Levels that had no turn come first in the next pass.
        """
        self._settle()
        self._track_queues()
        now_ms = self._now_ms()
        delivered, lateness_ms, remaining = 0, 0, _MAX_PER_PASS
        next_due_ms: int | None = None
        levels = list(self._due_times)
        for level in (*levels[self._first :], *levels[: self._first]):
            if self._troubles.is_backing_off(level):
                continue
            begin = self._begin(level)
            try:
                if remaining <= 0:
                    count, late_ms, due_ms = 0, 0, self._first_due_ms(level, now_ms)
                else:
                    self._first = (levels.index(level) + 1) % len(levels)
                    count, late_ms, due_ms = self._deliver_level(level, now_ms, remaining)
            except StoreError:
                raise
            except Exception as error:  # noqa: BLE001 - a failure of one level must not stop the others
                self._troubles.failed(level, f"delivering delay level {level}", error, _log)
                continue
            self._troubles.succeeded(level)
            delivered += count
            remaining -= max(0, self._begin(level) - begin)
            lateness_ms = max(lateness_ms, late_ms)
            if due_ms is not None and (next_due_ms is None or due_ms < next_due_ms):
                next_due_ms = due_ms
        if self._store.max_physical_offset - self._store.delay_offsets.log_end >= _NOTE_BYTES:
            self._persist_recovered()
        return DueReport(delivered, next_due_ms, lateness_ms)

    def _track_queues(self) -> None:
        """Also serve queues of levels that the table had earlier.

        A queue may appear while the broker runs: its first rows may have been staged before, and are committed now.
        """
        for queue_id in self._store.queues(SCHEDULE_TOPIC):
            if queue_id + 1 not in self._due_times:
                self._due_times[queue_id + 1] = DueTimes()

    def _first_due_ms(self, level: int, now_ms: int) -> int | None:
        """Return when the first message of a level is due, or None if none waits."""
        due_ms = self._waiting(level, self._begin(level), 1, now_ms)[2]
        return int(due_ms[0]) if len(due_ms) else None

    def _deliver_level(self, level: int, now_ms: int, most: int) -> tuple[int, int, int | None]:
        """Deliver at most `most` due messages of one level.

        Messages that would delay later ones are first moved to the timer topic instead.

        Returns:
            (delivered; lateness of the latest in ms; due time of the next that waits, in ms since the epoch).
        """
        if level not in self._in_the_way:
            self._in_the_way[level] = self._longer_than_new_ones(level)
        if self._begin(level) < self._in_the_way[level]:
            self._move(level, self._in_the_way[level], most, _BYTES_A_STEP)
            return 0, 0, now_ms
        begin, _, due_ms = self._waiting(level, self._begin(level), most + 1, now_ms)
        if not len(due_ms):
            return 0, 0, None
        waits = due_ms > now_ms
        count = min(most, int(np.argmax(waits)) if waits.any() else len(due_ms))
        if count:
            self._deliver(level, begin, count)
        late_ms = max(0, now_ms - int(due_ms[:count].min())) if count else 0
        return count, late_ms, int(due_ms[count]) if count < len(due_ms) else None

    def _begin(self, level: int) -> int:
        """Return the offset of the first waiting message of a level."""
        place = self._places.get(level)
        return (self._store.delay_offsets.get(level) or 0) if place is None else place

    def _waiting(
        self, level: int, begin: int, most: int, now_ms: int
    ) -> tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the waiting entries from `begin` on.

        The result is the offset of the first, their physical offsets, and their due times.
        """
        topic_queue = SCHEDULE_TOPIC, level - 1
        try:
            low = self._store.min_offset(*topic_queue)
            if begin < low:
                self._report_lost(level, begin, low)
                begin = low
            places, _, stored_due_ms = self._store.entries(*topic_queue, begin, most)
            end = self._store.max_offset(*topic_queue)
        except QueueNotFound:
            return begin, np.empty(0, np.int64), np.empty(0, np.int64)
        delays_ms = self._tables.delays_ms(level - 1, places)
        return begin, places, self._due_times[level].of(begin, stored_due_ms, delays_ms, end, now_ms)

    def _report_lost(self, level: int, begin: int, low: int) -> None:
        """Report the lost messages at begin..low-1 of a level, and skip them.

        Their log files were deleted.
        """
        self._set_aside_lost(level, begin, low)
        self._passed(level, low)

    def _set_aside_lost(self, level: int, begin: int, low: int) -> None:
        _log.error("%d messages of delay level %d were deleted with their log files", low - begin, level)
        locations = [
            MessageLocation(SCHEDULE_TOPIC, level - 1, offset) for offset in range(max(begin, low - _MAX_REPORTED), low)
        ]
        self._copying.quarantine(CopyPurpose(LEVEL, str(level)), locations, "its log file was deleted")

    # -- to the timers -------------------------------------------------------------------------------------------

    def first_log_position(self) -> int | None:
        """Return the physical offset of the first waiting message of all levels, or None."""
        found = map(self._first_place, self._due_times)
        return min((place for place in found if place is not None), default=None)

    def _first_place(self, level: int) -> int | None:
        places = self._waiting(level, self._begin(level), 1, self._now_ms())[1]
        return int(places[0]) if len(places) else None

    def move_to_timers(self, place: int, most: int, max_bytes: int) -> None:
        """Move messages that lie before `place` of the log to the timer topic.

        At most `most` messages of each level are moved. Raise StoreFull or StoreFailed if it was not done; the caller
        has to try again.
        """
        self._settle()
        for level in self._due_times:
            begin, places, _ = self._waiting(level, self._begin(level), most, self._now_ms())
            within = int(np.argmax(np.append(places >= place, True)))
            if within:
                self._move(level, begin + within, most, max_bytes)

    def _longer_than_new_ones(self, level: int) -> int:
        """Return the offset after the last entry that is due later than a new one.

        Such entries exist if the table of levels was changed.
        """
        if level > self.levels:
            return 0
        now_ms, found = self._now_ms(), 0
        new_ms = now_ms + self._tables.delay_ms(level - 1)
        at = self._begin(level)
        while True:
            begin, places, due_ms = self._waiting(level, at, _MAX_PER_PASS, now_ms)
            later = np.flatnonzero((places < self._tables.since) & (due_ms > new_ms))
            found = begin + int(later[-1]) + 1 if len(later) else found
            if not len(places) or places[-1] >= self._tables.since:
                return found
            at = begin + len(places)

    def _move(self, level: int, end: int, most: int, max_bytes: int) -> None:
        """Move the first waiting messages of a level, up to `end`, to the timer topic."""
        begin, _, due_ms = self._waiting(level, self._begin(level), min(most, end - self._begin(level)), self._now_ms())

        def copy(record: Record) -> tuple[bytes, tuple[str, int]]:
            topic_of_waiting(self._store, record)
            due = int(due_ms[record.queue_offset - begin])
            properties = moved_properties(record.properties, due, f"{level}:{record.queue_offset}")
            return reencode_trimmed(record, *TIMER_QUEUE, properties, DROPPABLE_MOVED), TIMER_QUEUE

        self._copy(level, begin, begin + len(due_ms), max_bytes, copy)

    # -- copies --------------------------------------------------------------------------------------------------

    def _deliver(self, level: int, begin: int, count: int) -> None:
        self._copy(level, begin, begin + count, _BYTES_A_STEP, lambda record: self._delivered_copy(record, level))

    def _copy(
        self,
        level: int,
        begin: int,
        end: int,
        max_bytes: int,
        copy: Callable[[Record], tuple[bytes, tuple[str, int]]],
    ) -> None:
        """Store a copy of each message at begin..end-1, or quarantine it, and advance."""
        topic_queue, duty = (SCHEDULE_TOPIC, level - 1), CopyPurpose(LEVEL, str(level))

        offset = begin
        while offset < end:
            records, following = self._copying.read(duty, topic_queue, offset, end - offset, max_bytes)
            if done := self._done.get(level):
                records = [record for record in records if record.queue_offset not in done]
            for part in self._copying.store(duty, self._copying.make(duty, records, copy)):
                self._passed(level, part[-1].original.queue_offset + 1)
            offset = following
            self._passed(level, offset)

    def _delivered_copy(self, record: Record, level: int) -> tuple[bytes, tuple[str, int]]:
        """Return the copy of a due message, and its real queue.

        If its topic no longer has that queue, the copy goes to one of the existing queues.
        """
        config = topic_of_waiting(self._store, record)
        topic = config.name
        queues = max(1, config.read_queues, config.write_queues)
        queue_id = parse_queue_id(record.properties.get(properties.REAL_QID)) % queues
        copied = {**record.properties, DELIVERED_FROM: f"{level}:{record.queue_offset}"}
        return reencode_trimmed(record, topic, queue_id, copied, DROPPABLE_DELIVERED), (topic, queue_id)

    def _passed(self, level: int, offset: int) -> None:
        """Record that all messages before `offset` are delivered or quarantined."""
        self._places[level] = offset
        if level in self._done:
            self._done[level] = {each for each in self._done[level] if each >= offset}
            if not self._done[level]:
                del self._done[level]
        self._settle()

    def _settle(self) -> None:
        """Store the positions of the levels.

        If StoreFull or StoreFailed is raised, nothing may be delivered before a call succeeds.
        """
        if self._done or not self._places:
            return
        log_end = self._store.max_physical_offset
        if len(self._places) > 1:  # after a kill between two commits, a start must find the copies of all of them
            self._store.flush()
            log_end = self._store.delay_offsets.log_end
        for level, offset in list(self._places.items()):
            self._store.delay_offsets.commit(level, offset, log_end)
            del self._places[level]

    def close(self) -> None:
        """Store that all copies are known, so that the next start need not search.

        The store is closed afterwards. If StoreFull or StoreFailed is raised, the next start searches.
        """
        self._settle()
        self._persist_recovered()

    def _persist_recovered(self) -> None:
        """Store that all copies in the log are known, if that is the case.

        A level that has delivered nothing yet gets a position, too: without one, a start would search from its first
        message on. While only `_done` knows of some copies, nothing is stored: the next start finds them. Raise
        StoreFull or StoreFailed if it could not be stored.
        """
        if self._places or self._done:
            return
        progress, log_end = self._store.delay_offsets, self._store.max_physical_offset
        for level in self._due_times:
            if progress.get(level) is None and self._has_queue(level):
                progress.commit(level, self._begin(level), progress.log_end)
        progress.advance_log_end(log_end)

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    def _recover(self) -> None:
        """Restore which messages were delivered without a stored position.

        That happens after a kill, or if stored positions were lost.
        """
        progress, start = self._store.delay_offsets, self._unknown_from()
        if start < self._store.max_physical_offset:
            found = itertools.chain(find_delivered_copies(self._store, start), find_moved_copies(self._store, start))
            for origin in (copy.origin for copy in found):
                if origin.level:
                    self._done.setdefault(origin.level, set()).add(origin.offset)
        for level in self._due_times:
            begin, low = self._begin(level), self._low(level)
            if begin < low:
                self._set_aside_lost(level, begin, low)
                self._places[level] = low
        for level in {*self._done, *self._places}:
            place = max(self._begin(level), self._low(level))
            done = {offset for offset in self._done.pop(level, ()) if offset >= place}
            while place in done:
                done.remove(place)
                place += 1
            progress.commit(level, place, start)  # copies that a start finds in the log cannot be lost any more
            self._places.pop(level, None)
            if done:
                self._done[level] = done

    def _unknown_from(self) -> int:
        """Return from where on the log may have copies that the positions do not cover.

        A copy lies after the record that it was made from. If its level has a stored position, it also lies after the
        end of the log at the newest commit.
        """
        progress, found = self._store.delay_offsets, self._store.max_physical_offset
        for level in self._due_times:
            is_known = progress.get(level) is not None
            if not is_known and (low := self._low(level)):
                self._places[level] = low  # earlier messages may have been delivered
            # Do not use `_first_place`, which skips lost messages and stores that all copies are known.
            places = self._waiting(level, max(self._begin(level), self._low(level)), 1, self._now_ms())[1]
            if len(places):
                found = min(found, max(int(places[0]), progress.log_end if is_known else 0))
        return found

    def _low(self, level: int) -> int:
        return self._store.min_offset(SCHEDULE_TOPIC, level - 1) if self._has_queue(level) else 0

    def _has_queue(self, level: int) -> bool:
        return level - 1 in self._store.queues(SCHEDULE_TOPIC)


def waiting_properties(source: Mapping[str, str], topic: str, queue_id: int, level: int) -> dict[str, str]:
    """Return the properties of a message that waits in `level` for (`topic`, `queue_id`)."""
    retained = {name: value for name, value in source.items() if name != DELIVERED_FROM}
    return retained | {
        properties.DELAY: str(level),
        properties.REAL_TOPIC: topic,
        properties.REAL_QID: str(queue_id),
    }


def _decoded(records: memoryview, sizes: npt.NDArray[np.int32]) -> Iterable[Record]:
    position = 0
    for size in sizes.tolist():
        yield decode(records, position, check_crc=False)
        position += size


def _level(record: Record) -> int:
    text = record.properties.get(properties.DELAY, "")
    if not text.isdecimal() or len(text) > _MAX_LEVEL_DIGITS or int(text) < 1:
        raise InvalidInput("delay_level", "a whole number, at least 1", text)
    return int(text)
