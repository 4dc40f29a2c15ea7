"""Delayed messages of the fixed levels: into the schedule topic, and out of it when they are due.

Level n waits in queue n - 1 of SCHEDULE_TOPIC_XXXX, whose queue entries carry the due time in place of a tags code. The
real topic and queue wait in REAL_TOPIC and REAL_QID, as in RocketMQ.

Delivery is once, also over SIGKILL. A delivered copy names the entry that it was made from (`DELIVERED_FROM`), the
position of each level is journaled after its copies are in the log, and a start looks through the log behind the
last journaled position for copies that the journal had not reached.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from raymq.actors.core.copying import LEVEL, Copying, Duty, Made
from raymq.actors.core.delivered import delivered_since
from raymq.actors.core.draft import TIMER_NAMES, Draft, delay_level
from raymq.actors.core.due_times import DueTimes
from raymq.actors.core.rewriting import (
    SPARE_DELIVERED,
    SPARE_WAITING,
    Append,
    check_room,
    encode_fitting,
    join,
    queue_number,
)
from raymq.actors.errors import TopicNotFound
from raymq.actors.naming import SCHEDULE_TOPIC, UNSENDABLE_TOPICS
from raymq.actors.protocol import DueReport, Placed
from raymq.storage import delay_levels, properties
from raymq.storage.errors import InvalidInput, QueueNotFound, StoreError
from raymq.storage.record import Record, decode
from raymq.storage.store import AppendResult, Store

#: Property of a delivered copy: "<level>:<offset in its schedule queue>". Hidden from users.
DELIVERED_FROM = properties.DELIVERED_FROM
#: One pass takes at most this many messages of a level, so that it never holds the loop for long.
_MAX_PER_PASS = 1_000
#: So much is read, copied and appended together, one longer message apart.
_BYTES_A_STEP = 4 << 20
_MAX_LEVEL_DIGITS = 9
#: Of a level that the table has no more nobody knows the delay: what waits there is due as its entry says.
_ANY_DELAY_MS = 1 << 60
_log = logging.getLogger(__name__)


class Schedule:
    """The delay levels of one broker. `clock` is wall time without steps, in seconds: `SteadyClock`."""

    def __init__(self, store: Store, clock: Callable[[], float], append: Append, copying: Copying) -> None:
        self._store = store
        self._clock = clock
        self._append = append
        self._copying = copying
        self._delays_ms = delay_levels.parse(store.config.delay_levels)
        self._due_times = {level: DueTimes(delay_ms) for level, delay_ms in enumerate(self._delays_ms, 1)}
        for queue_id in self._store.queues(SCHEDULE_TOPIC):  # also those of levels that the table had once
            self._due_times.setdefault(queue_id + 1, DueTimes(_ANY_DELAY_MS))
        self._recover()

    @property
    def levels(self) -> int:
        """How many levels the table has."""
        return len(self._delays_ms)

    def defer(self, records: memoryview, sizes: npt.NDArray[np.int32], lane: tuple[str, int]) -> Placed:
        """Store records of `lane` that carry a DELAY property so that they come at their time."""
        waiting, queue_ids = [], []
        for record in _decoded(records, sizes):
            if (record.topic, record.queue_id) != lane:
                raise InvalidInput("records", f"records of topic {lane[0]}, queue {lane[1]}", record.topic)
            level = min(_level(record), self.levels)
            queue_ids.append(level - 1)
            check_room(waiting_properties(record.properties, record.topic, record.queue_id, level))
            waiting.append(self.waiting_copy(record, record.topic, record.queue_id, level))
        result = self._append(*join(waiting), *((SCHEDULE_TOPIC, queue_id) for queue_id in set(queue_ids)))
        return Placed(SCHEDULE_TOPIC, np.array(queue_ids, np.int32), result.queue_offsets, result.physical_offsets)

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
        """Put every message whose time has come into its real queue, at most `_MAX_PER_PASS` of a level."""
        now_ms = int(self._clock() * 1000)
        delivered, lateness_ms = 0, 0
        next_due_ms: int | None = None
        for level in self._due_times:
            try:
                count, late_ms, due_ms = self._deliver_level(level, now_ms)
            except StoreError:
                raise
            except Exception:  # noqa: BLE001 - one level's trouble is not that of the others
                _log.exception("delay level %d could not be delivered; it is tried again", level)
                continue
            delivered += count
            lateness_ms = max(lateness_ms, late_ms)
            if due_ms is not None and (next_due_ms is None or due_ms < next_due_ms):
                next_due_ms = due_ms
        return DueReport(delivered, next_due_ms, lateness_ms)

    def _deliver_level(self, level: int, now_ms: int) -> tuple[int, int, int | None]:
        """(delivered, lateness of the latest, due time of the next that waits)."""
        begin = self._store.delay_progress.get(level) or 0
        try:
            begin = max(begin, self._store.min_offset(SCHEDULE_TOPIC, level - 1))
            _, _, due_ms = self._store.entries(SCHEDULE_TOPIC, level - 1, begin, _MAX_PER_PASS)
        except QueueNotFound:
            return 0, 0, None
        if not len(due_ms):
            return 0, 0, None
        end = self._store.max_offset(SCHEDULE_TOPIC, level - 1)
        due_ms = self._due_times[level].of(begin, due_ms, end, now_ms)
        waits = due_ms > now_ms
        count = int(np.argmax(waits)) if waits.any() else len(due_ms)
        if count:
            self._deliver(level, begin, count)
        late_ms = max(0, now_ms - int(due_ms[:count].min())) if count else 0
        return count, late_ms, int(due_ms[count]) if count < len(due_ms) else None

    def _deliver(self, level: int, begin: int, count: int) -> None:
        lane, duty = (SCHEDULE_TOPIC, level - 1), Duty(LEVEL, str(level))

        def copy(record: Record) -> tuple[bytes, tuple[str, int]]:
            return self._delivered_copy(record, level)

        def stored(part: Sequence[Made], _: AppendResult) -> None:
            self._passed(level, part[-1].original.queue_offset + 1)

        offset = begin
        while offset < begin + count:
            records, following = self._copying.read(duty, lane, offset, begin + count - offset, _BYTES_A_STEP)
            self._copying.store(duty, self._copying.make(duty, records, copy), stored)
            offset = following
            self._passed(level, offset)

    def _delivered_copy(self, record: Record, level: int) -> tuple[bytes, tuple[str, int]]:
        """The copy of a message whose time has come, and the queue that it is meant for.

        One for a queue that its topic had, and has no more, comes to one of those that there are.
        """
        topic = record.properties.get(properties.REAL_TOPIC, "")
        config = self._store.topic_configs.get(topic)
        if config is None or topic in UNSENDABLE_TOPICS:
            raise TopicNotFound(f"its topic {topic!r} is gone")
        queues = max(1, config.read_queues, config.write_queues)
        queue_id = queue_number(record.properties.get(properties.REAL_QID)) % queues
        kept = {**record.properties, DELIVERED_FROM: f"{level}:{record.queue_offset}"}
        return encode_fitting(record, topic, queue_id, kept, SPARE_DELIVERED), (topic, queue_id)

    def _passed(self, level: int, offset: int) -> None:
        """All before that offset is delivered, or set aside."""
        self._store.delay_progress.commit(level, offset, self._store.max_physical_offset)

    def _recover(self) -> None:
        """Move each level's position past what was delivered and not journaled before a crash."""
        if self._store.recovery.clean or SCHEDULE_TOPIC not in self._store.topics():
            return
        start = self._store.delay_progress.log_end
        for origin in (copy.origin for copy in delivered_since(self._store, start)):
            if origin.level and origin.offset >= (self._store.delay_progress.get(origin.level) or 0):
                self._store.delay_progress.commit(origin.level, origin.offset + 1, start)


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
        yield decode(records, position)
        position += size


def _level(record: Record) -> int:
    text = record.properties.get(properties.DELAY, "")
    if not text.isdecimal() or len(text) > _MAX_LEVEL_DIGITS or int(text) < 1:
        raise InvalidInput("delay_level", "a whole number, at least 1", text)
    return int(text)
