"""Delayed messages of the fixed levels: into the schedule topic, and out of it when they are due.

Level n waits in queue n - 1 of SCHEDULE_TOPIC_XXXX, whose queue entries carry the due time in place of a tags code. The
real topic and queue wait in REAL_TOPIC and REAL_QID, as in RocketMQ.

The order of a queue is that of due times as long as the table of levels is the same. What would hold up others after
it was changed, and what waits in log files that are about to go, moves: it waits for its time as a timer does from then
on, and is passed over here.

Delivery is once, also over SIGKILL. A delivered copy names the entry that it was made from (`DELIVERED_FROM`), the
place of each level is journaled after its copies are in the log, and a start looks through the log for copies of which
the journal says nothing. Each of these speaks for one entry alone: others before it are delivered all the same.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from raymq.actors.broker.core.appending.inbound_message import TIMER_NAMES, Draft, delay_level
from raymq.actors.broker.core.copies.copying import LEVEL, Copying, Duty, Made, Place
from raymq.actors.broker.core.copies.rewriting import (
    SPARE_DELIVERED,
    SPARE_MOVED,
    SPARE_WAITING,
    Append,
    check_room,
    encode_fitting,
    join,
    queue_number,
)
from raymq.actors.broker.core.delay.delivered import delivered_since, moved_since
from raymq.actors.broker.core.delay.due_times import DueTimes
from raymq.actors.broker.core.delay.meant_for import waits_since
from raymq.actors.broker.core.delay.timer_records import TIMER_QUEUE, moved_properties
from raymq.actors.broker.core.duty_troubles import PartTroubles
from raymq.actors.errors import TopicNotFound
from raymq.actors.naming import UNSENDABLE_TOPICS
from raymq.actors.protocol import DueReport, Placed
from raymq.storage.delay_levels import SCHEDULE_TOPIC
from raymq.storage.errors import InvalidInput, OffsetOutOfRange, QueueNotFound, StoreCorrupt, StoreError
from raymq.storage.records import property_names as properties
from raymq.storage.records.property_columns import properties_of_records
from raymq.storage.records.record import Record, decode
from raymq.storage.steps import Steps
from raymq.storage.store import AppendResult, Store
from raymq.storage.tables.topic_config import TopicConfig

#: Property of a delivered copy: "<level>:<offset in its schedule queue>". Hidden from users.
DELIVERED_FROM = properties.DELIVERED_FROM
#: One pass takes at most this many messages, of all levels together, so that it never holds the loop for long.
_MAX_PER_PASS = 1_000
#: So much is read, copied and appended together, one longer message apart.
_BYTES_A_STEP = 4 << 20
_MAX_LEVEL_DIGITS = 9
#: When the log has grown by so much it is written down that all copies in it are known: a start after a kill looks
#: through no more than that and what was delivered since, however much waits.
_NOTE_BYTES = 16 << 20
#: So many waiting messages are counted in a step.
_COUNTED_AT_ONCE = 4_096
_COUNTED_BYTES = 8 << 20
#: Of the messages that went with their log files at most so many are set aside one by one.
_MOST_TOLD = 10_000
_log = logging.getLogger(__name__)


class Schedule:
    """The delay levels of one broker. `clock` is wall time without steps, in seconds: `SteadyClock`."""

    def __init__(self, store: Store, clock: Callable[[], float], append: Append, copying: Copying) -> None:
        self._store = store
        self._clock = clock
        self._append = append
        self._copying = copying
        self._troubles = PartTroubles(clock)
        self._tables = store.delay_tables
        self._due_times = {level: DueTimes() for level in range(1, self.levels + 1)}
        self._know_queues()
        #: Up to where levels are delivered, where that is not written down (yet).
        self._places: dict[int, int] = {}
        #: What lies behind a level's place and was delivered, as a start has found. While there is any, no place is
        #: written down: the next start has to find it, too.
        self._done: dict[int, set[int]] = {}
        #: The place among the levels of the one that has its turn first.
        self._first = 0
        self._recover()
        #: What waits before these offsets moves, by level.
        self._in_the_way: dict[int, int] = {}

    @property
    def levels(self) -> int:
        """How many levels the table has."""
        return self._tables.levels

    def delay_ms(self, level: int) -> int:
        """Return how long a message waits that comes into that level now, in milliseconds."""
        return self._tables.delay_ms(level - 1)

    @property
    def waiting(self) -> int:
        """How many messages wait in all levels."""
        count = 0
        for level in self._due_times:
            with contextlib.suppress(QueueNotFound):
                low, end = self._low(level), self._store.max_offset(SCHEDULE_TOPIC, level - 1, written=True)
                count += max(0, end - max(low, self._begin(level)))
        return count

    def counting(self, topic: str) -> Steps[int]:
        """Return how many messages wait in all levels for a topic, in steps."""
        count = 0
        for level in self._due_times:
            try:
                at, end = self._low(level), self._store.max_offset(SCHEDULE_TOPIC, level - 1, written=True)
            except QueueNotFound:
                continue
            at = max(at, self._begin(level))
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

    def defer(self, records: memoryview, sizes: npt.NDArray[np.int32], topic_queue: tuple[str, int]) -> Placed:
        """Store records of `topic_queue` that carry a DELAY property so that they come at their time."""
        waiting, queue_ids = [], []
        for record in _decoded(records, sizes):
            level, copy = self.put_off(record, topic_queue)
            queue_ids.append(level - 1)
            waiting.append(copy)
        result = self._append(*join(waiting), *((SCHEDULE_TOPIC, queue_id) for queue_id in set(queue_ids)))
        return Placed(SCHEDULE_TOPIC, np.array(queue_ids, np.int32), result.queue_offsets, result.physical_offsets)

    def put_off(self, record: Record, topic_queue: tuple[str, int]) -> tuple[int, bytes]:
        """The level that a record of `topic_queue` names by its DELAY property, and the record that waits it.

        Raises:
            InvalidInput: it is of another queue, or names no level.
            MessageIllegal: its properties leave no room for those of its copies.
        """
        if (record.topic, record.queue_id) != topic_queue:
            raise InvalidInput("records", f"records of topic {topic_queue[0]}, queue {topic_queue[1]}", record.topic)
        level = min(_level(record), self.levels)
        check_room(waiting_properties(record.properties, record.topic, record.queue_id, level))
        return level, self.waiting_copy(record, record.topic, record.queue_id, level)

    def waiting_copy(self, record: Record, topic: str, queue_id: int, level: int) -> bytes:
        """The record that waits `level` for (`topic`, `queue_id`); InvalidInput if there can be none."""
        kept = waiting_properties(record.properties, topic, queue_id, level)
        return encode_fitting(record, SCHEDULE_TOPIC, level - 1, kept, SPARE_WAITING)

    def detour(self, draft: Draft) -> None:
        """Make a draft with a delay level wait for its topic and queue. A time that it names counts no more.

        MessageIllegal: its properties leave no room for those of its copies.
        """
        level = min(delay_level(draft.properties), self.levels)
        told = draft.properties
        for name in TIMER_NAMES:
            told.pop(name, None)
        told |= waiting_properties(told, draft.topic, draft.queue_id, level)
        check_room(told)
        draft.topic, draft.queue_id = SCHEDULE_TOPIC, level - 1

    def deliver_due(self) -> DueReport:
        """Put every message whose time has come into its real queue, at most `_MAX_PER_PASS` in all.

        The levels that had no turn then have theirs first in the next pass.
        """
        self._settle()
        self._know_queues()
        now_ms = self._now_ms()
        delivered, lateness_ms, left = 0, 0, _MAX_PER_PASS
        next_due_ms: int | None = None
        levels = list(self._due_times)
        for level in (*levels[self._first :], *levels[: self._first]):
            if self._troubles.rests(level):
                continue
            begin = self._begin(level)
            try:
                if left <= 0:
                    count, late_ms, due_ms = 0, 0, self._first_due_ms(level, now_ms)
                else:
                    self._first = (levels.index(level) + 1) % len(levels)
                    count, late_ms, due_ms = self._deliver_level(level, now_ms, left)
            except StoreError:
                raise
            except Exception as error:  # noqa: BLE001 - one level's trouble is not that of the others
                self._troubles.failed(level, f"delivering delay level {level}", error, _log)
                continue
            self._troubles.succeeded(level)
            delivered += count
            left -= max(0, self._begin(level) - begin)
            lateness_ms = max(lateness_ms, late_ms)
            if due_ms is not None and (next_due_ms is None or due_ms < next_due_ms):
                next_due_ms = due_ms
        if self._store.max_physical_offset - self._store.delay_progress.log_end >= _NOTE_BYTES:
            self._know_all()
        return DueReport(delivered, next_due_ms, lateness_ms)

    def _know_queues(self) -> None:
        """Look after levels that the table had once, too: also where the first rows of one were staged before, and are
        committed now.
        """
        for queue_id in self._store.queues(SCHEDULE_TOPIC):
            if queue_id + 1 not in self._due_times:
                self._due_times[queue_id + 1] = DueTimes()

    def _first_due_ms(self, level: int, now_ms: int) -> int | None:
        """When the first that waits in a level's queue is due; None: nothing waits."""
        due_ms = self._waiting(level, self._begin(level), 1, now_ms)[2]
        return int(due_ms[0]) if len(due_ms) else None

    def _deliver_level(self, level: int, now_ms: int, most: int) -> tuple[int, int, int | None]:
        """(delivered, at most so many; lateness of the latest; due time of the next that waits)."""
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
        """The offset of the first that waits in a level's queue."""
        place = self._places.get(level)
        return (self._store.delay_progress.get(level) or 0) if place is None else place

    def _waiting(
        self, level: int, begin: int, most: int, now_ms: int
    ) -> tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Entries of what waits from offset `begin` on: the first one's offset, their places, when they are due."""
        topic_queue = SCHEDULE_TOPIC, level - 1
        try:
            low = self._store.min_offset(*topic_queue)
            if begin < low:
                self._tell_lost(level, begin, low)
                begin = low
            places, _, told_ms = self._store.entries(*topic_queue, begin, most)
            end = self._store.max_offset(*topic_queue)
        except QueueNotFound:
            return begin, np.empty(0, np.int64), np.empty(0, np.int64)
        delays_ms = self._tables.delays_ms(level - 1, places)
        return begin, places, self._due_times[level].of(begin, told_ms, delays_ms, end, now_ms)

    def _tell_lost(self, level: int, begin: int, low: int) -> None:
        """What waited at begin..low-1 went with its log files: it is passed over."""
        self._set_aside_lost(level, begin, low)
        self._passed(level, low)

    def _set_aside_lost(self, level: int, begin: int, low: int) -> None:
        _log.error("%d messages of delay level %d went with their log files", low - begin, level)
        told = [Place(SCHEDULE_TOPIC, level - 1, offset) for offset in range(max(begin, low - _MOST_TOLD), low)]
        self._copying.refuse(Duty(LEVEL, str(level)), told, "its log file is gone")

    # -- to the timers -------------------------------------------------------------------------------------------

    def first_place(self) -> int | None:
        """The place in the log of the first message that waits a level; None: nothing waits."""
        found = map(self._first_place, self._due_times)
        return min((place for place in found if place is not None), default=None)

    def _first_place(self, level: int) -> int | None:
        places = self._waiting(level, self._begin(level), 1, self._now_ms())[1]
        return int(places[0]) if len(places) else None

    def move_before(self, place: int, most: int, max_bytes: int) -> None:
        """Have what waits before a place of the log wait as timers do, at most `most` messages of each level.

        StoreFull, StoreFailed: it is not done, and to be tried again.
        """
        self._settle()
        for level in self._due_times:
            begin, places, _ = self._waiting(level, self._begin(level), most, self._now_ms())
            within = int(np.argmax(np.append(places >= place, True)))
            if within:
                self._move(level, begin + within, most, max_bytes)

    def _longer_than_new_ones(self, level: int) -> int:
        """Behind the last entry in a level's queue that is due later than one that would come into it now."""
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
        """Store what waits at the first offsets, before `end`, for the timers."""
        begin, _, due_ms = self._waiting(level, self._begin(level), min(most, end - self._begin(level)), self._now_ms())

        def copy(record: Record) -> tuple[bytes, tuple[str, int]]:
            self._check_topic(record)
            due = int(due_ms[record.queue_offset - begin])
            kept = moved_properties(record.properties, due, f"{level}:{record.queue_offset}")
            return encode_fitting(record, *TIMER_QUEUE, kept, SPARE_MOVED), TIMER_QUEUE

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
        """Store a copy of each message at begin..end-1, or set it aside, and pass over it."""
        topic_queue, duty = (SCHEDULE_TOPIC, level - 1), Duty(LEVEL, str(level))

        def stored(part: Sequence[Made], _: AppendResult) -> None:
            self._passed(level, part[-1].original.queue_offset + 1)

        offset = begin
        while offset < end:
            records, following = self._copying.read(duty, topic_queue, offset, end - offset, max_bytes)
            if done := self._done.get(level):
                records = [record for record in records if record.queue_offset not in done]
            self._copying.store(duty, self._copying.make(duty, records, copy), stored)
            offset = following
            self._passed(level, offset)

    def _delivered_copy(self, record: Record, level: int) -> tuple[bytes, tuple[str, int]]:
        """The copy of a message whose time has come, and the queue that it is meant for.

        One for a queue that its topic had, and has no more, comes to one of those that there are.
        """
        config = self._check_topic(record)
        topic = config.name
        queues = max(1, config.read_queues, config.write_queues)
        queue_id = queue_number(record.properties.get(properties.REAL_QID)) % queues
        kept = {**record.properties, DELIVERED_FROM: f"{level}:{record.queue_offset}"}
        return encode_fitting(record, topic, queue_id, kept, SPARE_DELIVERED), (topic, queue_id)

    def _check_topic(self, record: Record) -> TopicConfig:
        """The topic that a waiting message is meant for; TopicNotFound: it is gone, or one made since has its name."""
        topic = record.properties.get(properties.REAL_TOPIC, "")
        config = self._store.topic_configs.get(topic)
        if config is None or topic in UNSENDABLE_TOPICS or record.physical_offset < waits_since(self._store, topic):
            raise TopicNotFound(f"its topic {topic!r} is gone")
        return config

    def _passed(self, level: int, offset: int) -> None:
        """All before that offset is delivered, or set aside."""
        self._places[level] = offset
        if level in self._done:
            self._done[level] = {each for each in self._done[level] if each >= offset}
            if not self._done[level]:
                del self._done[level]
        self._settle()

    def _settle(self) -> None:
        """Write down up to where levels are delivered; StoreFull, StoreFailed: nothing may be delivered before that."""
        if self._done or not self._places:
            return
        log_end = self._store.max_physical_offset
        if len(self._places) > 1:  # a kill between two commits leaves a start with the copies of all of them to find
            self._store.flush()
            log_end = self._store.delay_progress.log_end
        for level, offset in list(self._places.items()):
            self._store.delay_progress.commit(level, offset, log_end)
            del self._places[level]

    def close(self) -> None:
        """Write down that all copies are known, so that the next start has none to look for. The store is closed after.

        StoreFull, StoreFailed: it is not; the next start looks.
        """
        self._settle()
        self._know_all()

    def _know_all(self) -> None:
        """Write down that all copies in the log are known, as far as that is so; StoreFull, StoreFailed: it is not.

        A level that has delivered nothing yet gets its place, too: without one, a start would look from its first
        message on. As long as there are copies that only `_done` knows, nothing is said: the next start finds them.
        """
        if self._places or self._done:
            return
        progress, log_end = self._store.delay_progress, self._store.max_physical_offset
        for level in self._due_times:
            if progress.get(level) is None and self._has_queue(level):
                progress.commit(level, self._begin(level), progress.log_end)
        progress.knows_all_before(log_end)

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    def _recover(self) -> None:
        """Know again what was delivered and is not written down, as after a kill, or if what was written is lost."""
        progress, start = self._store.delay_progress, self._unknown_from()
        if start < self._store.max_physical_offset:
            found = itertools.chain(delivered_since(self._store, start), moved_since(self._store, start))
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
            progress.commit(level, place, start)  # of what a start finds in the log nothing can be lost
            self._places.pop(level, None)
            if done:
                self._done[level] = done

    def _unknown_from(self) -> int:
        """From where on the log may have copies that the levels' places do not tell of.

        A copy lies behind what it is made from; and behind the log's end at the newest commit, if its level had one.
        """
        progress, found = self._store.delay_progress, self._store.max_physical_offset
        for level in self._due_times:
            is_known = progress.get(level) is not None
            if not is_known and (low := self._low(level)):
                self._places[level] = low  # what it had before that may well have been delivered
            # Not through `_first_place`, which passes over what has gone, and writes down that all copies are known.
            places = self._waiting(level, max(self._begin(level), self._low(level)), 1, self._now_ms())[1]
            if len(places):
                found = min(found, max(int(places[0]), progress.log_end if is_known else 0))
        return found

    def _low(self, level: int) -> int:
        return self._store.min_offset(SCHEDULE_TOPIC, level - 1) if self._has_queue(level) else 0

    def _has_queue(self, level: int) -> bool:
        return level - 1 in self._store.queues(SCHEDULE_TOPIC)


def waiting_properties(told: Mapping[str, str], topic: str, queue_id: int, level: int) -> dict[str, str]:
    """The properties of what waits `level` for (`topic`, `queue_id`)."""
    kept = {name: value for name, value in told.items() if name != DELIVERED_FROM}
    return kept | {
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
