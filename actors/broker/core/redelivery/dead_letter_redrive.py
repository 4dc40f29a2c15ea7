"""Redrive and delete the dead letters of one broker.

A dead letter is redriven (sent to its group again) once, unless forced. The work is done in steps. Each step both
checks whether an entry was redriven before and stores its copy, so two concurrent requests redrive no entry twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow.compute as pc

from raymq.actors.broker.core.copies.record_copy import DROPPABLE_WAITING, RecordAppender, join, reencode_trimmed
from raymq.actors.broker.core.copies.republisher import REDRIVE, CopyPurpose, Republisher, location_of
from raymq.actors.broker.core.delay.delivery_recovery import message_content
from raymq.actors.errors import OffsetOutOfRange, QueueNotFound, group_not_found
from raymq.actors.naming import check_group, dlq_topic, retry_topic
from raymq.actors.protocol import RedriveStatus
from raymq.storage.config import split_host
from raymq.storage.cooperative_steps import Steps
from raymq.storage.errors import StoreCorrupt
from raymq.storage.records import property_names as names
from raymq.storage.records.property_columns import properties_of_records
from raymq.storage.records.record import Record, encode, encode_properties, pack_host_bytes
from raymq.storage.store import Store

_SCAN_MESSAGES = 4_096
_SCAN_BYTES = 8 << 20
#: The queue of a dead-letter topic in which the marks of deleted entries are.
_MARKS_QUEUE: Final = 1
#: How many entries and bytes one step copies; a single longer entry is copied too.
_STEP_ENTRIES = 32
_STEP_BYTES = 4 << 20
#: Properties that a redriven message does not keep: how it became a dead letter.
_LEFT_BEHIND = frozenset(
    {names.DELIVERED_FROM, names.DELAY, names.REAL_TOPIC, names.REAL_QID, names.DIED_IN, names.FAILURE}
)


#: Properties that are dropped from a redriven message that is too long, but never the mark that it was redriven.
_SPARE = [names_ - {names.REDRIVEN_FROM} for names_ in DROPPABLE_WAITING]


@dataclass(slots=True)
class _RetryTopicIndex:
    """The messages of one retry topic queue that are copies of dead letters."""

    #: The offset up to which the queue was read.
    offset: int = 0
    #: The minimum offset of the queue; earlier messages have expired.
    low: int = 0
    #: By message id of an entry, the offsets of the messages that name it.
    entries: dict[str, list[int]] = field(default_factory=dict)

    def expire(self, low: int) -> None:
        """Drop the messages before `low`, where the queue begins now."""
        if low > self.low:
            remaining = ((entry, [each for each in at if each >= low]) for entry, at in self.entries.items())
            self.entries = {entry: at for entry, at in remaining if at}
            self.low, self.offset = low, max(self.offset, low)


@dataclass(slots=True)
class _DeletedEntries:
    """The deleted entries of a dead-letter queue, according to its marks."""

    #: The offset up to which the marks were read.
    offset: int = 0
    entries: set[int] = field(default_factory=set)


class DeadLetterRedrive:
    """The dead-letter queues of one broker.

    That an entry was redriven is recorded only by its copy in the group's retry topic. The copy names the entry and
    expires after it, so the fact is known after any crash. The copies that were read are cached in memory.

    Deleted entries are recorded by marks: records in a second queue of the dead-letter topic, which no consumer reads.
    A mark lies after its entries in the log, so it expires after them, and a loss of power removes it before them.
    """

    def __init__(
        self,
        store: Store,
        ensure_group: Callable[[str], bool],
        copying: Republisher,
        append: RecordAppender,
        clock: Callable[[], float],
    ) -> None:
        """Create the queues; `ensure_group` creates a missing retry topic of a group.

        `clock` is wall time in seconds.
        """
        self._store = store
        self._ensure_group = ensure_group
        self._copying = copying
        self._append = append
        self._clock = clock
        #: By dead-letter topic.
        self._deleted: dict[str, _DeletedEntries] = {}
        #: By retry topic and queue.
        self._seen: dict[tuple[str, int], _RetryTopicIndex] = {}

    def redrive_steps(
        self, group: str, offsets: Sequence[int], *, force: bool, dry_run: bool
    ) -> Steps[list[RedriveStatus]]:
        """Redrive entries of a group's dead-letter queue; return the status of each offset.

        The copies go to the group's retry topic and start with no retries counted. One append stores the copies of a
        step. If an error is raised and the client repeats the request, the entries of the earlier steps are reported as
        already redriven.

        Args:
            force: also redrive those that were redriven before.
            dry_run: report what would be done, and do nothing.

        Raises:
            GroupNotFound: this broker does not know the group.
        """
        if self._store.group_configs.get(check_group(group)) is None:
            raise group_not_found(group)
        known: set[str] = set()
        statuses: list[RedriveStatus] = []
        while len(statuses) < len(offsets):
            if statuses:
                yield None
            if not force:
                yield from self._look(group)
            yield from self._find_marks(dlq_topic(group))
            statuses += self._part(group, offsets, len(statuses), known, force=force, dry_run=dry_run)
        return statuses

    def _part(
        self, group: str, offsets: Sequence[int], first: int, known: set[str], *, force: bool, dry_run: bool
    ) -> list[RedriveStatus]:
        """Do one step of `redrive_steps`, and return the status of each offset of the step.

        `known` has the ids of the entries that were handled so far.
        """
        duty = CopyPurpose(REDRIVE, group)
        statuses: list[RedriveStatus] = []
        chosen: list[Record] = []
        #: By offset of a message, its index in `told`.
        numbers: dict[int, int] = {}
        size = 0
        for offset in offsets[first : first + _STEP_ENTRIES]:
            entry = self._entry(duty, offset)
            if entry is not None and chosen and size + entry.size > _STEP_BYTES:
                break
            statuses.append(RedriveStatus.UNKNOWN)
            if entry is None:
                continue
            size += entry.size
            name = _id_of(entry)
            if name in known or not (force or self._is_new(group, name, entry)):
                statuses[-1] = RedriveStatus.ALREADY
                continue
            known.add(name)
            chosen.append(entry)
            numbers[offset] = len(statuses) - 1

        copies = self._copying.make(duty, chosen, lambda entry: (_copy(entry, group), (retry_topic(group), 0)))
        if copies and not dry_run:
            self._ensure_group(group)
        for part in [copies] if dry_run else self._copying.store(duty, copies):
            for each in part:
                statuses[numbers[each.original.queue_offset]] = RedriveStatus.REDRIVEN
        return statuses

    def forget_topic(self, topic: str) -> None:
        """Drop the cached state of a deleted topic."""
        for topic_queue in [topic_queue for topic_queue in self._seen if topic_queue[0] == topic]:
            del self._seen[topic_queue]
        self._deleted.pop(topic, None)

    def delete_steps(self, group: str, offsets: Sequence[int]) -> Steps[int]:
        """Delete entries of a group's dead-letter queue, in steps; return how many existed.

        Raises:
            GroupNotFound: this broker has neither the group nor dead letters of it.
            StoreFull, StoreFailed: nothing was deleted.
        """
        topic = dlq_topic(check_group(group))
        is_known = self._store.group_configs.get(group) is not None or self._store.topic_configs.get(topic) is not None
        if not is_known:
            raise group_not_found(group)
        yield from self._find_marks(topic)
        known = self._deleted[topic]
        low, end = self._bounds(topic)
        there = sorted({offset for offset in offsets if low <= offset < end} - known.entries)
        if there:
            properties = encode_properties({names.DELETED_LETTERS: str(len(there))})
            host = pack_host_bytes(*split_host(self._store.config.store_host))
            now_ms = int(self._clock() * 1000)
            body = json.dumps(there).encode()
            mark = encode(topic, _MARKS_QUEUE, body, properties, born_timestamp_ms=now_ms, born_host=host)
            self._append(*join([mark]), (topic, _MARKS_QUEUE))
            known.entries.update(there)
        return len(there)

    def deleted_range_steps(self, topic: str) -> Steps[list[tuple[int, int]]]:
        """Return the deleted entries of a dead-letter topic as ranges (first, end), in steps."""
        yield from self._find_marks(topic)
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

    def count_steps(self, topic: str) -> Steps[int]:
        """Return how many entries a dead-letter topic has, without deleted ones, in steps."""
        ranges = yield from self.deleted_range_steps(topic)
        low, end = self._bounds(topic)
        return end - low - sum(end - first for first, end in ranges)

    def _bounds(self, topic: str) -> tuple[int, int]:
        try:
            return self._store.min_offset(topic, 0), self._store.max_offset(topic, 0, written=True)
        except QueueNotFound:
            return 0, 0

    def _find_marks(self, topic: str) -> Steps[None]:
        """Read the marks of a dead-letter topic that were added since the last call."""
        while True:
            # Look it up again after each step: the topic may be deleted meanwhile.
            known = self._deleted.setdefault(topic, _DeletedEntries())
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
            except StoreCorrupt:  # the entries of a damaged mark exist again
                known.offset += 1
            yield None

    def _entry(self, duty: CopyPurpose, offset: int) -> Record | None:
        if offset in self._deleted[dlq_topic(duty.owner)].entries:
            return None
        try:
            records, _ = self._copying.read(duty, (dlq_topic(duty.owner), 0), offset, 1, _SCAN_BYTES)
        except (QueueNotFound, OffsetOutOfRange):
            return None
        return records[0] if records else None

    def _look(self, group: str) -> Steps[None]:
        """Read the messages of a group's retry topic that were added since the last call."""
        topic = retry_topic(group)
        for queue_id in self._store.queues(topic):
            while True:
                # Look it up again after each step: the topic may be deleted, and other requests read it, too.
                seen = self._seen.setdefault((topic, queue_id), _RetryTopicIndex())
                try:
                    seen.expire(self._store.min_offset(topic, queue_id))
                    if seen.offset >= self._store.max_offset(topic, queue_id, written=True):
                        break
                except QueueNotFound:
                    break
                self._read_on(seen, topic, queue_id)
                if seen.offset < self._store.max_offset(topic, queue_id, written=True):
                    yield None

    def _read_on(self, seen: _RetryTopicIndex, topic: str, queue_id: int) -> None:
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
        """Return True if the group's retry topic has no copy of this entry."""
        topic = retry_topic(group)
        places = (
            (topic, queue_id, offset)
            for queue_id in self._store.queues(topic)
            if (seen := self._seen.get((topic, queue_id))) is not None
            for offset in seen.entries.get(name, ())
        )
        return not any(self._is_copy(place, entry) for place in places)

    def _is_copy(self, place: tuple[str, int, int], entry: Record) -> bool:
        """Return True if the message at `place` has the content of the entry.

        Its property alone is no proof, because any client can write that into a message.
        """
        try:
            with self._store.read(*place, 1, written=True) as lease:
                return message_content(lease.messages()[0]) == message_content(entry)
        except StoreCorrupt:
            return True  # undecidable: an entry that is redriven twice is worse than one that has to be forced


def _copy(entry: Record, group: str) -> bytes:
    properties = {name: value for name, value in entry.properties.items() if name not in _LEFT_BEHIND}
    properties.setdefault(names.ORIGIN_MESSAGE_ID, entry.message_id)
    properties.setdefault(names.RETRY_TOPIC, entry.topic)
    properties[names.REDRIVEN_FROM] = entry.message_id
    return reencode_trimmed(replace(entry, reconsume_times=0), retry_topic(group), 0, properties, _SPARE)


def _id_of(entry: Record) -> str:
    return location_of(entry).message_id
