"""Dead letters of one broker: sending them to their group once more, each entry once unless it is forced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow.compute as pc

from raymq.actors.broker.core.copies.copying import REDRIVE, Copying, Duty, Made, place_of
from raymq.actors.broker.core.copies.rewriting import SPARE_WAITING, encode_fitting
from raymq.actors.broker.core.delay.delivered import message_of
from raymq.actors.errors import GroupNotFound, OffsetOutOfRange, QueueNotFound
from raymq.actors.naming import check_group, dlq_topic, retry_topic
from raymq.actors.protocol import Redriven
from raymq.storage.errors import StoreCorrupt
from raymq.storage.records import property_names as names
from raymq.storage.records.property_columns import properties_of_records
from raymq.storage.records.record import Record
from raymq.storage.store import Store

_SCAN_MESSAGES = 4_096
_SCAN_BYTES = 8 << 20
#: What a redriven message does not take along: how it came to its entry.
_LEFT_BEHIND = frozenset({names.DELIVERED_FROM, names.DELAY, names.REAL_TOPIC, names.REAL_QID, names.DIED_IN})


#: What a redriven message does without if it does not fit, but not what says that it was redriven.
_SPARE = [names_ - {names.REDRIVEN_FROM} for names_ in SPARE_WAITING]


class DeadLetters:
    """The dead-letter queues of one broker.

    That an entry was redriven is said by its copy in the group's retry topic alone, which names it and expires after
    it; so it is known after any crash. What was read of these topics is remembered.
    """

    def __init__(self, store: Store, ensure_group: Callable[[str], bool], copying: Copying) -> None:
        """`ensure_group` makes a group's retry topic where it is missing."""
        self._store = store
        self._ensure_group = ensure_group
        self._copying = copying
        #: By retry topic and queue: up to where it was read, and the offsets of the messages that name an entry, by it.
        self._seen: dict[tuple[str, int], tuple[int, dict[str, list[int]]]] = {}

    def redrive(self, group: str, offsets: Sequence[int], *, force: bool, dry_run: bool) -> list[Redriven]:
        """Give entries of a group's dead-letter queue to the group again; what was done, for each offset.

        The copies go to the group's retry topic and begin there with no retry behind them. One append stores them all.

        Args:
            force: also those that were redriven before.
            dry_run: say what would be done, and do nothing.

        Raises:
            GroupNotFound: this broker does not know the group.
        """
        if self._store.group_configs.get(check_group(group)) is None:
            raise GroupNotFound(f"consumer group {group} does not exist")
        duty = Duty(REDRIVE, group)
        named = {} if force else self._named(group)
        known: set[str] = set()
        told = [Redriven.UNKNOWN] * len(offsets)
        chosen: list[Record] = []
        #: Which of `offsets` each message of the queue is.
        numbers: dict[int, int] = {}
        for number, offset in enumerate(offsets):
            entry = self._entry(duty, offset)
            if entry is None:
                continue
            if _id_of(entry) in known or any(self._is_copy(place, entry) for place in named.get(_id_of(entry), ())):
                told[number] = Redriven.ALREADY
                continue
            known.add(_id_of(entry))
            chosen.append(entry)
            numbers[offset] = number

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
        for lane in [lane for lane in self._seen if lane[0] == topic]:
            del self._seen[lane]

    def _entry(self, duty: Duty, offset: int) -> Record | None:
        try:
            records, _ = self._copying.read(duty, (dlq_topic(duty.owner), 0), offset, 1, _SCAN_BYTES)
        except (QueueNotFound, OffsetOutOfRange):
            return None
        return records[0] if records else None

    def _named(self, group: str) -> dict[str, list[tuple[str, int, int]]]:
        """The messages of the group's retry topic that name an entry, by its message id: topic, queue and offset."""
        topic = retry_topic(group)
        found: dict[str, list[tuple[str, int, int]]] = {}
        for queue_id in self._store.queues(topic):
            offset, entries = self._seen.get((topic, queue_id), (0, {}))
            low = self._store.min_offset(topic, queue_id)
            left = ((entry, [each for each in at if each >= low]) for entry, at in entries.items())
            entries = {entry: at for entry, at in left if at}  # others have expired
            offset = max(offset, low)
            while offset < self._store.max_offset(topic, queue_id, written=True):
                try:
                    with self._store.read(topic, queue_id, offset, _SCAN_MESSAGES, _SCAN_BYTES, written=True) as lease:
                        column = properties_of_records(lease.records, lease.sizes).last(names.REDRIVEN_FROM)
                        at = lease.queue_offsets[pc.is_valid(column).to_numpy(zero_copy_only=False)]
                        for entry, place in zip(pc.drop_null(column).to_pylist(), at.tolist(), strict=True):
                            entries.setdefault(entry, []).append(place)
                        offset = lease.next_offset
                except StoreCorrupt:
                    offset += 1
            self._seen[topic, queue_id] = offset, entries
            for entry, offsets in entries.items():
                found.setdefault(entry, []).extend((topic, queue_id, each) for each in offsets)
        return found

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
