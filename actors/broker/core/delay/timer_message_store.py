"""Store messages with a delivery time, and put them into their real queue when due.

Queue 0 of the timer topic has the waiting messages and the messages that withdraw others. The real topic and queue of a
waiting message and its due time are properties, as in RocketMQ. The timer log has an entry for each record of that
queue, and the wheel has the messages due within the next minute: if there are very many, those that are due first.

A message is delivered once, also over SIGKILL: a delivered copy names the queue offset that it was made from
(`DELIVERED_FROM`, "0:<offset>"), and a start searches the log after the last checkpoint for copies that are missing in
the timer log (`TimerIndexer`). No message is early by the broker's clock: it is due when the clock shows its
millisecond.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raymq.actors.broker.core.appending.inbound_message import InboundMessage
from raymq.actors.broker.core.copies.record_copy import RecordAppender, join, reencode
from raymq.actors.broker.core.copies.republisher import (
    TIMER,
    CopyPurpose,
    CopyRefusal,
    CopyRejected,
    MessageLocation,
    Republisher,
)
from raymq.actors.broker.core.delay.delivery_recovery import find_dequeued, waiting_fingerprint
from raymq.actors.broker.core.delay.recent_recalls import RecentRecalls
from raymq.actors.broker.core.delay.timer_indexer import TimerIndexer
from raymq.actors.broker.core.delay.timer_records import (
    TIMER_QUEUE,
    delete_key,
    due_of,
    numbers,
    origins_of,
    waiting_properties,
)
from raymq.actors.broker.core.delay.timer_wheel import TimerWheel
from raymq.actors.broker.core.delay.topic_incarnation import incarnation_start
from raymq.actors.naming import TIMER_TOPIC, UNSENDABLE_TOPICS
from raymq.actors.protocol import DueReport, RecordPositions
from raymq.actors.recall_handle import RecallHandle
from raymq.storage.cooperative_steps import Steps
from raymq.storage.errors import InvalidInput
from raymq.storage.records import property_names as names
from raymq.storage.records import record_batch
from raymq.storage.records.property_columns import properties_of_batch
from raymq.storage.records.record import Record, decode
from raymq.storage.records.rewrite_destination import rewrite_destinations
from raymq.storage.store import AppendResult, Store
from raymq.storage.timers.timer_entry import (
    ENTRY,
    MIN_KEY,
    NO_ENTRIES,
    Entries,
    EntryKind,
    SortKey,
    key_of,
)

#: The wheel holds what is due within this time.
_NEAR_MS: Final = 60_000
#: One pass delivers at most this many messages, so that it never blocks the event loop for long.
_MAX_PER_PASS: Final = 2_000
_MAX_BYTES_PER_PASS: Final = 8 << 20
#: The wheel is filled up to about this many messages at a time.
_MAX_LOADED: Final = 1 << 14
#: How many entries are counted in one step.
_COUNTED_AT_ONCE: Final = 1 << 14
#: How often one pass loads more entries if those that it finds wait no more.
_LOADS_PER_PASS: Final = 4
#: Later than any due time.
_NEVER_MS: Final = 1 << 62
#: The most digits of a due time in ms.
_MAX_MS_DIGITS: Final = 14
_DUTY: Final = CopyPurpose(TIMER)
#: Paths in a store directory in which a RocketMQ broker has kept timers.
_OF_ROCKETMQ: Final = ("timerwheel", "timerlog", "config/timercheck")


class TimerMessageStore:
    """The waiting timed messages of the broker named `broker`.

    `clock` is wall time in seconds. Used on the broker's event loop.
    """

    def __init__(
        self, broker: str, store: Store, clock: Callable[[], float], append: RecordAppender, copying: Republisher
    ) -> None:
        self._broker = broker
        self._store = store
        self._clock = clock
        self._append = append
        self._copying = copying
        self._indexer = TimerIndexer(store)
        self.log = self._indexer.log
        #: The recalled messages that must not be stored any more; `RecallMessageProcessor` adds them.
        self.recalled = RecentRecalls(clock)
        self._wheel = TimerWheel()
        #: Once anything was loaded, the wheel has all waiting messages before this mark.
        self._loaded: SortKey = (self.log.begin_ms, MIN_KEY)
        self._has_loaded = False
        #: Ended entries that are not in the timer log yet, because the disk was full.
        self._owed: Entries = NO_ENTRIES
        try:
            self._recover()
        except BaseException:
            self.log.close()
            raise

    # -- in ------------------------------------------------------------------------------------------------------

    def defer(self, records: memoryview, sizes: npt.NDArray[np.int32], topic_queue: tuple[str, int]) -> RecordPositions:
        """Store timed records of `topic_queue` in the timer queue until they are due.

        If the times of all of them have passed, they are stored in `topic_queue` at once.

        Raises:
            MessageIllegal: a time is invalid, or the message was recalled meanwhile.
            InvalidInput: records of another queue.
        """
        now_ms = self._now_ms()
        waiting, latest_ms = [], 0
        for record in _decoded(records, sizes):
            due_ms, copy = self.defer_record(record, topic_queue, now_ms)
            latest_ms = max(latest_ms, due_ms)
            waiting.append(copy)
        target, batch = (TIMER_QUEUE, join(waiting)) if latest_ms > now_ms else (topic_queue, (records, sizes))
        result = self._append(*batch, target)
        queue_ids = np.full(len(sizes), target[1], np.int32)
        return RecordPositions(target[0], queue_ids, result.queue_offsets, result.physical_offsets)

    def defer_record(
        self, record: Record, topic_queue: tuple[str, int], now_ms: int | None = None
    ) -> tuple[int, bytes]:
        """Return when a record of `topic_queue` is due, and its waiting copy.

        It raises as `defer`.
        """
        if (record.topic, record.queue_id) != topic_queue:
            raise InvalidInput("records", f"records of topic {topic_queue[0]}, queue {topic_queue[1]}", record.topic)
        due_ms = due_of(record.properties, self._now_ms() if now_ms is None else now_ms)
        if due_ms is None:
            raise InvalidInput("records", "a delivery time or a delay level in every record", record.unique_key)
        self.recalled.check(record.topic, record.unique_key, record.born_timestamp_ms)
        properties = waiting_properties(record.properties, record.topic, record.queue_id, due_ms)
        return due_ms, reencode(record, *TIMER_QUEUE, properties)

    def redirect_delayed(self, draft: InboundMessage) -> None:
        """Redirect a draft with a delivery time to the timer queue, unless it is due.

        Raise MessageIllegal as `defer`.
        """
        self.recalled.check(draft.topic, draft.properties.get(names.UNIQ_KEY), draft.born_timestamp_ms)
        now_ms = self._now_ms()
        due_ms = due_of(draft.properties, now_ms)
        if due_ms is None or due_ms <= now_ms:
            return
        properties = draft.properties
        properties |= waiting_properties(properties, draft.topic, draft.queue_id, due_ms)
        draft.recall_handle = RecallHandle(draft.topic, self._broker, due_ms, properties[names.UNIQ_KEY]).encode()
        draft.topic, draft.queue_id = TIMER_QUEUE

    def index_new_records(self) -> bool:
        """Index new records of the timer queue, and return True if all are indexed.

        One call indexes a limited number of records; very many are left after a start that has to index all of them
        again. Before all are indexed, nothing is delivered, because a later record may withdraw a waiting message.
        """
        new = self._indexer.next_records()
        if new is None:
            return True
        if new.reason:
            self._copying.quarantine(_DUTY, [self._copying.place(TIMER_QUEUE, self.log.enqueued)], new.reason)
        if len(new.parsed.silent):
            self._refuse(new.parsed.silent, "it has no valid delivery time")
        ended = self._indexer.record(new)
        self._load_more(new.parsed.waits)
        self._wheel.discard(ended)
        return self.log.enqueued >= self._indexer.bounds()[1]

    # -- out -----------------------------------------------------------------------------------------------------

    def deliver_due(self) -> DueReport:
        """Deliver due messages to their real queues, within the limit of one pass."""
        self.settle()
        now_ms = self._now_ms()
        if not self.index_new_records():
            return DueReport(0, now_ms, 0)
        self._load(now_ms)
        due = self._wheel.due(now_ms, _MAX_PER_PASS, _MAX_BYTES_PER_PASS)
        if len(due):
            self._deliver(due)
        lateness_ms = max(0, now_ms - int(due["due_ms"][0])) if len(due) else 0
        next_due_ms = self._wheel.next_due_ms
        if next_due_ms is None and self._loaded[0] <= now_ms:  # the wheel is not loaded that far yet
            next_due_ms = self._loaded[0]
        return DueReport(len(due), next_due_ms, lateness_ms)

    def checkpoint(self) -> Callable[[], None] | None:
        """Prepare a checkpoint of the timer log; see `TimerLog.checkpoint`.

        To be called every few seconds; the returned function runs on another thread. If StoreFull or StoreFailed is
        raised, the entries lag behind the log, and the last checkpoint stays in force.
        """
        self.settle()
        self.index_new_records()
        return self._indexer.checkpoint(self._store.max_physical_offset, self.drained_before_ms())

    def close(self) -> None:
        """Write all state to disk, so that the next start has nothing to search for.

        The store is closed afterwards.
        """
        try:
            if (write := self.checkpoint()) is not None:
                write()
        finally:
            self.log.close()

    def count_steps(self) -> Steps[int]:
        """Count the waiting messages, in steps.

        Stored messages that are not indexed yet count as waiting.
        """
        low, high = self._indexer.bounds()
        mark, count = (0, MIN_KEY), max(0, high - max(self.log.enqueued, low))
        while mark < (_NEVER_MS, MIN_KEY):
            found, mark = self.log.waiting(mark, _NEVER_MS, _COUNTED_AT_ONCE)
            count += len(found)
            yield None
        return count

    def drained_before_ms(self) -> int:
        """Return the time before which no due message waits any more."""
        return min(self._now_ms(), self._loaded[0], self._wheel.next_due_ms or _NEVER_MS)

    def _load(self, now_ms: int) -> None:
        """Load the messages due in the next minute into the wheel.

        The wheel takes a limited number of messages.
        """
        self._has_loaded = True
        until_ms = now_ms + _NEAR_MS
        if self._loaded[0] > until_ms + _NEAR_MS:  # the clock was set back: later messages need not be in memory
            self._loaded = (self._loaded[0] if self._wheel.next_due_ms is None else self._wheel.next_due_ms), MIN_KEY
            self._wheel.clear()
        if self._loaded[0] >= now_ms + _NEAR_MS // 2:
            return
        for _ in range(_LOADS_PER_PASS):
            if self._loaded >= (until_ms, MIN_KEY) or len(self._wheel) >= _MAX_LOADED:
                break
            found, self._loaded = self.log.waiting(self._loaded, until_ms, _MAX_LOADED)
            self._wheel.add(found)

    def _load_more(self, entries: Entries) -> None:
        """Add new entries to the wheel that lie within its time range."""
        if not len(entries):
            return
        due_ms, key = entries["due_ms"].astype(np.int64), entries["key"].astype(np.int64)
        if self._has_loaded:
            held_ms, held_key = self._loaded
            self._wheel.add(entries[(due_ms < held_ms) | ((due_ms == held_ms) & (key < held_key))])
        else:  # some may have been delivered before a crash; loading them from the timer log finds out
            self._loaded = min(self._loaded, (int(due_ms.min()), MIN_KEY))

    def _deliver(self, due: Entries) -> None:
        for part, outcome in self._copying.copy_each(due, self._store_copies):
            if isinstance(outcome, CopyRefusal):
                self._drop(part, outcome.reason)
            else:
                self._end(part, EntryKind.DELIVERED, outcome.physical_offsets)

    def _store_copies(self, due: Entries) -> AppendResult:
        sound = self._read(due)
        return self._append(
            *rewrite_destinations(sound.batch, sound.topics, sound.queue_ids, origins_of(due)),
            *set(zip(sound.topics, sound.queue_ids, strict=True)),
            again=True,
        )

    def copy(self, waiting: Entries, store: Callable[[Entries, WaitingRecords], None]) -> None:
        """Pass the records of waiting messages to `store`.

        Messages that cannot be copied are quarantined.
        """
        for part, outcome in self._copying.copy_each(waiting, lambda part: store(part, self._read(part))):
            if isinstance(outcome, CopyRefusal):
                self._drop(part, outcome.reason)

    def _drop(self, entries: Entries, reason: str) -> None:
        """Quarantine messages that cannot be delivered; they wait no more."""
        self._refuse(entries, reason)
        self._end(entries, EntryKind.DROPPED, entries["physical_offset"])

    def _refuse(self, entries: Entries, reason: str) -> None:
        places = [
            MessageLocation(*TIMER_QUEUE, offset, physical, self._copying.message_id(physical))
            for offset, physical in zip(
                entries["queue_offset"].tolist(), entries["physical_offset"].tolist(), strict=True
            )
        ]
        self._copying.quarantine(_DUTY, places, reason)

    def _read(self, entries: Entries) -> WaitingRecords:
        """Return the records of entries, and their real queues.

        Raise CopyRejected if some of them cannot be delivered.
        """
        places, sizes = entries["physical_offset"].astype(np.int64), entries["size"].astype(np.int32)
        lost = (places < self._store.min_physical_offset) | (places + sizes > self._store.max_physical_offset)
        _require(~lost, "it is not in the log", entries)
        try:
            batch = record_batch.parse(self._store.raw_many(places.tolist(), sizes.tolist()), sizes)
        except record_batch.BadRecord as error:
            is_bad = np.arange(len(entries)) == error.index
            _require(~is_bad, f"its record is damaged: {error.reason}", entries)
            raise
        columns = properties_of_batch(batch)
        topics = columns.last(names.REAL_TOPIC).fill_null("").to_pylist()
        queues = {topic: self._queues(topic) for topic in set(topics)}
        room = np.array([queues[topic] for topic in topics])
        since = {topic: incarnation_start(self._store, topic) for topic in queues}
        _require(
            (room > 0) & (places >= np.array([since[topic] for topic in topics])),
            "its topic does not exist any more",
            entries,
        )
        queue_ids = numbers(columns.last(names.REAL_QID).fill_null("0"))
        _require(queue_ids >= 0, f"{names.REAL_QID} is not a queue id", entries)
        return WaitingRecords(batch, topics, (queue_ids % room).tolist())

    def _queues(self, topic: str) -> int:
        """Return how many queues a topic has; 0 if nothing may be delivered to it."""
        config = self._store.topic_configs.get(topic)
        if config is None or topic in UNSENDABLE_TOPICS:
            return 0
        return max(1, config.read_queues, config.write_queues)

    def _end(self, entries: Entries, kind: EntryKind, physical_offsets: npt.ArrayLike) -> None:
        """Record that messages wait no more.

        If the disk is full, it is kept in memory and written later.
        """
        ended = entries.copy()
        ended["kind"] = kind
        ended["physical_offset"] = physical_offsets
        self._owed = np.concatenate([self._owed, ended])
        self._wheel.discard(ended)
        self.settle()

    def settle(self) -> None:
        """Write the ended entries to the timer log.

        If StoreFull or StoreFailed is raised, nothing may be delivered before a call succeeds.
        """
        if len(self._owed):
            self.log.append(self._owed)
            self._owed = NO_ENTRIES

    def _recover(self) -> None:
        """Record copies that were delivered before a crash and that the timer log lacks."""
        searched_to = self.log.log_end
        if searched_to >= self._store.max_physical_offset or TIMER_TOPIC not in self._store.topics():
            return
        while not self._indexer.search():
            pass
        if any((self._store.directory / path).exists() for path in _OF_ROCKETMQ):
            self._take_over(searched_to)

    def _take_over(self, searched_to: int) -> None:
        """End the messages that a RocketMQ broker took out of its own timer files.

        Such a broker may have used the directory meanwhile.
        """
        taken = find_dequeued(self._store, searched_to)
        if (first := next(taken, None)) is None:
            return
        while not self.index_new_records():
            pass
        waiting, _ = self.log.waiting((0, MIN_KEY), _NEVER_MS, _NEVER_MS)
        by_mark: dict[SortKey, list[tuple[int, int]]] = {}
        columns = [waiting[name].tolist() for name in ("due_ms", "key", "queue_offset", "physical_offset")]
        for due_ms, key, offset, waits_at in zip(*columns, strict=True):
            by_mark.setdefault((due_ms, key), []).append((offset, waits_at))
        ended = []
        for sense, place, size in itertools.chain([first], taken):
            [due_ms] = numbers(pa.array([sense.due_ms], pa.string())).tolist()
            key = key_of(delete_key(sense.topic, sense.unique_key))
            for offset, waits_at in by_mark.get((due_ms, key), ()):
                if waits_at < place and waiting_fingerprint(self._store, offset) == sense:
                    ended.append((due_ms, offset, place, key, size, EntryKind.DELIVERED))
        self.log.append(np.array(ended, ENTRY))

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)


def _require(good: npt.NDArray[np.bool_], reason: str, entries: Entries) -> None:
    """Raise CopyRejected unless all entries are good."""
    if not good.all():
        raise CopyRejected(reason, entries[~good], entries[good])


@dataclass(frozen=True, slots=True)
class WaitingRecords:
    """The records of timer entries, with their real topics and queues."""

    batch: record_batch.Batch
    topics: list[str]
    queue_ids: list[int]

    def records(self) -> Iterator[Record]:
        """Return the decoded records."""
        return _decoded(memoryview(self.batch.records), self.batch.sizes)


def _decoded(records: memoryview, sizes: npt.NDArray[np.integer[Any]]) -> Iterator[Record]:
    position = 0
    for size in sizes.tolist():
        yield decode(records, position, check_crc=False)
        position += size
