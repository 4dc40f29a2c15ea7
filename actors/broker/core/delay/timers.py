"""Messages for a chosen time: they wait as records of the timer topic, and are put into their real queue when due.

The timer topic's queue 0 holds what waits (its real topic and queue, and the due time, are properties, as in RocketMQ)
and the messages that withdraw others. From it entries are made in the timer log, and what is due within the next minute
is in the wheel: of very many messages those that are due first.

A message is delivered once, also over SIGKILL: a delivered copy names the queue offset that it was made from
(`DELIVERED_FROM`, "0:<offset>"), and a start looks through the log behind the last checkpoint for copies that the timer
log does not know of. Never early by the broker's clock: a message is due when the clock shows its millisecond.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raymq.actors.broker.core.appending.inbound_message import Draft
from raymq.actors.broker.core.copies.copying import TIMER, Copying, Culprits, Duty, Place, reason_of
from raymq.actors.broker.core.copies.rewriting import Append, encode_again, join
from raymq.actors.broker.core.delay.delivered import delivered_since, dequeued_since, waiting_sense
from raymq.actors.broker.core.delay.meant_for import waits_since
from raymq.actors.broker.core.delay.recalled import Recalled
from raymq.actors.broker.core.delay.timer_records import (
    TIMER_LEVEL,
    TIMER_QUEUE,
    Told,
    delete_key,
    due_of,
    numbers,
    origins_of,
    read_waiting,
    waiting_properties,
)
from raymq.actors.broker.core.delay.timer_wheel import TimerWheel
from raymq.actors.naming import TIMER_TOPIC, UNSENDABLE_TOPICS
from raymq.actors.protocol import DueReport, Placed
from raymq.actors.recall_handle import RecallHandle
from raymq.storage.errors import InvalidInput, QueueNotFound, StoreCorrupt
from raymq.storage.records import batch as record_batch
from raymq.storage.records import property_names as names
from raymq.storage.records.property_columns import properties_of_batch
from raymq.storage.records.record import Record, decode
from raymq.storage.records.rewrite_destination import readdressed
from raymq.storage.steps import Steps
from raymq.storage.store import AppendResult, Store
from raymq.storage.timers.entry import (
    ENTRY,
    HOUR_MS,
    LEAST_KEY,
    NO_ENTRIES,
    Entries,
    EntryKind,
    Mark,
    key_of,
    still_waiting,
)
from raymq.storage.timers.over import Over
from raymq.storage.timers.timer_log import TimerLog

#: The wheel holds what is due within this time.
_NEAR_MS: Final = 60_000
#: One pass delivers at most so many messages, so that it never holds the loop for long.
_MAX_PER_PASS: Final = 2_000
_MAX_BYTES_PER_PASS: Final = 8 << 20
_ABSORB_MESSAGES: Final = 4_096
_ABSORB_BYTES: Final = 8 << 20
#: The wheel is filled up to about so many messages at a time.
_MAX_LOADED: Final = 1 << 14
#: So many entries are counted in one step.
_COUNTED_AT_ONCE: Final = 1 << 14
#: How often one pass looks for more, where what it finds waits no more.
_LOADS_PER_PASS: Final = 4
#: Later than all that may be due.
_NEVER_MS: Final = 1 << 62
#: Of a time in ms that any record waits for.
_MAX_MS_DIGITS: Final = 14
_DUTY: Final = Duty(TIMER)
#: What a store directory has in which a broker of RocketMQ's has kept timers.
_OF_ROCKETMQ: Final = ("timerwheel", "timerlog", "config/timercheck")


class Timers:
    """The waiting messages of the broker of that name. `clock` is wall time in seconds. Used on the broker's loop."""

    def __init__(self, broker: str, store: Store, clock: Callable[[], float], append: Append, copying: Copying) -> None:
        self._broker = broker
        self._store = store
        self._clock = clock
        self._append = append
        self._copying = copying
        self.log = TimerLog(
            store.directory / "raymq" / "timers",
            log_end=store.remains.log_end,
            queue_end=store.remains.max_offset(*TIMER_QUEUE),
            memory_lost=store.remains.memory_lost,
        )
        #: For `Recall`, which withdraws: what is not to be stored any more.
        self.recalled = Recalled(clock)
        self._wheel = TimerWheel()
        #: The wheel holds what waits before this mark, as soon as something was loaded.
        self._loaded: Mark = (self.log.begin_ms, LEAST_KEY)
        self._has_loaded = False
        self._on_disk = OnDisk()
        #: What ended and is not written down yet, because the disk was full.
        self._owed: Entries = NO_ENTRIES
        try:
            self._recover()
        except BaseException:
            self.log.close()
            raise

    # -- in ------------------------------------------------------------------------------------------------------

    def defer(self, records: memoryview, sizes: npt.NDArray[np.int32], topic_queue: tuple[str, int]) -> Placed:
        """Store records of `topic_queue` that name a time so that they come then; those whose time has passed at once.

        Raises:
            MessageIllegal: a time that cannot be, or a message that was called back meanwhile.
            InvalidInput: records of another queue.
        """
        now_ms = self._now_ms()
        waiting, latest_ms = [], 0
        for record in _decoded(records, sizes):
            due_ms, copy = self.put_off(record, topic_queue, now_ms)
            latest_ms = max(latest_ms, due_ms)
            waiting.append(copy)
        target, batch = (TIMER_QUEUE, join(waiting)) if latest_ms > now_ms else (topic_queue, (records, sizes))
        result = self._append(*batch, target)
        queue_ids = np.full(len(sizes), target[1], np.int32)
        return Placed(target[0], queue_ids, result.queue_offsets, result.physical_offsets)

    def put_off(self, record: Record, topic_queue: tuple[str, int], now_ms: int | None = None) -> tuple[int, bytes]:
        """When a record of `topic_queue` is due, and the record that waits for it. Raises as `defer`."""
        if (record.topic, record.queue_id) != topic_queue:
            raise InvalidInput("records", f"records of topic {topic_queue[0]}, queue {topic_queue[1]}", record.topic)
        due_ms = due_of(record.properties, self._now_ms() if now_ms is None else now_ms)
        if due_ms is None:
            raise InvalidInput("records", "a time or a delay level in each", record.unique_key)
        self.recalled.check(record.topic, record.unique_key, record.born_timestamp_ms)
        kept = waiting_properties(record.properties, record.topic, record.queue_id, due_ms)
        return due_ms, encode_again(record, *TIMER_QUEUE, kept)

    def detour(self, draft: Draft) -> None:
        """Make a draft that names a time wait for its topic and queue, unless the time has passed.

        MessageIllegal: as `defer`.
        """
        self.recalled.check(draft.topic, draft.properties.get(names.UNIQ_KEY), draft.born_timestamp_ms)
        now_ms = self._now_ms()
        due_ms = due_of(draft.properties, now_ms)
        if due_ms is None or due_ms <= now_ms:
            return
        told = draft.properties
        told |= waiting_properties(told, draft.topic, draft.queue_id, due_ms)
        draft.recall_handle = RecallHandle(draft.topic, self._broker, due_ms, told[names.UNIQ_KEY]).encode()
        draft.topic, draft.queue_id = TIMER_QUEUE

    def absorb(self) -> bool:
        """Make entries of what has come into the timer topic: some of it where that is very much, as after a start
        that has to make all of them anew. Whether that is all; before that nothing is delivered: of what waits
        something behind it may say that it was called back.
        """
        low, high = self._bounds()
        self.log.enqueued = max(self.log.enqueued, low)
        count, stop = _ABSORB_MESSAGES, min(high, self.log.enqueued + _ABSORB_MESSAGES)
        while self.log.enqueued < stop:
            try:
                with self._store.read(*TIMER_QUEUE, self.log.enqueued, count, _ABSORB_BYTES, written=True) as lease:
                    told = read_waiting(lease.records, lease.sizes, lease.queue_offsets)
                    following = lease.next_offset
            except Exception as error:  # noqa: BLE001 - whatever a stored byte causes is that message's outcome
                reason = reason_of(error)
                if count > 1 and not isinstance(error, StoreCorrupt):
                    count //= 2
                    continue
                self._copying.refuse(_DUTY, [self._copying.place(TIMER_QUEUE, self.log.enqueued)], reason)
                self.log.enqueued += 1
            else:
                self._take(told)
                self.log.enqueued = following
                break
        return self.log.enqueued >= high

    def _take(self, told: Told) -> None:
        if len(told.silent):
            self._refuse(told.silent, "it names no time that can be")
        self.log.append(told.waits)
        self._load_more(told.waits)
        for withdrawal in told.withdrawals:
            found = self.log.find(withdrawal.due_ms, withdrawal.key)
            earlier = found[found["queue_offset"] < withdrawal.queue_offset]
            self._end(still_waiting(earlier), EntryKind.WITHDRAWN, withdrawal.physical_offset)
            self._wheel.discard(earlier)  # that it ended may have been written down before
        if len(told.moved):
            self.log.append(told.moved)
            self._wheel.discard(told.moved)

    # -- out -----------------------------------------------------------------------------------------------------

    def deliver_due(self) -> DueReport:
        """Put what is due into its real queue, as much as one pass may."""
        self.settle()
        now_ms = self._now_ms()
        if not self.absorb():
            return DueReport(0, now_ms, 0)
        self._load(now_ms)
        due = self._wheel.due(now_ms, _MAX_PER_PASS, _MAX_BYTES_PER_PASS)
        if len(due):
            self._deliver(due)
        lateness_ms = max(0, now_ms - int(due["due_ms"][0])) if len(due) else 0
        next_due_ms = self._wheel.next_due_ms
        if next_due_ms is None and self._loaded[0] <= now_ms:  # it has not looked so far yet
            next_due_ms = self._loaded[0]
        return DueReport(len(due), next_due_ms, lateness_ms)

    def checkpoint(self) -> Callable[[], None] | None:
        """See `TimerLog.checkpoint`: to be called every few seconds, and what it returns on another thread.

        StoreFull, StoreFailed: the entries are behind the log, so the last checkpoint has to hold.
        """
        self.settle()
        self.absorb()
        begin_ms, log_end = self.nothing_before_ms(), self._store.max_physical_offset
        over = Over(begin_ms - begin_ms % HOUR_MS, self.log.enqueued, log_end)
        over_on_disk = self._on_disk.note(over, self._store.flushed_offset)
        return self.log.checkpoint(log_end, begin_ms=begin_ms, over=over_on_disk)

    def close(self) -> None:
        """Bring all to disk, so that the next start has nothing to look for. The store is closed after it."""
        try:
            if (write := self.checkpoint()) is not None:
                write()
        finally:
            self.log.close()

    def counting(self) -> Steps[int]:
        """How many messages wait, in steps; what was stored and is no entry yet counts as waiting."""
        low, high = self._bounds()
        mark, count = (0, LEAST_KEY), max(0, high - max(self.log.enqueued, low))
        while mark < (_NEVER_MS, LEAST_KEY):
            found, mark = self.log.waiting(mark, _NEVER_MS, _COUNTED_AT_ONCE)
            count += len(found)
            yield None
        return count

    def nothing_before_ms(self) -> int:
        """All that is due before this time waits no more."""
        return min(self._now_ms(), self._loaded[0], self._wheel.next_due_ms or _NEVER_MS)

    def _load(self, now_ms: int) -> None:
        """Have in the wheel what is due in the next minute, as far as it holds so much."""
        self._has_loaded = True
        until_ms = now_ms + _NEAR_MS
        if self._loaded[0] > until_ms + _NEAR_MS:  # the clock was set back: what is due later need not be in memory
            self._loaded = (self._loaded[0] if self._wheel.next_due_ms is None else self._wheel.next_due_ms), LEAST_KEY
            self._wheel.clear()
        if self._loaded[0] >= now_ms + _NEAR_MS // 2:
            return
        for _ in range(_LOADS_PER_PASS):
            if self._loaded >= (until_ms, LEAST_KEY) or len(self._wheel) >= _MAX_LOADED:
                break
            found, self._loaded = self.log.waiting(self._loaded, until_ms, _MAX_LOADED)
            self._wheel.add(found)

    def _load_more(self, entries: Entries) -> None:
        """Put new entries into the wheel where they are of the time that it holds."""
        if not len(entries):
            return
        due_ms, key = entries["due_ms"].astype(np.int64), entries["key"].astype(np.int64)
        if self._has_loaded:
            held_ms, held_key = self._loaded
            self._wheel.add(entries[(due_ms < held_ms) | ((due_ms == held_ms) & (key < held_key))])
        else:  # some of them may have been delivered before a crash, as the log tells when it is loaded
            self._loaded = min(self._loaded, (int(due_ms.min()), LEAST_KEY))

    def _deliver(self, due: Entries) -> None:
        self._copying.by_halves(due, self._store_copies, self._delivered, self._drop)

    def _store_copies(self, due: Entries) -> AppendResult:
        sound = self._read(due)
        return self._append(
            *readdressed(sound.batch, sound.topics, sound.queue_ids, origins_of(due)),
            *set(zip(sound.topics, sound.queue_ids, strict=True)),
            again=True,
        )

    def _delivered(self, due: Entries, result: AppendResult) -> None:
        self._end(due, EntryKind.DELIVERED, result.physical_offsets)

    def copy(self, waiting: Entries, store: Callable[[Entries, Waiting], None]) -> None:
        """Have the records of what waits stored by `store`; those of which no copy can be made are set aside."""
        self._copying.by_halves(waiting, lambda part: store(part, self._read(part)), lambda _, __: None, self._drop)

    def _drop(self, entries: Entries, reason: str) -> None:
        """Set aside what cannot be delivered; it waits no more."""
        self._refuse(entries, reason)
        self._end(entries, EntryKind.DROPPED, entries["physical_offset"])

    def _refuse(self, entries: Entries, reason: str) -> None:
        places = [
            Place(*TIMER_QUEUE, offset, physical, self._copying.message_id(physical))
            for offset, physical in zip(
                entries["queue_offset"].tolist(), entries["physical_offset"].tolist(), strict=True
            )
        ]
        self._copying.refuse(_DUTY, places, reason)

    def _read(self, entries: Entries) -> Waiting:
        """The records of entries, and where they are meant for. Culprits: some cannot be delivered."""
        places, sizes = entries["physical_offset"].astype(np.int64), entries["size"].astype(np.int32)
        lost = (places < self._store.min_physical_offset) | (places + sizes > self._store.max_physical_offset)
        _require(~lost, "the log does not hold it", entries)
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
        since = {topic: waits_since(self._store, topic) for topic in queues}
        _require((room > 0) & (places >= np.array([since[topic] for topic in topics])), "its topic is gone", entries)
        queue_ids = numbers(columns.last(names.REAL_QID).fill_null("0"))
        _require(queue_ids >= 0, f"{names.REAL_QID} is no queue's number", entries)
        return Waiting(batch, topics, (queue_ids % room).tolist())

    def _queues(self, topic: str) -> int:
        """How many queues a topic has; 0: nothing may be delivered to it."""
        config = self._store.topic_configs.get(topic)
        if config is None or topic in UNSENDABLE_TOPICS:
            return 0
        return max(1, config.read_queues, config.write_queues)

    def _end(self, entries: Entries, kind: EntryKind, physical_offsets: npt.ArrayLike) -> None:
        """Write down that these wait no more. It is done even if the disk is full: then it is written later."""
        ended = entries.copy()
        ended["kind"] = kind
        ended["physical_offset"] = physical_offsets
        self._owed = np.concatenate([self._owed, ended])
        self._wheel.discard(ended)
        self.settle()

    def settle(self) -> None:
        """Write down what ended; StoreFull, StoreFailed: nothing may be delivered before that."""
        if len(self._owed):
            self.log.append(self._owed)
            self._owed = NO_ENTRIES

    def _bounds(self) -> tuple[int, int]:
        """The timer queue's minimum and maximum offset."""
        try:
            return self._store.min_offset(*TIMER_QUEUE), self._store.max_offset(*TIMER_QUEUE, written=True)
        except QueueNotFound:
            return 0, 0

    def _recover(self) -> None:
        """Note the copies that were delivered and not written down before a crash."""
        if self.log.log_end >= self._store.max_physical_offset or TIMER_TOPIC not in self._store.topics():
            return
        delivered = []
        for copy in delivered_since(self._store, self.log.log_end):
            origin, sense = copy.origin, copy.sense
            due_ms = sense.due_ms or ""
            if origin.level == TIMER_LEVEL and due_ms.isdecimal() and len(due_ms) <= _MAX_MS_DIGITS:
                key = key_of(delete_key(sense.topic, sense.unique_key))
                place = copy.physical_offset
                delivered.append((int(due_ms), origin.offset, place, key, copy.size, EntryKind.DELIVERED))
        self.log.append(np.array(delivered, ENTRY))
        if any((self._store.directory / path).exists() for path in _OF_ROCKETMQ):
            self._take_over()

    def _take_over(self) -> None:
        """End what a broker of RocketMQ's, which had the directory meanwhile, has taken out of its own timer files."""
        taken = dequeued_since(self._store, self.log.log_end)
        if (first := next(taken, None)) is None:
            return
        while not self.absorb():
            pass
        waiting, _ = self.log.waiting((0, LEAST_KEY), _NEVER_MS, _NEVER_MS)
        by_mark: dict[Mark, list[tuple[int, int]]] = {}
        columns = [waiting[name].tolist() for name in ("due_ms", "key", "queue_offset", "physical_offset")]
        for due_ms, key, offset, waits_at in zip(*columns, strict=True):
            by_mark.setdefault((due_ms, key), []).append((offset, waits_at))
        ended = []
        for sense, place, size in itertools.chain([first], taken):
            [due_ms] = numbers(pa.array([sense.due_ms], pa.string())).tolist()
            key = key_of(delete_key(sense.topic, sense.unique_key))
            for offset, waits_at in by_mark.get((due_ms, key), ()):
                if waits_at < place and waiting_sense(self._store, offset) == sense:
                    ended.append((due_ms, offset, place, key, size, EntryKind.DELIVERED))
        self.log.append(np.array(ended, ENTRY))

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)


class OnDisk:
    """What the timer log may forget of what is over: that of which the copies are on disk.

    One that the machine loses is delivered again, and its entry is needed until then.
    """

    def __init__(self) -> None:
        self._last: Over | None = None
        #: It is over, and its copies are on disk when the log is up to there.
        self._next: Over | None = None

    def note(self, over: Over, flushed: int) -> Over | None:
        """What may be forgotten; None: nothing.

        Args:
            over: what is over now.
            flushed: up to where the log is on disk.
        """
        if self._next is not None and self._next.log_end <= flushed:
            self._last, self._next = self._next, None
        if self._next is None:
            self._next = over
        return self._last


def _require(good: npt.NDArray[np.bool_], reason: str, entries: Entries) -> None:
    """Culprits unless all entries are good."""
    if not good.all():
        raise Culprits(reason, entries[~good], entries[good])


@dataclass(frozen=True, slots=True)
class Waiting:
    """Records of entries, and where they are meant for."""

    batch: record_batch.Batch
    topics: list[str]
    queue_ids: list[int]

    def records(self) -> Iterator[Record]:
        """They, decoded."""
        return _decoded(memoryview(self.batch.records), self.batch.sizes)


def _decoded(records: memoryview, sizes: npt.NDArray[np.integer[Any]]) -> Iterator[Record]:
    position = 0
    for size in sizes.tolist():
        yield decode(records, position, check_crc=False)
        position += size
