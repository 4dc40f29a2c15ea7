"""What waits outlives the log files that it lies in: it is stored anew before they go.

What waits a delay level waits for its time from then on, in the timer topic. That one's queue is in the order of the
log. So what waits in the oldest log files stands at its beginning: it is gone through once, as far as files are about
to go, in steps that look at a bounded number of records, at all hours.

A file goes when it is on disk why nothing in it waits any more: what was stored anew, and what was delivered a moment
ago. Otherwise a loss of power would take that, and the message with it, which had been on disk for as long as it waits.
All replicas in sync have it by then, too: they let the file go when their master has, and one of them may be the next.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Final

import numpy as np

from raymq.actors.broker.core.copies.copying import reason_of
from raymq.actors.broker.core.copies.rewriting import Append, encode_again, join
from raymq.actors.broker.core.delay.schedule import Schedule
from raymq.actors.broker.core.delay.timer_records import TIMER_QUEUE, origins_of, read_waiting
from raymq.actors.broker.core.delay.timers import Timers, Waiting
from raymq.actors.naming import TIMER_TOPIC
from raymq.storage.errors import QueueNotFound, StoreCorrupt, StoreFull
from raymq.storage.records import property_names as names
from raymq.storage.records.record import Record, decode_properties
from raymq.storage.records.rewrite_destination import readdressed
from raymq.storage.store import Store
from raymq.storage.timers.entry import Entries

#: One step looks at so many records, or bytes of them, ...
_STEP_MESSAGES: Final = 100
_STEP_BYTES: Final = 256 << 10
#: ... or passes over so many of which it is known without looking at them that they wait no more.
_STEP_ENDED: Final = 1 << 14
#: The property by which a copy says what it was made from is added to those that are there; when records say it more
#: often than that, they are made anew without the former ones.
_MOST_ORIGINS: Final = 4
_ORIGIN: Final = f"{names.DELIVERED_FROM}\x01".encode()
_log = logging.getLogger(__name__)


class Rescue:
    """Stores anew what is about to lose its log file. Used on the broker's loop."""

    def __init__(self, store: Store, timers: Timers, schedule: Schedule, append: Append) -> None:
        self._store = store
        self._timers = timers
        self._schedule = schedule
        self._append = append
        #: What lies before this offset of the timer queue waits no more, or was stored anew.
        self._at = 0
        self._wanted = 0
        #: Before this place of the log no message waits a delay level (any more).
        self._no_level_before = 0
        #: Nothing waits before this place of the log, and that is safe.
        self._clear = 0
        #: Nothing waits before the first place; that is safe when the log is, up to the second one.
        self._clearing: tuple[int, int] | None = None

    def up_to(self, log_min: int) -> int:
        """Up to where nothing waits (any more), at most `log_min`: a step towards that was made, and more will be.

        What a loss of power, or an election, might have wait again counts as waiting, until the log is safe. On a disk
        without any room nothing was stored anew. What lies before it may go all the same, and makes some.
        """
        self.want(log_min)
        with contextlib.suppress(StoreFull):
            self.step()
        self._note_clear()
        return min(log_min, self._clear)

    def _note_clear(self) -> None:
        """Look how far nothing waits, and whether what was seen before is safe by now."""
        for _ in range(2):  # where all is safe, what is seen now counts now
            if self._clearing is None:
                first = self._schedule.first_place()
                reached = self._reached()
                self._clearing = min(reached, reached if first is None else first), self._store.max_physical_offset
            clear, log_end = self._clearing
            if log_end > self._store.confirmed.safe:
                return
            self._clear, self._clearing = clear, None

    def want(self, log_min: int) -> None:
        """What waits before that place of the log is to be stored anew."""
        self._wanted = max(self._wanted, log_min)

    def step(self) -> bool:
        """Go a little further; False if there was nothing to do.

        StoreFull, StoreFailed: it was not done, and is tried again with the next call.
        """
        if self._clear < self._wanted:
            self._note_clear()
        if self._move_levels():
            return True
        if self._reached() >= self._wanted:
            return False
        with self._store.room_is_coming():
            self._timers.settle()
            if self._timers.absorb() and not self._pass_over():
                self._look(_STEP_MESSAGES)
        return True

    def _move_levels(self) -> bool:
        """Have some of what waits a delay level wait for its time, if it is about to go; False if there is none."""
        if self._no_level_before >= self._wanted:
            return False
        moves = self._is_level_before(self._wanted)
        if moves:
            with self._store.room_is_coming():
                self._schedule.move_before(self._wanted, _STEP_MESSAGES, _STEP_BYTES)
        if not moves or not self._is_level_before(self._wanted):
            self._no_level_before = self._wanted  # what comes now comes behind it
        return moves

    def _is_level_before(self, place: int) -> bool:
        first = self._schedule.first_place()
        return first is not None and first < place

    def _pass_over(self) -> bool:
        """Go on to the next message of which it is not known that it waits no more; False if that is the next one."""
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
                waits = read_waiting(lease.records, lease.sizes, lease.queue_offsets).waits
                following = lease.next_offset
        except Exception as error:  # noqa: BLE001 - whatever a stored byte causes is that message's outcome
            reason = reason_of(error)
            if within > 1 and not isinstance(error, StoreCorrupt):  # which one it is, nobody says
                self._look(1)
                return
            _log.error("the message at offset %d of %s cannot be stored anew: %s", self._at, TIMER_TOPIC, reason)
            self._at += 1
            return
        ended = self._timers.log.ended_between(self._at, following)
        waits = waits[~np.isin(waits["queue_offset"], ended) & (waits["due_ms"] >= self._timers.nothing_before_ms())]
        waits = waits[np.array([self._is_known(entry) for entry in waits], np.bool_)]
        if len(waits):
            self._timers.copy(waits, self._store_anew)
            self._timers.absorb()
        self._at = following

    def _is_known(self, entry: np.void) -> bool:
        """Whether the timer log still tells of it: what is over is forgotten, together with how it ended."""
        due_ms, key = int(entry["due_ms"]), int(entry["key"])
        log = self._timers.log
        return due_ms >= log.over_ms or entry["queue_offset"] in log.find(due_ms, key)["queue_offset"]

    def _store_anew(self, waits: Entries, waiting: Waiting) -> None:
        origins = origins_of(waits)
        if bytes(waiting.batch.records).count(_ORIGIN) > _MOST_ORIGINS * len(origins):
            records = zip(waiting.records(), origins, strict=True)
            self._append(*join([_with_origin(record, origin) for record, origin in records]), TIMER_QUEUE, again=True)
        else:
            topic_queues = [TIMER_TOPIC] * len(origins)
            self._append(*readdressed(waiting.batch, topic_queues, TIMER_QUEUE[1], origins), TIMER_QUEUE, again=True)

    def _reached(self) -> int:
        """The place in the log of the first message that was not looked at yet."""
        try:
            low, high = self._store.min_offset(*TIMER_QUEUE), self._store.max_offset(*TIMER_QUEUE)
        except QueueNotFound:
            return self._store.max_physical_offset
        self._at = max(self._at, low)
        if self._at >= high:
            return self._store.max_physical_offset
        return int(self._store.entries(*TIMER_QUEUE, self._at, 1)[0][0])


def _with_origin(record: Record, origin: bytes) -> bytes:
    """A record for the timer queue that says once what it was made from."""
    return encode_again(record, *TIMER_QUEUE, {**record.properties, **decode_properties(origin)})
