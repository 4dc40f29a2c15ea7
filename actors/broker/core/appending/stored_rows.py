"""Which rows of a commit are in the log already, where an earlier attempt to append them was interrupted.

After a kill that is asked of one chunk, and of the part of the log that holds nothing else. After a loss of power any
chunk may stand anywhere behind the commit's beginning, among others' records. Chunks are appended in their order, so
they are looked for in their order, too: each part of the log is walked once, however many chunks there are, and what is
kept of it meanwhile is what lies before the row that is looked for and is no row of the chunks before.

Rows may be alike, and each stands for one: so also the chunks that are known to be in the log claim theirs.

A damaged place of the log may have rows, too. How many it can have at most, the offsets of the queue around it say, or
its bytes: so many of the rows that are not found, in their order, are undecided.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

import numpy as np

from raymq.storage.errors import StoreCorrupt
from raymq.storage.log.past_damage import Damage
from raymq.storage.records.record import MIN_RECORD_BYTES, Record, decode
from raymq.storage.steps import Steps
from raymq.storage.tables.staged_chunk import StagedChunk

#: A step looks at so many records, in the log or in a chunk, or at so many bytes of them.
_RECORDS_A_STEP = 128
_BYTES_A_STEP = 1 << 20

#: Topic, queue and what the row says.
_Key = tuple[str, int, bytes]
#: From where to where in the log; None: to its end.
_Attempt = tuple[int, int | None]
_Place = tuple[int, int]
_TopicQueue = tuple[str, int]
_Walk = Callable[[int], Iterator[Record | Damage]]


class Sought(NamedTuple):
    """What of a chunk is not in the log.

    Attributes:
        chunk: it with these rows only.
        numbers: which rows of it these are.
        undecided: which rows of it are those of which it cannot be told; they are not in `chunk`.
    """

    chunk: StagedChunk
    numbers: Sequence[int]
    undecided: Sequence[int]


def whole(chunk: StagedChunk) -> Sought:
    """A chunk of which the log has nothing."""
    return Sought(chunk, range(len(chunk.sizes)), ())


class StoredRows:
    """Finds rows of one commit in the log. Belongs to the store's writer."""

    def __init__(
        self,
        walk: _Walk,
        log_end: int,
        topics: Collection[str],
        ends: tuple[int, Mapping[_TopicQueue, int]],
        told: Callable[[Damage], None],
    ) -> None:
        """Begin with nothing looked at.

        Args:
            walk: the records from a place of the log on, and the damage between them.
            log_end: where the log ends; an attempt that is open ends there.
            topics: others have no rows of the commit.
            ends: a place of the log, and where queues ended there.
            told: told of damage that is met, once of each.
        """
        self._walk = walk
        self._log_end = log_end
        self._topics = topics
        self._ends = ends
        self._told = told
        self._stretches: dict[_Place, _Stretch] = {}

    def claim(self, chunk: StagedChunk, places: Collection[_Attempt]) -> Steps[None]:
        """Have the rows of a chunk that is in the log found for no other one in these parts of it."""
        yield from self.missing(chunk, places)

    def missing(self, chunk: StagedChunk, places: Collection[_Attempt]) -> Steps[Sought]:
        """The chunk with those of its rows only that are in none of these parts of the log.

        What is found counts as this chunk's: no other one finds it again. So does what may be in a damaged place.
        """
        keys: list[_Key | None] = []
        found, stretches = yield from self._claimed(_noted(_keys_of(chunk), keys), places)
        doubts = [each.doubts for each in stretches if each.doubts.bytes]
        return _without(chunk, keys, found, doubts) if found or doubts else whole(chunk)

    def _claimed(
        self, keys: Iterator[tuple[_Key | None, int]], places: Collection[_Attempt]
    ) -> Steps[tuple[Counter[_Key], list[_Stretch]]]:
        wanted: Counter[_Key] = Counter()
        work = 0
        for key, size in keys:
            if work >= _BYTES_A_STEP:
                work = 0
                yield None
            if key is not None:
                wanted[key] += 1
            work += _BYTES_A_STEP // _RECORDS_A_STEP + size
        found: Counter[_Key] = Counter()
        stretches: list[_Stretch] = []
        for begin, end in places:
            place = begin, self._log_end if end is None else end
            stretch = self._stretches.get(place)
            if stretch is None:
                doubts = _Doubts(self._ends[1] if begin == self._ends[0] else {})
                stretch = self._stretches[place] = _Stretch(self._walk, place, self._topics, doubts, self._told)
            stretches.append(stretch)
            yield from stretch.claim(wanted, found)
        return found, stretches


class _Doubts:
    """How many rows of each queue may stand in the damaged places of a part of the log, where that was walked."""

    def __init__(self, ends: Mapping[_TopicQueue, int]) -> None:
        """`ends`: the offsets of the queues' first records there, as far as they are known."""
        #: How much is damaged.
        self.bytes = 0
        self._following = dict(ends)
        self._looked_at: Counter[_TopicQueue] = Counter()
        self._rows: Counter[_TopicQueue] = Counter()
        self._room: Counter[_TopicQueue] = Counter()

    def seen(self, topic_queue: _TopicQueue, offset: int) -> None:
        """The next sound record of a queue has that offset: what it has none of is in the damage before it."""
        damaged = self.bytes - self._looked_at[topic_queue]
        if damaged:
            gap = offset - self._following.get(topic_queue, offset + 1)
            if gap < 0:
                self._room[topic_queue] += damaged
            else:
                self._rows[topic_queue] += min(gap, damaged // MIN_RECORD_BYTES + 1)
            self._looked_at[topic_queue] = self.bytes
        self._following[topic_queue] = offset + 1

    def take(self, topic_queue: _TopicQueue, size: int) -> bool:
        """Whether a row of that size, which is the next one that was not found, may be there; it has its place then."""
        if self._rows[topic_queue]:
            self._rows[topic_queue] -= 1
            return True
        self._room[topic_queue] += self.bytes - self._looked_at[topic_queue]
        self._looked_at[topic_queue] = self.bytes
        # Rows come in their order: where one has no room, no later one has been written.
        self._room[topic_queue] = max(self._room[topic_queue] - size, -1)
        return self._room[topic_queue] >= 0


class _Stretch:
    """A part of the log, and which of its records nobody has claimed yet, as far as it was looked at."""

    def __init__(
        self, walk: _Walk, place: _Place, topics: Collection[str], doubts: _Doubts, told: Callable[[Damage], None]
    ) -> None:
        self._walk = walk
        self._position, self._end = place
        self._topics = topics
        self.doubts = doubts
        self._told = told
        self._damaged_to = -1
        self._unclaimed: Counter[_Key] = Counter()

    def claim(self, wanted: Counter[_Key], found: Counter[_Key]) -> Steps[None]:
        """Move what is here from `wanted` to `found`. It goes on from where it was the last time."""
        for key in [key for key in wanted if key in self._unclaimed] if self._unclaimed else ():
            count = min(wanted[key], self._unclaimed[key])
            _move(key, count, wanted, found)
            _take(key, count, self._unclaimed)
        begun = False
        while wanted and self._position < self._end:
            if begun:
                yield None
            begun = True
            if not self._look(wanted, found):
                break
        # The rows of later chunks lie behind those of this one. Behind damage the last one that was found may be alike,
        # and of a later chunk.
        if begun and not wanted and not self.doubts.bytes:
            self._unclaimed.clear()

    def _look(self, wanted: Counter[_Key], found: Counter[_Key]) -> bool:
        """Look at some more records, which are walked to anew: files may expire meanwhile. Whether there were any."""
        work = 0
        for record in islice(self._walk(self._position), _RECORDS_A_STEP):
            if isinstance(record, Damage):
                if record.begin >= self._end:
                    return False
                work += self._pass(record)
                if work >= _BYTES_A_STEP:
                    break
                continue
            self._position = record.physical_offset
            if self._position >= self._end:
                return False
            self._position += record.size
            work += record.size
            if record.topic in self._topics:
                self.doubts.seen((record.topic, record.queue_id), record.queue_offset)
                key = record.topic, record.queue_id, _sense(record)
                if key in wanted:
                    _move(key, 1, wanted, found)
                else:
                    self._unclaimed[key] += 1
            if not wanted or work >= _BYTES_A_STEP:
                break
        return work > 0

    def _pass(self, damage: Damage) -> int:
        """Go on behind damage, which is told once however long it is; how many bytes it has."""
        if damage.begin != self._damaged_to:
            self._told(damage)
        self._position = self._damaged_to = damage.end
        self.doubts.bytes += min(damage.end, self._end) - damage.begin
        return damage.end - damage.begin


def _keys_of(chunk: StagedChunk) -> Iterator[tuple[_Key | None, int]]:
    """What each row says, None where it cannot be read, and its size."""
    position = 0
    for size in chunk.sizes.tolist():
        sense = _sense_of(chunk.records, position)
        yield None if sense is None else (chunk.topic, chunk.queue_id, sense), size
        position += size


def _noted(keys: Iterator[tuple[_Key | None, int]], noted: list[_Key | None]) -> Iterator[tuple[_Key | None, int]]:
    """The same, put down on the way."""
    for key, size in keys:
        noted.append(key)
        yield key, size


def _move(key: _Key, count: int, wanted: Counter[_Key], found: Counter[_Key]) -> None:
    found[key] += count
    _take(key, count, wanted)


def _take(key: _Key, count: int, counted: Counter[_Key]) -> None:
    counted[key] -= count
    if not counted[key]:
        del counted[key]


def _without(
    chunk: StagedChunk, keys: Collection[_Key | None], found: Counter[_Key], doubts: Sequence[_Doubts]
) -> Sought:
    kept: list[memoryview] = []
    numbers: list[int] = []
    undecided: list[int] = []
    topic_queue, position = (chunk.topic, chunk.queue_id), 0
    for number, (key, size) in enumerate(zip(keys, chunk.sizes.tolist(), strict=True)):
        if key is not None and found[key]:
            found[key] -= 1
        elif key is not None and any(each.take(topic_queue, size) for each in doubts):
            undecided.append(number)
        else:
            numbers.append(number)
            kept.append(chunk.records[position : position + size])
        position += size
    sizes = np.fromiter(map(len, kept), np.int32, len(kept))
    return Sought(replace(chunk, records=memoryview(b"".join(kept)), sizes=sizes), numbers, undecided)


def _sense(record: Record) -> bytes:
    """What a record says, in 16 bytes. Its unique key alone would not do: some senders leave it out."""
    told = repr(sorted(record.properties.items())).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(record.body + told, digest_size=16).digest()


def _sense_of(records: memoryview, position: int) -> bytes | None:
    """The same; None where the record is damaged: then none is looked for, and its append says so."""
    try:
        return _sense(decode(records, position))
    except StoreCorrupt:
        return None
