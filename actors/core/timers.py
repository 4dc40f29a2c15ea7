"""Messages for a chosen time: they wait as records of the timer topic, and are put into their real queue when due.

The timer topic's queue 0 holds what waits (its real topic and queue, and the due time, are properties, as in RocketMQ)
and the messages that withdraw others. From it entries are made in the timer log, hour by hour, and what is due within
the next minute is in the wheel. So memory holds no more than a minute, or what is overdue of one hour.

A message is delivered once, also over SIGKILL: a delivered copy names the queue offset that it was made from
(`DELIVERED_FROM`, "0:<offset>"), and a start looks through the log behind the last checkpoint for copies that the timer
log does not know of. Never early by the broker's clock: a message is due when the clock shows its millisecond.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from raymq.actors.core.copying import TIMER, Copying, Culprits, Duty, Place, reason_of
from raymq.actors.core.delivered import delivered_since
from raymq.actors.core.draft import Draft
from raymq.actors.core.recall_handle import RecallHandle
from raymq.actors.core.recalled import Recalled
from raymq.actors.core.rewriting import Append, encode_again, join
from raymq.actors.core.timer_records import (
    LANE,
    TIMER_LEVEL,
    Told,
    delete_key,
    due_of,
    numbers,
    origins_of,
    read_waiting,
    waiting_properties,
)
from raymq.actors.core.timer_wheel import TimerWheel
from raymq.actors.naming import TIMER_TOPIC, UNSENDABLE_TOPICS
from raymq.actors.protocol import DueReport, Placed
from raymq.storage import properties as names
from raymq.storage import record_batch
from raymq.storage.errors import InvalidInput, QueueNotFound, StoreCorrupt
from raymq.storage.property_columns import properties_of_batch
from raymq.storage.readdress import readdressed
from raymq.storage.record import Record, decode
from raymq.storage.store import AppendResult, Store
from raymq.storage.timer_log import ENTRY, HOUR_MS, NO_ENTRIES, Entries, Kind, TimerLog, key_of

#: The wheel holds what is due within this time.
_NEAR_MS: Final = 60_000
#: One pass delivers at most so many messages, so that it never holds the loop for long.
_MAX_PER_PASS: Final = 2_000
_MAX_BYTES_PER_PASS: Final = 8 << 20
_ABSORB_MESSAGES: Final = 4_096
_ABSORB_BYTES: Final = 8 << 20
#: One run rescues at most so many messages from files that expire, and so many passes' bytes of them.
_MAX_RESCUED: Final = 5_000
_MAX_RESCUED_PARTS: Final = 8
#: Of a time in ms that any record waits for.
_MAX_MS_DIGITS: Final = 14
_DUTY: Final = Duty(TIMER)


class Timers:
    """The waiting messages of the broker of that name. `clock` is wall time in seconds. Used on the broker's loop."""

    def __init__(self, broker: str, store: Store, clock: Callable[[], float], append: Append, copying: Copying) -> None:
        self._broker = broker
        self._store = store
        self._clock = clock
        self._append = append
        self._copying = copying
        self.log = TimerLog(
            store.directory / "raymq" / "timers", log_end=store.max_physical_offset, clean=store.recovery.clean
        )
        #: For `Recall`, which withdraws: what is not to be stored any more.
        self.recalled = Recalled(clock)
        self._wheel = TimerWheel()
        #: The wheel holds what is due of this hour before this time; None: nothing is loaded.
        self._loaded: tuple[int, int] | None = None
        #: Hours of which nothing waits, and their last copies' places: their files may go when these are on disk.
        self._over: dict[int, int] = {}
        #: What ended and is not written down yet, because the disk was full.
        self._owed: Entries = NO_ENTRIES
        self._recover()

    # -- in ------------------------------------------------------------------------------------------------------

    def defer(self, records: memoryview, sizes: npt.NDArray[np.int32], lane: tuple[str, int]) -> Placed:
        """Store records of `lane` that name a time so that they come then; those whose time has passed at once.

        Raises:
            MessageIllegal: a time that cannot be, or a message that was called back meanwhile.
            InvalidInput: records of another queue.
        """
        now_ms = self._now_ms()
        waiting, latest_ms = [], 0
        for record in _decoded(records, sizes):
            if (record.topic, record.queue_id) != lane:
                raise InvalidInput("records", f"records of topic {lane[0]}, queue {lane[1]}", record.topic)
            due_ms = due_of(record.properties, now_ms)
            if due_ms is None:
                raise InvalidInput("records", "a time or a delay level in each", record.unique_key)
            self.recalled.check(record.topic, record.unique_key, record.born_timestamp_ms)
            latest_ms = max(latest_ms, due_ms)
            kept = waiting_properties(record.properties, record.topic, record.queue_id, due_ms)
            waiting.append(encode_again(record, *LANE, kept))
        target, batch = (LANE, join(waiting)) if latest_ms > now_ms else (lane, (records, sizes))
        result = self._append(*batch, target)
        queue_ids = np.full(len(sizes), target[1], np.int32)
        return Placed(target[0], queue_ids, result.queue_offsets, result.physical_offsets)

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
        draft.topic, draft.queue_id = LANE

    def absorb(self) -> None:
        """Make entries of what has come into the timer topic since the last call."""
        low, high = self._bounds()
        self.log.enqueued = max(self.log.enqueued, low)
        count = _ABSORB_MESSAGES
        while self.log.enqueued < high:
            try:
                with self._store.read(*LANE, self.log.enqueued, count, _ABSORB_BYTES) as lease:
                    told = read_waiting(lease.records, lease.sizes, lease.queue_offsets)
                    following = lease.next_offset
            except Exception as error:  # noqa: BLE001 - whatever a stored byte causes is that message's outcome
                reason = reason_of(error)
                if count > 1 and not isinstance(error, StoreCorrupt):
                    count //= 2
                    continue
                self._copying.refuse(_DUTY, [self._copying.place(LANE, self.log.enqueued)], reason)
                self.log.enqueued += 1
            else:
                self._take(told)
                self.log.enqueued = following
                count = min(2 * count, _ABSORB_MESSAGES)

    def _take(self, told: Told) -> None:
        if len(told.silent):
            self._refuse(told.silent, "it names no time that can be")
        self.log.append(told.waits)
        self._load_more(told.waits)
        for withdrawal in told.withdrawals:
            found = self.waiting_of(withdrawal.due_ms, withdrawal.key)
            found = found[found["queue_offset"] < withdrawal.queue_offset]
            self._end(found, Kind.WITHDRAWN, withdrawal.physical_offset)
        if len(told.moved):
            self.log.append(told.moved)
            self._wheel.discard(told.moved["queue_offset"])

    def waiting_of(self, due_ms: int, key: int) -> Entries:
        """What waits of messages of that key that are due then."""
        told = self.log.find(due_ms, key)
        ended = told["queue_offset"][told["kind"] != Kind.WAITS]
        waiting: Entries = told[(told["kind"] == Kind.WAITS) & ~np.isin(told["queue_offset"], ended)]
        return waiting

    # -- out -----------------------------------------------------------------------------------------------------

    def deliver_due(self) -> DueReport:
        """Put what is due into its real queue, as much as one pass may."""
        self.settle()
        self.absorb()
        now_ms = self._now_ms()
        self._load(now_ms)
        due = self._wheel.due(now_ms, _MAX_PER_PASS, _MAX_BYTES_PER_PASS)
        if len(due):
            self._deliver(due)
        lateness_ms = max(0, now_ms - int(due["due_ms"][0])) if len(due) else 0
        return DueReport(len(due), self._wheel.next_due_ms, lateness_ms)

    def rescue(self, log_min: int) -> int:
        """Store what waits before `log_min` anew, because the log is about to lose it: some of it in one call.

        Returns:
            Up to where nothing waits (any more); at most `log_min`.
        """
        self.settle()
        self.absorb()
        waiting = np.concatenate([NO_ENTRIES, *(w[w["physical_offset"] < log_min] for w in self._all_waiting())])
        waiting = waiting[np.argsort(waiting["physical_offset"])]
        parts = _parts(waiting[:_MAX_RESCUED])[:_MAX_RESCUED_PARTS]
        for part in parts:
            self._copying.by_halves(part, self._store_anew, lambda _, __: None, self._drop)
        self.absorb()
        left = waiting[sum(map(len, parts)) :]
        return int(left["physical_offset"][0]) if len(left) else log_min

    def _all_waiting(self) -> Iterator[Entries]:
        return (self.log.waiting(hour) for hour in self.log.hours)

    def checkpoint(self) -> Callable[[], None] | None:
        """See `TimerLog.checkpoint`: to be called every few seconds, and what it returns on another thread.

        StoreFull, StoreFailed: the entries are behind the log, so the last checkpoint has to hold.
        """
        self.settle()
        self.absorb()
        return self.log.checkpoint(self._store.max_physical_offset)

    def close(self) -> None:
        """Bring all to disk, so that the next start has nothing to look for. The store is closed after it."""
        if (write := self.checkpoint()) is not None:
            write()

    def _load(self, now_ms: int) -> None:
        """Have in the wheel what is due in the next minute, of the earliest hour in which something may wait."""
        for hour in self.log.hours:
            if hour in self._over:
                continue
            if hour * HOUR_MS > now_ms + _NEAR_MS:
                break
            hour_end_ms = (hour + 1) * HOUR_MS
            if self._loaded is None or self._loaded[0] != hour:
                self._wheel.clear()
                self._loaded = hour, 0
            if self._loaded[1] < min(hour_end_ms, now_ms + _NEAR_MS // 2):
                until_ms = min(hour_end_ms, now_ms + _NEAR_MS)
                self._wheel.add(self.log.waiting(hour, until_ms))
                self._loaded = hour, until_ms
            if len(self._wheel) or now_ms < hour_end_ms:
                break
            self._over[hour] = self.log.last_place(hour)
            self._loaded = None
        self._forget_hours()

    def _forget_hours(self) -> None:
        """Delete the files of hours that are over, once their last copies survive the machine.

        One that the machine loses is delivered again, and its entry is needed until then.
        """
        for hour, last_place in list(self._over.items()):
            if last_place < self._store.flushed_offset:
                self.log.delete(hour)
                del self._over[hour]

    def _load_more(self, entries: Entries) -> None:
        """Put new entries into the wheel where they are of the time that it holds."""
        for hour in np.unique(entries["due_ms"] // HOUR_MS).tolist():
            self._over.pop(hour, None)
            if self._loaded is not None and hour < self._loaded[0]:
                self._loaded = None  # the clock was set back: this hour has its turn first
        if self._loaded is not None:
            hour, until_ms = self._loaded
            self._wheel.add(entries[entries["due_ms"] < until_ms])

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
        self._end(due, Kind.DELIVERED, result.physical_offsets)

    def _store_anew(self, waiting: Entries) -> None:
        lanes = [TIMER_TOPIC] * len(waiting)
        self._append(*readdressed(self._read(waiting).batch, lanes, LANE[1], origins_of(waiting)), LANE, again=True)

    def _drop(self, entries: Entries, reason: str) -> None:
        """Set aside what cannot be delivered; it waits no more."""
        self._refuse(entries, reason)
        self._end(entries, Kind.DROPPED, entries["physical_offset"])

    def _refuse(self, entries: Entries, reason: str) -> None:
        places = [
            Place(*LANE, offset, physical, self._copying.message_id(physical))
            for offset, physical in zip(
                entries["queue_offset"].tolist(), entries["physical_offset"].tolist(), strict=True
            )
        ]
        self._copying.refuse(_DUTY, places, reason)

    def _read(self, entries: Entries) -> _Waiting:
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
        _require(room > 0, "its topic is gone", entries)
        queue_ids = numbers(columns.last(names.REAL_QID).fill_null("0"))
        _require(queue_ids >= 0, f"{names.REAL_QID} is no queue's number", entries)
        return _Waiting(batch, topics, (queue_ids % room).tolist())

    def _queues(self, topic: str) -> int:
        """How many queues a topic has; 0: nothing may be delivered to it."""
        config = self._store.topic_configs.get(topic)
        if config is None or topic in UNSENDABLE_TOPICS:
            return 0
        return max(1, config.read_queues, config.write_queues)

    def _end(self, entries: Entries, kind: Kind, physical_offsets: npt.ArrayLike) -> None:
        """Write down that these wait no more. It is done even if the disk is full: then it is written later."""
        ended = entries.copy()
        ended["kind"] = kind
        ended["physical_offset"] = physical_offsets
        self._owed = np.concatenate([self._owed, ended])
        self._wheel.discard(ended["queue_offset"])
        self.settle()

    def settle(self) -> None:
        """Write down what ended; StoreFull, StoreFailed: nothing may be delivered before that."""
        if len(self._owed):
            self.log.append(self._owed)
            self._owed = NO_ENTRIES

    def _bounds(self) -> tuple[int, int]:
        """The timer queue's minimum and maximum offset."""
        try:
            return self._store.min_offset(*LANE), self._store.max_offset(*LANE)
        except QueueNotFound:
            return 0, 0

    def _recover(self) -> None:
        """Note the copies that were delivered and not written down before a crash."""
        # What the machine lost of the log is no more in the files, either: its offsets are given to other messages.
        self.log.enqueued = min(self.log.enqueued, self._bounds()[1])
        if self.log.log_end >= self._store.max_physical_offset or TIMER_TOPIC not in self._store.topics():
            return
        delivered = []
        for copy in delivered_since(self._store, self.log.log_end):
            origin, sense = copy.origin, copy.sense
            due_ms = sense.due_ms or ""
            if origin.level == TIMER_LEVEL and due_ms.isdecimal() and len(due_ms) <= _MAX_MS_DIGITS:
                key = key_of(delete_key(sense.topic, sense.unique_key))
                place = copy.physical_offset
                delivered.append((int(due_ms), origin.offset, place, key, copy.size, Kind.DELIVERED))
        self.log.append(np.array(delivered, ENTRY))

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)


def _require(good: npt.NDArray[np.bool_], reason: str, entries: Entries) -> None:
    """Culprits unless all entries are good."""
    if not good.all():
        raise Culprits(reason, entries[~good], entries[good])


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Records of entries, and where they are meant for."""

    batch: record_batch.Batch
    topics: list[str]
    queue_ids: list[int]


def _parts(entries: Entries) -> list[Entries]:
    """Entries cut where their records' bytes fill a pass."""
    filled = np.cumsum(entries["size"], dtype=np.int64) // _MAX_BYTES_PER_PASS
    return [part for part in np.split(entries, np.flatnonzero(np.diff(filled)) + 1) if len(part)]


def _decoded(records: memoryview, sizes: npt.NDArray[np.int32]) -> Iterator[Record]:
    position = 0
    for size in sizes.tolist():
        yield decode(records, position)
        position += size
