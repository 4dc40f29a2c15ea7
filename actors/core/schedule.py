"""Delayed messages of the fixed levels: into the schedule topic, and out of it when they are due.

Level n waits in queue n - 1 of SCHEDULE_TOPIC_XXXX, whose queue entries carry the due time in place of a tags code. The
real topic and queue wait in REAL_TOPIC and REAL_QID, as in RocketMQ.

Delivery is once, also over SIGKILL. A delivered copy names the entry that it was made from (`DELIVERED_FROM`), the
position of each level is journaled after its copies are in the log, and a start looks through the log behind the
last journaled position for copies that the journal had not reached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from raymq.actors.core.delivered import delivered_since
from raymq.actors.core.draft import TIMER_NAMES, Draft, delay_level
from raymq.actors.core.due_times import DueTimes
from raymq.actors.core.rewriting import Append, encode_again, join
from raymq.actors.naming import SCHEDULE_TOPIC
from raymq.actors.protocol import DueReport, Placed
from raymq.storage import delay_levels, properties
from raymq.storage.errors import InvalidInput, QueueNotFound
from raymq.storage.record import Record, decode
from raymq.storage.store import Store

#: Property of a delivered copy: "<level>:<offset in its schedule queue>". Hidden from users.
DELIVERED_FROM = properties.DELIVERED_FROM
#: One pass takes at most this many messages of a level, so that it never holds the loop for long.
_MAX_PER_PASS = 1_000


class Schedule:
    """The delay levels of one broker. `clock` is wall time without steps, in seconds: `SteadyClock`."""

    def __init__(self, store: Store, clock: Callable[[], float], append: Append) -> None:
        self._store = store
        self._clock = clock
        self._append = append
        self._delays_ms = delay_levels.parse(store.config.delay_levels)
        self._due_times = [DueTimes(delay_ms) for delay_ms in self._delays_ms]
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
            waiting.append(self.waiting_copy(record, record.topic, record.queue_id, level))
        result = self._append(*join(waiting), *((SCHEDULE_TOPIC, queue_id) for queue_id in set(queue_ids)))
        return Placed(SCHEDULE_TOPIC, np.array(queue_ids, np.int32), result.queue_offsets, result.physical_offsets)

    def waiting_copy(self, record: Record, topic: str, queue_id: int, level: int) -> bytes:
        """The record that waits `level` for (`topic`, `queue_id`)."""
        kept = dict(record.properties)
        kept.pop(DELIVERED_FROM, None)
        kept[properties.DELAY] = str(level)
        kept[properties.REAL_TOPIC] = topic
        kept[properties.REAL_QID] = str(queue_id)
        return encode_again(record, SCHEDULE_TOPIC, level - 1, kept)

    def detour(self, draft: Draft) -> None:
        """Make a draft with a delay level wait for its topic and queue. A time that it names counts no more."""
        level = min(delay_level(draft.properties), self.levels)
        told = draft.properties
        for name in TIMER_NAMES:
            told.pop(name, None)
        told[properties.DELAY] = str(level)
        told[properties.REAL_TOPIC] = draft.topic
        told[properties.REAL_QID] = str(draft.queue_id)
        draft.topic, draft.queue_id = SCHEDULE_TOPIC, level - 1

    def deliver_due(self) -> DueReport:
        """Put every message whose time has come into its real queue, at most `_MAX_PER_PASS` of a level."""
        now_ms = int(self._clock() * 1000)
        delivered, lateness_ms = 0, 0
        next_due_ms: int | None = None
        for level in range(1, self.levels + 1):
            count, late_ms, due_ms = self._deliver_level(level, now_ms)
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
        due_ms = self._due_times[level - 1].of(begin, due_ms, end, now_ms)
        waits = due_ms > now_ms
        count = int(np.argmax(waits)) if waits.any() else len(due_ms)
        if count:
            self._deliver(level, begin, count)
        late_ms = max(0, now_ms - int(due_ms[:count].min())) if count else 0
        return count, late_ms, int(due_ms[count]) if count < len(due_ms) else None

    def _deliver(self, level: int, begin: int, count: int) -> None:
        copies: list[bytes] = []
        lanes: set[tuple[str, int]] = set()
        offset = begin
        while offset < begin + count:
            with self._store.read(SCHEDULE_TOPIC, level - 1, offset, begin + count - offset, 4 << 20) as lease:
                for record in lease.messages():
                    topic = record.properties.get(properties.REAL_TOPIC, "")
                    queue_id = int(record.properties.get(properties.REAL_QID, 0))
                    if self._store.topic_configs.get(topic) is not None:  # deleted meanwhile: nobody waits for it
                        kept = {**record.properties, DELIVERED_FROM: f"{level}:{record.queue_offset}"}
                        copies.append(encode_again(record, topic, queue_id, kept))
                        lanes.add((topic, queue_id))
                offset = lease.next_offset
        if copies:
            self._append(*join(copies), *lanes, again=True)
        self._store.delay_progress.commit(level, begin + count, self._store.max_physical_offset)

    def _recover(self) -> None:
        """Move each level's position past what was delivered and not journaled before a crash."""
        if self._store.recovery.clean or SCHEDULE_TOPIC not in self._store.topics():
            return
        start = self._store.delay_progress.log_end
        for origin in (copy.origin for copy in delivered_since(self._store, start)):
            if origin.level and origin.offset >= (self._store.delay_progress.get(origin.level) or 0):
                self._store.delay_progress.commit(origin.level, origin.offset + 1, start)


def _decoded(records: memoryview, sizes: npt.NDArray[np.int32]) -> Iterable[Record]:
    position = 0
    for size in sizes.tolist():
        yield decode(records, position)
        position += size


def _level(record: Record) -> int:
    text = record.properties.get(properties.DELAY, "")
    if not text.isdecimal() or int(text) < 1:
        raise InvalidInput("delay_level", "a whole number, at least 1", text)
    return int(text)
