"""Recognise repeated batches of idempotent producers, so that each is stored once. No I/O.

A lane (`ProducerKey`) is one producer in one queue. The producer numbers the lane's messages from 0 in each epoch. The
last results are kept, and a repeated batch gets the result of the first one. A producer that lost its count begins a
new epoch at 0.

A crash may have left only a part of a lane's last batch in the log: the batch is *cut*. Then only its missing messages
may follow. They are stored when the batch is sent again; the batch then lies at two places. A batch of which nothing is
left counts as never sent.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from raymq.actors.errors import SequenceGap
from raymq.storage.records.producer_sequence import ProducerSequence

#: How many batches of a lane can be repeated. RayMQ's producers need one: they have one in progress per lane.
KEPT_RESULTS: Final = 5
#: A lane that was unused for this long is forgotten; the time-out of a send is much shorter.
EXPIRY_SECONDS: Final = 3_600.0
#: Above this many lanes the least recently used one is forgotten.
MAX_PRODUCER_KEYS: Final = 100_000

#: producer id, topic, queue id: as the producer addressed it.
ProducerKey = tuple[str, str, int]


@dataclass(slots=True)  # not frozen, as `ProducerSequence`
class StoredBatch:
    """The place of a batch: `count` messages from `offset` on.

    Delayed messages wait in the schedule topic. `rest` is the place of the batch's later messages, which were stored
    when a cut batch was sent again.
    """

    topic: str
    queue_id: int
    offset: int
    count: int
    rest: StoredBatch | None = None

    @property
    def places(self) -> list[StoredBatch]:
        """Return each part of the batch, in order."""
        return [self] if self.rest is None else [self, *self.rest.places]

    @property
    def total(self) -> int:
        """Return the number of messages at all places of the batch."""
        return self.count if self.rest is None else self.count + self.rest.total

    def joined(self, rest: StoredBatch) -> StoredBatch:
        """Return the batch with its missing messages, which lie at `rest`."""
        return replace(self, rest=rest if self.rest is None else self.rest.joined(rest))

    def left(self, there: Callable[[StoredBatch], int]) -> StoredBatch | None:
        """Return what is left of the batch, or None if nothing is.

        `there` returns how many messages of a place exist, counted from its first.
        """
        count = there(self)
        if count < self.count:
            return replace(self, count=count, rest=None) if count > 0 else None
        return self if self.rest is None else replace(self, rest=self.rest.left(there))


@dataclass(slots=True)
class _ProducerState:
    epoch: int
    next: int
    used: float
    results: deque[tuple[int, StoredBatch]] = field(default_factory=lambda: deque(maxlen=KEPT_RESULTS))
    #: How many messages of the last batch are missing; above 0 the batch is cut.
    missing: int = 0


class ProducerStateTable:
    """The state of all idempotent producers; used from the broker's thread.

    `clock` is wall time without jumps, in seconds.
    """

    def __init__(self, clock: Callable[[], float], *, max_lanes: int = MAX_PRODUCER_KEYS) -> None:
        self._clock = clock
        self._max_lanes = max_lanes
        #: Least recently used first.
        self._lanes: OrderedDict[ProducerKey, _ProducerState] = OrderedDict()
        #: All lanes by topic, so that the cost of forgetting a topic depends on its lanes only.
        self._by_topic: dict[str, set[ProducerKey]] = {}
        #: The lanes that have changed since the last call of `take_dirty`.
        self._changed: dict[ProducerKey, None] = {}

    def __len__(self) -> int:
        return len(self._lanes)

    def check(self, lane: ProducerKey, sequence: ProducerSequence) -> StoredBatch | None:
        """Return None for the next batch, and the first result for a batch already stored.

        The result of a cut batch has fewer messages than `sequence`: the messages after them are to be stored.

        Raises:
            SequenceGap: earlier batches are missing, the batch is of an older epoch, or its result is not kept any
                more.
        """
        history = self._lanes.get(lane)
        results: Iterable[tuple[int, StoredBatch]]
        if history is None or sequence.epoch > history.epoch:
            following, results, missing = 0, (), 0
        elif sequence.epoch == history.epoch:
            following, results, missing = history.next, history.results, history.missing
        else:
            raise SequenceGap(f"producer {lane[0]} is in epoch {history.epoch}, the batch in {sequence.epoch}")
        if sequence.first == following and not missing:
            return None
        for first, stored in results:
            total = stored.total
            lacks = missing if first + total == following else 0
            if (first, total + lacks) == (sequence.first, sequence.count):
                return stored
        raise SequenceGap(
            f"producer {lane[0]}: expected message {following}, but the batch begins with {sequence.first}"
        )

    def remember(
        self, lane: ProducerKey, sequence: ProducerSequence, stored: StoredBatch, at: float | None = None
    ) -> None:
        """Record that a batch is stored that `check` allowed; `at` is when, now if None."""
        used = self._clock() if at is None else at
        history = self._lanes.get(lane)
        if history is None or history.epoch < sequence.epoch:
            history = self._lanes[lane] = _ProducerState(sequence.epoch, 0, used)
            self._by_topic.setdefault(lane[1], set()).add(lane)
        history.next = sequence.first + sequence.count
        history.used = used
        history.results.append((sequence.first, stored))
        self._lanes.move_to_end(lane)
        self._changed[lane] = None
        self._keep_within()

    def complete(self, lane: ProducerKey, rest: StoredBatch, at: float | None = None) -> StoredBatch:
        """Record that missing messages of the last batch lie at `rest`; return all places."""
        history = self._lanes[lane]
        first, stored = history.results.pop()
        whole = stored.joined(rest)
        sequence = ProducerSequence(lane[0], history.epoch, first, whole.total)
        history.missing -= rest.count
        self.remember(lane, sequence, whole, at)
        return whole

    def replay(self, lane: ProducerKey, sequence: ProducerSequence, stored: StoredBatch, at: float) -> None:
        """Record a batch found in the log; call it in the order of the log.

        Copies of older batches (delivered, retried) change nothing. `stored` has fewer messages than `sequence` if the
        log lost the others.
        """
        history = self._lanes.get(lane)
        if history is not None:
            begin, following = (sequence.epoch, sequence.first), (history.epoch, history.next)
            if begin < following:
                return
            if begin == following and sequence.count == history.missing:
                self.complete(lane, stored, at)
                return
            if begin > following or history.missing:
                history.results.clear()
                history.missing = 0
        self.remember(lane, replace(sequence, count=stored.count), stored, at)
        self._lanes[lane].missing = sequence.count - stored.count

    def expire(self) -> None:
        """Forget the lanes that were unused too long."""
        now = self._clock()
        while self._lanes:
            lane, history = next(iter(self._lanes.items()))
            history.used = min(history.used, now)  # the clock was ahead then: count the lane as used now
            if history.used > now - EXPIRY_SECONDS:
                return
            self._drop(lane)

    def _keep_within(self) -> None:
        while len(self._lanes) > self._max_lanes:
            self._drop(next(iter(self._lanes)))

    def _drop(self, lane: ProducerKey) -> None:
        del self._lanes[lane]
        self._changed[lane] = None
        of_topic = self._by_topic[lane[1]]
        of_topic.discard(lane)
        if not of_topic:
            del self._by_topic[lane[1]]

    def forget_topic(self, topic: str) -> None:
        """Forget the lanes of a deleted topic, whose offsets begin again at 0."""
        for lane in self._by_topic.pop(topic, ()):
            del self._lanes[lane]
            self._changed[lane] = None

    def take_dirty(self) -> dict[ProducerKey, None]:
        """Return the lanes that changed since the last call, or since the start.

        Lanes that were forgotten count as changed.
        """
        changed, self._changed = self._changed, {}
        return changed

    def restore_dirty(self, changed: Mapping[ProducerKey, None]) -> None:
        """Mark lanes as changed again that `take_dirty` returned and that could not be saved."""
        self._changed |= changed

    def lanes(self) -> list[ProducerKey]:
        """Return all lanes."""
        return list(self._lanes)

    def rows(self, lanes: Iterable[ProducerKey]) -> list[Any]:
        """Return these lanes as plain data, of a forgotten lane only its key."""
        rows: list[Any] = []
        for lane in lanes:
            h = self._lanes.get(lane)
            if h is None:
                rows.append(lane)
            else:
                results = [(first, *_plain(stored)) for first, stored in h.results]
                rows.append((*lane, h.epoch, h.next, h.used, results, h.missing))
        return rows

    def load(self, rows: Iterable[Sequence[Any]], there: Callable[[StoredBatch], int]) -> bool:
        """Fill an empty table with `rows`; return True if less was kept than they contain.

        The last row of each lane counts.

        Args:
            there: returns how many messages of a place, from its first one on, the log and its queues still have. The
                first batch of a lane that lost messages is cut, and the batches after it are forgotten.
        """
        known: dict[ProducerKey, _ProducerState] = {}
        for producer, topic, queue_id, *rest in rows:
            lane = producer, topic, queue_id
            if not rest:
                known.pop(lane, None)
                continue
            epoch, following, used, results, *missing = rest
            history = known[lane] = _ProducerState(epoch, following, used, missing=missing[0] if missing else 0)
            history.results.extend((first, _from_plain(*stored)) for first, *stored in results)
        is_less = False
        for lane, history in sorted(known.items(), key=lambda each: each[1].used):
            is_less |= _keep_what_is_left(history, there)
            self._lanes[lane] = history
            self._by_topic.setdefault(lane[1], set()).add(lane)
        self._keep_within()
        return is_less


def _plain(stored: StoredBatch) -> list[Any]:
    """Return four fields for each place, one place after the other."""
    return [value for place in stored.places for value in (place.topic, place.queue_id, place.offset, place.count)]


def _from_plain(topic: str, queue_id: int, offset: int, count: int, *rest: Any) -> StoredBatch:
    return StoredBatch(topic, queue_id, offset, count, _from_plain(*rest) if rest else None)


def _keep_what_is_left(history: _ProducerState, there: Callable[[StoredBatch], int]) -> bool:
    """Forget the messages that no longer exist; return True if there were any."""
    results = list(history.results)
    for number, (first, stored) in enumerate(results):
        left = stored.left(there)
        if left != stored:
            count = stored.total + (history.missing if number == len(results) - 1 else 0)
            total = 0 if left is None else left.total
            kept = results[:number] if left is None else [*results[:number], (first, left)]
            history.results = deque(kept, maxlen=KEPT_RESULTS)
            history.next = first + total
            history.missing = 0 if left is None else count - total
            return True
    return False
