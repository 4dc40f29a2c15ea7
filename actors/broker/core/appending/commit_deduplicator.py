"""Find the rows of a commit that an earlier, interrupted attempt has already appended.

After a kill, only one chunk is concerned, and a part of the log that has nothing else. After a loss of power, any chunk
may lie anywhere after the start of the commit, among the records of others. Chunks are appended in order, so they are
searched for in order: each part of the log is read once, however many chunks there are. In memory are only the records
that lie before the row being searched for and that belong to no earlier chunk.

Rows may be equal, and each record stands for one of them. So chunks that are known to be in the log also claim theirs.

A damaged range of the log may contain rows, too. The offsets of the queue around it, or its bytes, limit how many it
can contain: that many of the rows that are not found, in their order, are undecided.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple, TypeVar

import numpy as np

from raymq.storage.errors import StoreCorrupt
from raymq.storage.log.log_salvage import DamagedRange
from raymq.storage.records.record import MIN_RECORD_BYTES, Record, decode
from raymq.storage.tables.staged_chunk import StagedChunk

#: How many records, or bytes of them, one step reads in the log or in a chunk.
_RECORDS_A_STEP = 128
_BYTES_A_STEP = 1 << 20

#: Topic, queue id and the hash of the row's content.
_Key = tuple[str, int, bytes]
#: Begin and end in the log; None: the end of the log.
_Attempt = tuple[int, int | None]
_Place = tuple[int, int]
_TopicQueue = tuple[str, int]
_T = TypeVar("_T")
#: A computation that yields 0 between its steps, as `StagedCommit.append` does while no record is added.
_Search = Generator[int, None, _T]
_Walk = Callable[[int], Iterator[Record | DamagedRange]]


class UnstoredRows(NamedTuple):
    """The rows of a chunk that are not in the log.

    Attributes:
        chunk: the chunk with these rows only.
        numbers: the indices of these rows in the original chunk.
        undecided: the indices of the rows that may or may not be in the log; they are not in `chunk`.
    """

    chunk: StagedChunk
    numbers: Sequence[int]
    undecided: Sequence[int]


def all_rows(chunk: StagedChunk) -> UnstoredRows:
    """Return all rows of a chunk as unstored.

    Use it for a chunk of which no rows are in the log.
    """
    return UnstoredRows(chunk, range(len(chunk.sizes)), ())


class CommitDeduplicator:
    """Finds rows of one commit in the log. Used by the store's writer only."""

    def __init__(
        self,
        walk: _Walk,
        log_end: int,
        topics: Collection[str],
        ends: tuple[int, Mapping[_TopicQueue, int]],
        on_damage: Callable[[DamagedRange], None],
    ) -> None:
        """Create a deduplicator that has read nothing yet.

        Args:
            walk: yields the records from a physical offset on, and the damaged ranges between them.
            log_end: where the log ends; an attempt without an end ends there.
            topics: topics outside of these have no rows of the commit.
            ends: a physical offset, and the ends of queues at that offset.
            on_damage: called once for each damaged range that is found.
        """
        self._walk = walk
        self._log_end = log_end
        self._topics = topics
        self._ends = ends
        self._on_damage = on_damage
        self._ranges: dict[_Place, _LogRange] = {}

    def missing(self, chunk: StagedChunk, places: Collection[_Attempt]) -> _Search[UnstoredRows]:
        """Return the rows of a chunk that these parts of the log lack.

        The rows that are found count as this chunk's: no other chunk finds them again. The same holds for rows that may
        lie in a damaged range.
        """
        keys: list[_Key | None] = []
        wanted: Counter[_Key] = Counter()
        work = 0
        for key, size in _keys_of(chunk):
            if work >= _BYTES_A_STEP:
                work = 0
                yield 0
            keys.append(key)
            if key is not None:
                wanted[key] += 1
            work += _BYTES_A_STEP // _RECORDS_A_STEP + size
        found: Counter[_Key] = Counter()
        ranges: list[_LogRange] = []
        for begin, end in places:
            place = begin, self._log_end if end is None else end
            log_range = self._ranges.get(place)
            if log_range is None:
                damaged = _UncertainRange(self._ends[1] if begin == self._ends[0] else {})
                log_range = self._ranges[place] = _LogRange(self._walk, place, self._topics, damaged, self._on_damage)
            ranges.append(log_range)
            yield from log_range.claim(wanted, found)
        uncertain = [each.uncertain for each in ranges if each.uncertain.bytes]
        return _without(chunk, keys, found, uncertain) if found or uncertain else all_rows(chunk)


class _UncertainRange:
    """How many rows of each queue may lie in the damaged ranges read so far.

    It covers one part of the log.
    """

    def __init__(self, ends: Mapping[_TopicQueue, int]) -> None:
        """Create the counts; `ends` has the offsets of the queues' first records there.

        Offsets that are unknown are missing from `ends`.
        """
        #: How many bytes are damaged.
        self.bytes = 0
        self._following = dict(ends)
        self._looked_at: Counter[_TopicQueue] = Counter()
        self._rows: Counter[_TopicQueue] = Counter()
        self._room: Counter[_TopicQueue] = Counter()

    def seen(self, topic_queue: _TopicQueue, offset: int) -> None:
        """Record the offset of the next intact record of a queue.

        Offsets of the queue that were skipped lie in the damage before that record.
        """
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
        """Return True if a missing row of `size` bytes may lie in the damage.

        Rows must be passed in their order. The row then takes its place in the damage.
        """
        if self._rows[topic_queue]:
            self._rows[topic_queue] -= 1
            return True
        self._room[topic_queue] += self.bytes - self._looked_at[topic_queue]
        self._looked_at[topic_queue] = self.bytes
        # Rows were appended in order: if one does not fit in the damage, no later one was appended.
        self._room[topic_queue] = max(self._room[topic_queue] - size, -1)
        return self._room[topic_queue] >= 0


class _LogRange:
    """A part of the log, and its unclaimed records as far as it was read."""

    def __init__(
        self,
        walk: _Walk,
        place: _Place,
        topics: Collection[str],
        uncertain: _UncertainRange,
        on_damage: Callable[[DamagedRange], None],
    ) -> None:
        self._walk = walk
        self._position, self._end = place
        self._topics = topics
        self.uncertain = uncertain
        self._on_damage = on_damage
        self._damaged_to = -1
        self._unclaimed: Counter[_Key] = Counter()

    def claim(self, wanted: Counter[_Key], found: Counter[_Key]) -> _Search[None]:
        """Move the rows that are found here from `wanted` to `found`.

        Reading continues where the last call stopped.
        """
        for key in [key for key in wanted if key in self._unclaimed] if self._unclaimed else ():
            count = min(wanted[key], self._unclaimed[key])
            _move(key, count, wanted, found)
            _take(key, count, self._unclaimed)
        begun = False
        while wanted and self._position < self._end:
            if begun:
                yield 0
            begun = True
            if not self._look(wanted, found):
                break
        # The rows of later chunks lie after those of this one. After damage this does not hold: the last row that was
        # found may be an equal one of a later chunk.
        if begun and not wanted and not self.uncertain.bytes:
            self._unclaimed.clear()

    def _look(self, wanted: Counter[_Key], found: Counter[_Key]) -> bool:
        """Read some more records, and return whether there were any.

        The walk is started again on each call, because files may expire meanwhile.
        """
        work = 0
        for record in islice(self._walk(self._position), _RECORDS_A_STEP):
            if isinstance(record, DamagedRange):
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
                self.uncertain.seen((record.topic, record.queue_id), record.queue_offset)
                key = record.topic, record.queue_id, _hash_of(record)
                if key in wanted:
                    _move(key, 1, wanted, found)
                else:
                    self._unclaimed[key] += 1
            if not wanted or work >= _BYTES_A_STEP:
                break
        return work > 0

    def _pass(self, damage: DamagedRange) -> int:
        """Skip a damaged range and return its size in bytes; report it only once."""
        if damage.begin != self._damaged_to:
            self._on_damage(damage)
        self._position = self._damaged_to = damage.end
        self.uncertain.bytes += min(damage.end, self._end) - damage.begin
        return damage.end - damage.begin


def _keys_of(chunk: StagedChunk) -> Iterator[tuple[_Key | None, int]]:
    """Yield the key of each row, None if it is unreadable, and the row's size."""
    position = 0
    for size in chunk.sizes.tolist():
        content_hash = _hash_at(chunk.records, position)
        yield None if content_hash is None else (chunk.topic, chunk.queue_id, content_hash), size
        position += size


def _move(key: _Key, count: int, wanted: Counter[_Key], found: Counter[_Key]) -> None:
    found[key] += count
    _take(key, count, wanted)


def _take(key: _Key, count: int, counted: Counter[_Key]) -> None:
    counted[key] -= count
    if not counted[key]:
        del counted[key]


def _without(
    chunk: StagedChunk, keys: Collection[_Key | None], found: Counter[_Key], uncertain: Sequence[_UncertainRange]
) -> UnstoredRows:
    remaining: list[memoryview] = []
    numbers: list[int] = []
    undecided: list[int] = []
    topic_queue, position = (chunk.topic, chunk.queue_id), 0
    for number, (key, size) in enumerate(zip(keys, chunk.sizes.tolist(), strict=True)):
        if key is not None and found[key]:
            found[key] -= 1
        elif key is not None and any(each.take(topic_queue, size) for each in uncertain):
            undecided.append(number)
        else:
            numbers.append(number)
            remaining.append(chunk.records[position : position + size])
        position += size
    sizes = np.fromiter(map(len, remaining), np.int32, len(remaining))
    return UnstoredRows(replace(chunk, records=memoryview(b"".join(remaining)), sizes=sizes), numbers, undecided)


def _hash_of(record: Record) -> bytes:
    """Return a 16-byte hash of a record's body and properties.

    Its unique key alone would not suffice, because some senders omit it.
    """
    properties = repr(sorted(record.properties.items())).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(record.body + properties, digest_size=16).digest()


def _hash_at(records: memoryview, position: int) -> bytes | None:
    """Return the hash of the record at `position`, or None if it is damaged.

    A damaged row is not searched for; its append then raises the error.
    """
    try:
        return _hash_of(decode(records, position))
    except StoreCorrupt:
        return None
