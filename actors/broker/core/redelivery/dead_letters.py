"""Dead letters of one broker: sending them to their group once more, each entry once unless forced; deleting them.

It is done in steps. In each it is looked whether an entry was redriven before, and its copy is stored: so two requests
that are under way together redrive no entry twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow.compute as pc

from raymq.actors.broker.core.copies.copying import REDRIVE, Copying, Duty, Made, place_of
from raymq.actors.broker.core.copies.rewriting import SPARE_WAITING, Append, encode_fitting, join
from raymq.actors.broker.core.delay.delivered import message_of
from raymq.actors.errors import OffsetOutOfRange, QueueNotFound, group_not_found
from raymq.actors.naming import check_group, dlq_topic, retry_topic
from raymq.actors.protocol import Redriven
from raymq.storage.config import split_host
from raymq.storage.errors import StoreCorrupt
from raymq.storage.records import property_names as names
from raymq.storage.records.property_columns import properties_of_records
from raymq.storage.records.record import Record, encode, encode_properties, pack_host_bytes
from raymq.storage.steps import Steps, finish
from raymq.storage.store import Store

_SCAN_MESSAGES = 4_096
_SCAN_BYTES = 8 << 20
#: The queue of a dead-letter topic that has the marks of its deleted entries.
_MARKS_QUEUE: Final = 1
#: So many entries are copied in a step, and so many bytes, one longer entry apart.
_STEP_ENTRIES = 32
_STEP_BYTES = 4 << 20
#: What a redriven message does not take along: how it came to its entry.
_LEFT_BEHIND = frozenset(
    {names.DELIVERED_FROM, names.DELAY, names.REAL_TOPIC, names.REAL_QID, names.DIED_IN, names.FAILURE}
)


#: What a redriven message does without if it does not fit, but not what says that it was redriven.
_SPARE = [names_ - {names.REDRIVEN_FROM} for names_ in SPARE_WAITING]


@dataclass(slots=True)
class _Seen:
    """What a queue of a retry topic says: which of its messages name an entry."""

    #: Up to where it was read.
    offset: int = 0
    #: Where it begins; what was before that has expired.
    low: int = 0
    #: By message id of an entry the offsets of the messages that name it.
    entries: dict[str, list[int]] = field(default_factory=dict)

    def expire(self, low: int) -> None:
        """The queue begins there now."""
        if low > self.low:
            left = ((entry, [each for each in at if each >= low]) for entry, at in self.entries.items())
            self.entries = {entry: at for entry, at in left if at}
            self.low, self.offset = low, max(self.offset, low)


@dataclass(slots=True)
class _Deleted:
    """Which entries of a dead-letter queue were deleted, as its marks say."""

    #: Up to where the marks were read.
    offset: int = 0
    entries: set[int] = field(default_factory=set)


class DeadLetters:
    """The dead-letter queues of one broker.

    That an entry was redriven is said by its copy in the group's retry topic alone, which names it and expires after
    it; so it is known after any crash. What was read of these topics is remembered.

    That entries were deleted is said by marks: records in a second queue of the dead-letter topic, which no reader has.
    A mark lies behind its entries in the log, so it expires after them, and a loss of power takes it before them.
    """

    def __init__(
        self,
        store: Store,
        ensure_group: Callable[[str], bool],
        copying: Copying,
        append: Append,
        clock: Callable[[], float],
    ) -> None:
        """`ensure_group` makes a group's retry topic where it is missing; `clock` is wall time in seconds."""
        self._store = store
        self._ensure_group = ensure_group
        self._copying = copying
        self._append = append
        self._clock = clock
        #: By dead-letter topic.
        self._deleted: dict[str, _Deleted] = {}
        #: By retry topic and queue.
        self._seen: dict[tuple[str, int], _Seen] = {}

    def redrive(self, group: str, offsets: Sequence[int], *, force: bool, dry_run: bool) -> list[Redriven]:
        """All steps of `redriving` at once."""
        return finish(self.redriving(group, offsets, force=force, dry_run=dry_run))

    def redriving(self, group: str, offsets: Sequence[int], *, force: bool, dry_run: bool) -> Steps[list[Redriven]]:
        """Give entries of a group's dead-letter queue to the group again; what was done, for each offset.

        The copies go to the group's retry topic and begin there with no retry behind them. One append stores those of
        a step; who is told of an error, and asks again, finds those of the steps before it to be redriven already.

        Args:
            force: also those that were redriven before.
            dry_run: say what would be done, and do nothing.

        Raises:
            GroupNotFound: this broker does not know the group.
        """
        if self._store.group_configs.get(check_group(group)) is None:
            raise group_not_found(group)
        known: set[str] = set()
        told: list[Redriven] = []
        while len(told) < len(offsets):
            if told:
                yield None
            if not force:
                yield from self._look(group)
            yield from self._look_for_marks(dlq_topic(group))
            told += self._part(group, offsets, len(told), known, force=force, dry_run=dry_run)
        return told

    def _part(
        self, group: str, offsets: Sequence[int], first: int, known: set[str], *, force: bool, dry_run: bool
    ) -> list[Redriven]:
        """One step of `redriving`: what was done for the next of `offsets`; `known` are the entries so far."""
        duty = Duty(REDRIVE, group)
        told: list[Redriven] = []
        chosen: list[Record] = []
        #: Which of `told` each message of the queue is.
        numbers: dict[int, int] = {}
        size = 0
        for offset in offsets[first : first + _STEP_ENTRIES]:
            entry = self._entry(duty, offset)
            if entry is not None and chosen and size + entry.size > _STEP_BYTES:
                break
            told.append(Redriven.UNKNOWN)
            if entry is None:
                continue
            size += entry.size
            name = _id_of(entry)
            if name in known or not (force or self._is_new(group, name, entry)):
                told[-1] = Redriven.ALREADY
                continue
            known.add(name)
            chosen.append(entry)
            numbers[offset] = len(told) - 1

        def redriven(part: Sequence[Made], _: object = None) -> None:
            for each in part:
                told[numbers[each.original.queue_offset]] = Redriven.REDRIVEN

        copies = self._copying.make(duty, chosen, lambda entry: (_copy(entry, group), (retry_topic(group), 0)))
        if dry_run:
            redriven(copies)
        elif copies:
            self._ensure_group(group)
            self._copying.store(duty, copies, redriven)
        return told

    def forget_topic(self, topic: str) -> None:
        """The topic was deleted: what its queues said is not said any more."""
        for topic_queue in [topic_queue for topic_queue in self._seen if topic_queue[0] == topic]:
            del self._seen[topic_queue]
        self._deleted.pop(topic, None)

    def deleting(self, group: str, offsets: Sequence[int]) -> Steps[int]:
        """Delete entries of a group's dead-letter queue, in steps; return how many were there.

        Raises:
            GroupNotFound: this broker has neither the group nor dead letters of it. StoreFull, StoreFailed: nothing was
                deleted.
        """
        topic = dlq_topic(check_group(group))
        is_known = self._store.group_configs.get(group) is not None or self._store.topic_configs.get(topic) is not None
        if not is_known:
            raise group_not_found(group)
        yield from self._look_for_marks(topic)
        known = self._deleted[topic]
        low, end = self._bounds(topic)
        there = sorted({offset for offset in offsets if low <= offset < end} - known.entries)
        if there:
            told = encode_properties({names.DELETED_LETTERS: str(len(there))})
            host = pack_host_bytes(*split_host(self._store.config.store_host))
            now_ms = int(self._clock() * 1000)
            body = json.dumps(there).encode()
            mark = encode(topic, _MARKS_QUEUE, body, told, born_timestamp_ms=now_ms, born_host=host)
            self._append(*join([mark]), (topic, _MARKS_QUEUE))
            known.entries.update(there)
        return len(there)

    def deleted(self, topic: str) -> Steps[list[tuple[int, int]]]:
        """Return the deleted entries of a dead-letter topic as ranges (first, end), in steps."""
        yield from self._look_for_marks(topic)
        low, _ = self._bounds(topic)
        known = self._deleted[topic]
        known.entries = {offset for offset in known.entries if offset >= low}
        ranges: list[tuple[int, int]] = []
        for offset in sorted(known.entries):
            if ranges and ranges[-1][1] == offset:
                ranges[-1] = ranges[-1][0], offset + 1
            else:
                ranges.append((offset, offset + 1))
        return ranges

    def counting(self, topic: str) -> Steps[int]:
        """Return how many entries a dead-letter topic has, deleted ones left out, in steps."""
        ranges = yield from self.deleted(topic)
        low, end = self._bounds(topic)
        return end - low - sum(end - first for first, end in ranges)

    def _bounds(self, topic: str) -> tuple[int, int]:
        try:
            return self._store.min_offset(topic, 0), self._store.max_offset(topic, 0, written=True)
        except QueueNotFound:
            return 0, 0

    def _look_for_marks(self, topic: str) -> Steps[None]:
        """Read the marks that a dead-letter topic got since they were read last."""
        while True:
            # Anew after each step: the topic may be deleted meanwhile.
            known = self._deleted.setdefault(topic, _Deleted())
            try:
                known.offset = max(known.offset, self._store.min_offset(topic, _MARKS_QUEUE))
                if known.offset >= self._store.max_offset(topic, _MARKS_QUEUE, written=True):
                    return
                with self._store.read(
                    topic, _MARKS_QUEUE, known.offset, _STEP_ENTRIES, _SCAN_BYTES, written=True
                ) as lease:
                    for mark in lease.messages():
                        if names.DELETED_LETTERS in mark.properties:
                            known.entries.update(json.loads(mark.body))
                    known.offset = lease.next_offset
            except QueueNotFound:
                return
            except StoreCorrupt:  # its entries are there again
                known.offset += 1
            yield None

    def _entry(self, duty: Duty, offset: int) -> Record | None:
        if offset in self._deleted[dlq_topic(duty.owner)].entries:
            return None
        try:
            records, _ = self._copying.read(duty, (dlq_topic(duty.owner), 0), offset, 1, _SCAN_BYTES)
        except (QueueNotFound, OffsetOutOfRange):
            return None
        return records[0] if records else None

    def _look(self, group: str) -> Steps[None]:
        """Read what has come into the group's retry topic since it was read last."""
        topic = retry_topic(group)
        for queue_id in self._store.queues(topic):
            while True:
                # Anew after each step: the topic may be deleted, and others read it, too.
                seen = self._seen.setdefault((topic, queue_id), _Seen())
                try:
                    seen.expire(self._store.min_offset(topic, queue_id))
                    if seen.offset >= self._store.max_offset(topic, queue_id, written=True):
                        break
                except QueueNotFound:
                    break
                self._read_on(seen, topic, queue_id)
                if seen.offset < self._store.max_offset(topic, queue_id, written=True):
                    yield None

    def _read_on(self, seen: _Seen, topic: str, queue_id: int) -> None:
        try:
            with self._store.read(topic, queue_id, seen.offset, _SCAN_MESSAGES, _SCAN_BYTES, written=True) as lease:
                column = properties_of_records(lease.records, lease.sizes).last(names.REDRIVEN_FROM)
                at = lease.queue_offsets[pc.is_valid(column).to_numpy(zero_copy_only=False)]
                for entry, place in zip(pc.drop_null(column).to_pylist(), at.tolist(), strict=True):
                    seen.entries.setdefault(entry, []).append(place)
                seen.offset = lease.next_offset
        except StoreCorrupt:
            seen.offset += 1

    def _is_new(self, group: str, name: str, entry: Record) -> bool:
        """Whether no message of the group's retry topic is a copy of an entry."""
        topic = retry_topic(group)
        places = (
            (topic, queue_id, offset)
            for queue_id in self._store.queues(topic)
            if (seen := self._seen.get((topic, queue_id))) is not None
            for offset in seen.entries.get(name, ())
        )
        return not any(self._is_copy(place, entry) for place in places)

    def _is_copy(self, place: tuple[str, int, int], entry: Record) -> bool:
        """Whether the message there, which says so, is a copy of the entry: anybody may write that into a message."""
        try:
            with self._store.read(*place, 1, written=True) as lease:
                return message_of(lease.messages()[0]) == message_of(entry)
        except StoreCorrupt:
            return True  # it cannot be told: an entry that comes twice is worse than one that has to be forced


def _copy(entry: Record, group: str) -> bytes:
    kept = {name: value for name, value in entry.properties.items() if name not in _LEFT_BEHIND}
    kept.setdefault(names.ORIGIN_MESSAGE_ID, entry.message_id)
    kept.setdefault(names.RETRY_TOPIC, entry.topic)
    kept[names.REDRIVEN_FROM] = entry.message_id
    return encode_fitting(replace(entry, reconsume_times=0), retry_topic(group), 0, kept, _SPARE)


def _id_of(entry: Record) -> str:
    return place_of(entry).message_id
