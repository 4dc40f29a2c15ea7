"""What a broker remembers of its idempotent producers, so that a batch sent twice is stored once. No I/O.

A lane is one producer in one queue. Its producer numbers the lane's messages from 0, epoch by epoch; the last results
are kept, and a batch that is sent again gets the first one's. A producer that lost count begins a new epoch at 0.

Of a lane's last batch a death may have left a part: it is *cut*. Nothing follows it but what is missing of it, which is
stored when the batch is sent again; then it lies at two places. A batch of which nothing is left never was.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from raymq.actors.errors import SequenceGap
from raymq.storage.records.producer_sequence import ProducerSequence

#: How many batches of a lane can be asked for again. A producer has one under way per lane, so one would do for ours.
KEPT_RESULTS: Final = 5
#: A lane that was silent for this long is forgotten; a send's budget ends long before.
EXPIRY_SECONDS: Final = 3_600.0
#: Above this many lanes the one that was silent longest is forgotten.
MAX_LANES: Final = 100_000

#: producer id, topic, queue id: as the producer addressed it.
Lane = tuple[str, str, int]


@dataclass(slots=True)  # not frozen, as `ProducerSequence`
class StoredBatch:
    """Where a batch lies: `count` messages from `offset` on (delayed ones wait in the schedule topic).

    `rest` is where those behind them lie that were stored when a batch that had been cut was sent again.
    """

    topic: str
    queue_id: int
    offset: int
    count: int
    rest: StoredBatch | None = None

    @property
    def places(self) -> list[StoredBatch]:
        """Each part of it, in their order."""
        return [self] if self.rest is None else [self, *self.rest.places]

    @property
    def total(self) -> int:
        """How many messages lie at all of its places."""
        return self.count if self.rest is None else self.count + self.rest.total

    def joined(self, rest: StoredBatch) -> StoredBatch:
        """The same with what was missing, which lies at `rest`."""
        return replace(self, rest=rest if self.rest is None else self.rest.joined(rest))

    def left(self, there: Callable[[StoredBatch], int]) -> StoredBatch | None:
        """What is left of it where of a place's messages only the first `there` are; None if nothing is."""
        count = there(self)
        if count < self.count:
            return replace(self, count=count, rest=None) if count > 0 else None
        return self if self.rest is None else replace(self, rest=self.rest.left(there))


@dataclass(slots=True)
class _History:
    epoch: int
    next: int
    used: float
    results: deque[tuple[int, StoredBatch]] = field(default_factory=lambda: deque(maxlen=KEPT_RESULTS))
    #: How many messages are missing of the last batch: above 0 it is cut.
    missing: int = 0


class ProducerTable:
    """Used from the broker's thread. `clock` is wall time without steps, in seconds."""

    def __init__(self, clock: Callable[[], float], *, max_lanes: int = MAX_LANES) -> None:
        self._clock = clock
        self._max_lanes = max_lanes
        #: Least recently used first.
        self._lanes: OrderedDict[Lane, _History] = OrderedDict()
        #: All of them, so that to forget a topic costs what it has.
        self._by_topic: dict[str, set[Lane]] = {}
        #: The lanes that are not as they were when `take_changed` was called.
        self._changed: dict[Lane, None] = {}

    def __len__(self) -> int:
        return len(self._lanes)

    def check(self, lane: Lane, sequence: ProducerSequence) -> StoredBatch | None:
        """None for the batch that comes next, the first result for one that is here already.

        Of a batch that is cut it has fewer messages than `sequence`: those behind them are to be stored.

        Raises:
            SequenceGap: batches are missing before it, it is of an epoch that is over, or its result is not kept.
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
        raise SequenceGap(f"producer {lane[0]}: message {following} comes next, the batch begins with {sequence.first}")

    def remember(self, lane: Lane, sequence: ProducerSequence, stored: StoredBatch, at: float | None = None) -> None:
        """A batch that `check` let through is stored; `at` is when, now if None."""
        used = self._clock() if at is None else at
        history = self._lanes.get(lane)
        if history is None or history.epoch < sequence.epoch:
            history = self._lanes[lane] = _History(sequence.epoch, 0, used)
            self._by_topic.setdefault(lane[1], set()).add(lane)
        history.next = sequence.first + sequence.count
        history.used = used
        history.results.append((sequence.first, stored))
        self._lanes.move_to_end(lane)
        self._changed[lane] = None
        self._keep_within()

    def complete(self, lane: Lane, rest: StoredBatch, at: float | None = None) -> StoredBatch:
        """Of the messages that are missing of the lane's last batch those at `rest` are stored; where all lie now."""
        history = self._lanes[lane]
        first, stored = history.results.pop()
        whole = stored.joined(rest)
        sequence = ProducerSequence(lane[0], history.epoch, first, whole.total)
        history.missing -= rest.count
        self.remember(lane, sequence, whole, at)
        return whole

    def replay(self, lane: Lane, sequence: ProducerSequence, stored: StoredBatch, at: float) -> None:
        """The log has a batch, in the order of the log. Copies of older ones (delivered, retried) change nothing.

        `stored` has fewer messages than `sequence` where the log lost the others.
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
        """Forget the lanes that were silent too long."""
        now = self._clock()
        while self._lanes:
            lane, history = next(iter(self._lanes.items()))
            history.used = min(history.used, now)  # the clock was ahead then: silent since now, for all that is known
            if history.used > now - EXPIRY_SECONDS:
                return
            self._drop(lane)

    def _keep_within(self) -> None:
        while len(self._lanes) > self._max_lanes:
            self._drop(next(iter(self._lanes)))

    def _drop(self, lane: Lane) -> None:
        del self._lanes[lane]
        of_topic = self._by_topic[lane[1]]
        of_topic.discard(lane)
        if not of_topic:
            del self._by_topic[lane[1]]

    def forget_topic(self, topic: str) -> None:
        """The topic was deleted: its offsets begin anew."""
        for lane in self._by_topic.pop(topic, ()):
            del self._lanes[lane]
            self._changed[lane] = None

    def take_changed(self) -> dict[Lane, None]:
        """The lanes that changed or were forgotten with their topic since the last call, or since the start."""
        changed, self._changed = self._changed, {}
        return changed

    def give_back(self, changed: Mapping[Lane, None]) -> None:
        """These were taken by `take_changed` and could not be saved."""
        self._changed |= changed

    def lanes(self) -> list[Lane]:
        """All of them."""
        return list(self._lanes)

    def rows(self, lanes: Iterable[Lane]) -> list[Any]:
        """These lanes as plain data, those that are not there any more as their name alone."""
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
        """Fill an empty table with `rows`, of each lane the last one; whether it is less than they say.

        Args:
            there: how many messages of a place, from its first one on, the log and its queues still have. What they
                have lost of a lane's batches never was: the first of these is cut, those behind it are forgotten.
        """
        known: dict[Lane, _History] = {}
        for producer, topic, queue_id, *rest in rows:
            lane = producer, topic, queue_id
            if not rest:
                known.pop(lane, None)
                continue
            epoch, following, used, results, *missing = rest
            history = known[lane] = _History(epoch, following, used, missing=missing[0] if missing else 0)
            history.results.extend((first, _from_plain(*stored)) for first, *stored in results)
        is_less = False
        for lane, history in sorted(known.items(), key=lambda each: each[1].used):
            is_less |= _keep_what_is_left(history, there)
            self._lanes[lane] = history
            self._by_topic.setdefault(lane[1], set()).add(lane)
        self._keep_within()
        return is_less

    def validate(self) -> None:
        """Results follow each other without a hole and end where the next batch begins, or what is missing."""
        for history in self._lanes.values():
            ends = [first + stored.total for first, stored in history.results]
            assert [*[first for first, _ in history.results][1:], history.next] == ends or not ends
            assert history.missing == 0 or (history.missing > 0 and ends)
        assert len(self._lanes) <= self._max_lanes
        assert {lane for lanes in self._by_topic.values() for lane in lanes} == self._lanes.keys()
        assert all(self._by_topic.values())


def _plain(stored: StoredBatch) -> list[Any]:
    """Four fields for each place, one place behind the other."""
    return [told for place in stored.places for told in (place.topic, place.queue_id, place.offset, place.count)]


def _from_plain(topic: str, queue_id: int, offset: int, count: int, *rest: Any) -> StoredBatch:
    return StoredBatch(topic, queue_id, offset, count, _from_plain(*rest) if rest else None)


def _keep_what_is_left(history: _History, there: Callable[[StoredBatch], int]) -> bool:
    """Forget what is not there any more; whether that was anything."""
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
