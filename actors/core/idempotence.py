"""What a broker remembers of its idempotent producers, so that a batch sent twice is stored once. No I/O.

A lane is one producer in one queue. Its producer numbers the lane's messages from 0, epoch by epoch; the last results
are kept, and a batch that is sent again gets the first one's. A producer that lost count begins a new epoch at 0.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from raymq.actors.errors import SequenceGap
from raymq.storage.producer_sequence import ProducerSequence

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
    """Where a batch lies: `count` messages from `offset` on (delayed ones wait in the schedule topic)."""

    topic: str
    queue_id: int
    offset: int
    count: int


@dataclass(slots=True)
class _History:
    epoch: int
    next: int
    used: float
    results: deque[tuple[int, StoredBatch]] = field(default_factory=lambda: deque(maxlen=KEPT_RESULTS))


class ProducerTable:
    """Used from the broker's thread. `clock` is wall time without steps, in seconds."""

    def __init__(self, clock: Callable[[], float], *, max_lanes: int = MAX_LANES) -> None:
        self._clock = clock
        self._max_lanes = max_lanes
        #: Least recently used first.
        self._lanes: OrderedDict[Lane, _History] = OrderedDict()

    def __len__(self) -> int:
        return len(self._lanes)

    def check(self, lane: Lane, sequence: ProducerSequence) -> StoredBatch | None:
        """None for the batch that comes next, the first result for one that is here already.

        Raises:
            SequenceGap: batches are missing before it, it is of an epoch that is over, or its result is not kept.
        """
        history = self._lanes.get(lane)
        results: Iterable[tuple[int, StoredBatch]]
        if history is None or sequence.epoch > history.epoch:
            following, results = 0, ()
        elif sequence.epoch == history.epoch:
            following, results = history.next, history.results
        else:
            raise SequenceGap(f"producer {lane[0]} is in epoch {history.epoch}, the batch in {sequence.epoch}")
        if sequence.first == following:
            return None
        for first, stored in results:
            if (first, stored.count) == (sequence.first, sequence.count):
                return stored
        raise SequenceGap(f"producer {lane[0]}: message {following} comes next, the batch begins with {sequence.first}")

    def remember(self, lane: Lane, sequence: ProducerSequence, stored: StoredBatch, at: float | None = None) -> None:
        """A batch that `check` let through is stored; `at` is when, now if None."""
        used = self._clock() if at is None else at
        history = self._lanes.get(lane)
        if history is None or history.epoch < sequence.epoch:
            history = self._lanes[lane] = _History(sequence.epoch, 0, used)
        history.next = sequence.first + sequence.count
        history.used = used
        history.results.append((sequence.first, stored))
        self._lanes.move_to_end(lane)
        while len(self._lanes) > self._max_lanes:
            self._lanes.popitem(last=False)

    def replay(self, lane: Lane, sequence: ProducerSequence, stored: StoredBatch, at: float) -> None:
        """The log has a batch, in the order of the log. Copies of older ones (delivered, retried) change nothing."""
        history = self._lanes.get(lane)
        if history is None or (sequence.epoch, sequence.first) >= (history.epoch, history.next):
            if history is not None and sequence.epoch == history.epoch and sequence.first > history.next:
                history.results.clear()
            self.remember(lane, sequence, stored, at)

    def expire(self) -> None:
        """Forget the lanes that were silent too long."""
        now = self._clock()
        while self._lanes:
            lane, history = next(iter(self._lanes.items()))
            history.used = min(history.used, now)  # the clock was ahead then: silent since now, for all that is known
            if history.used > now - EXPIRY_SECONDS:
                return
            self._lanes.pop(lane)

    def forget_topic(self, topic: str) -> None:
        """The topic was deleted: its offsets begin anew."""
        for lane in [lane for lane in self._lanes if lane[1] == topic]:
            self._lanes.pop(lane)

    def dump(self) -> list[Any]:
        """Everything as plain data."""
        return [
            [*lane, h.epoch, h.next, h.used, [[f, s.topic, s.queue_id, s.offset, s.count] for f, s in h.results]]
            for lane, h in self._lanes.items()
        ]

    def load(self, dumped: list[Any], is_there: Callable[[StoredBatch], bool]) -> None:
        """The reverse of `dump`. A lane's batches that are not there any more (the log lost its end) never were."""
        for lane, epoch, following, used, results in _read(dumped):
            history = _History(epoch, following, used)
            for first, stored in results:
                if not is_there(stored):
                    history.next = first
                    break
                history.results.append((first, stored))
            self._lanes[lane] = history

    def validate(self) -> None:
        """Results follow each other without a hole and end where the next batch begins."""
        for history in self._lanes.values():
            ends = [first + stored.count for first, stored in history.results]
            assert [*[first for first, _ in history.results][1:], history.next] == ends or not ends
        assert len(self._lanes) <= self._max_lanes


def _read(dumped: list[Any]) -> Iterator[tuple[Lane, int, int, float, list[tuple[int, StoredBatch]]]]:
    for producer, topic, queue_id, epoch, following, used, results in dumped:
        stored = [(int(first), StoredBatch(name, q, offset, count)) for first, name, q, offset, count in results]
        yield (producer, topic, queue_id), epoch, following, used, stored
