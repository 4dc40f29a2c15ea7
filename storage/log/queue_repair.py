"""Rebuild wrong entries of a consume queue from the log when a read finds them.

A message of a queue lies in the log between the message before it and the one after it, so only that part of the log
has to be searched. Opening a store repairs only the newest part, because the older files of all queues are too many to
be examined each time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from raymq.storage.errors import StoreCorrupt
from raymq.storage.log.commit_log import CommitLog
from raymq.storage.log.consume_queue import FILLER_SIZE, ConsumeQueue
from raymq.storage.log.dispatch import Dispatcher
from raymq.storage.log.recovery import NO_POSITION, find_next_record, next_batch
from raymq.storage.records import record as layout
from raymq.storage.records.byte_rows import Int64s
from raymq.storage.records.index_inputs import derive_index_inputs

#: Limits of the examined neighbours and of the walked log, because the store's owner waits for the repair.
_MAX_ENTRIES: Final = 4096
_MAX_BYTES: Final = 256 << 20
_REMEMBERED: Final = 4096


class QueueRepair:
    """The repair of entries in one store's queues; belongs to the store's writer."""

    def __init__(self, log: CommitLog, dispatcher: Dispatcher, deleted_topics: Mapping[str, int]) -> None:
        """Set up the repair; `deleted_topics` holds the log's end at each topic's deletion.

        Records of a topic before that end have no queue.
        """
        self._log = log
        self._dispatcher = dispatcher
        self._deleted_topics = deleted_topics
        #: Entries that could not be repaired, with whether the log was searched for their messages.
        self._in_vain: dict[tuple[str, int, int], bool] = {}

    def repair(self, topic: str, queue_id: int, offset: int) -> bool:
        """Rebuild the entry if it is wrong, together with wrong entries around it.

        Return False if the entry is right, or if its message is not found in the log: the message is damaged or lost
        then.

        Raises:
            StoreCorrupt: too much of the log would have to be searched; with what to do.
        """
        queue = self._dispatcher.get(topic, queue_id)
        if self._is_right(queue, topic, queue_id, offset):
            return False
        searched = self._in_vain.get((topic, queue_id, offset))
        if searched is None:
            low, begin = self._before(queue, topic, queue_id, offset)
            high, end = self._behind(queue, topic, queue_id, offset)
            searched = 0 <= begin <= end <= begin + _MAX_BYTES
            if searched:
                self._walk(topic, queue_id, begin, end, low, high)
            if self._is_right(queue, topic, queue_id, offset):
                return True
            if len(self._in_vain) >= _REMEMBERED:
                self._in_vain.clear()
            self._in_vain[topic, queue_id, offset] = searched
        if searched:
            return False
        path, at = queue.file_position_of(offset)
        remedy = f"stop the broker, remove {path.parent} and start it again: it rebuilds the queue from the log"
        raise StoreCorrupt(str(path), at, f"the entry of offset {offset} is damaged", remedy=remedy)

    def _is_right(self, queue: ConsumeQueue, topic: str, queue_id: int, offset: int) -> bool:
        """Return True if the entry points to its message, or marks the message as lost.

        The message itself may be damaged.
        """
        position, size, _ = queue.entry(offset)
        if size == FILLER_SIZE:
            return True
        if not self._log.has_record_header(position):
            return False
        try:
            record = self._log.record(position, check_crc=False)
        except StoreCorrupt:
            return True
        return (record.topic, record.queue_id, record.queue_offset, record.size) == (topic, queue_id, offset, size)

    def _before(self, queue: ConsumeQueue, topic: str, queue_id: int, offset: int) -> tuple[int, int]:
        """Return the nearest right entry before `offset`, and where its record ends.

        The end is -1 if that entry is too far away.
        """
        for before in range(offset - 1, max(queue.min_offset - 1, offset - 1 - _MAX_ENTRIES), -1):
            position, size, _ = queue.entry(before)
            if size != FILLER_SIZE and self._is_right(queue, topic, queue_id, before):
                return before, position + size
        if offset - queue.min_offset > _MAX_ENTRIES:
            return offset, -1
        return queue.min_offset - 1, max(self._log.min_offset, self._deleted_topics.get(topic, 0))

    def _behind(self, queue: ConsumeQueue, topic: str, queue_id: int, offset: int) -> tuple[int, int]:
        """Return the nearest right entry behind `offset`, and where its record begins.

        The begin is -1 if that entry is too far away.
        """
        for behind in range(offset + 1, min(queue.max_offset, offset + 1 + _MAX_ENTRIES)):
            position, size, _ = queue.entry(behind)
            if size != FILLER_SIZE and self._is_right(queue, topic, queue_id, behind):
                return behind, position
        if queue.max_offset - offset > _MAX_ENTRIES:
            return offset, -1
        return queue.max_offset, self._log.max_offset

    def _walk(self, topic: str, queue_id: int, begin: int, end: int, low: int, high: int) -> None:
        """Write the entries of the queue's sound records within begin..end of the log.

        Only entries with offsets between low and high are written.
        """
        position = begin
        while position < end:
            batch, behind, _ = next_batch(self._log, position)
            if batch is None:
                position = behind or find_next_record(self._log, position)
                if position == NO_POSITION:
                    return
                continue
            mine = np.zeros(len(batch), np.bool_)
            for group in batch.groups:
                if group.is_for_queue(topic, queue_id):
                    mine[slice(None) if group.members is None else group.members] = True
            offsets: Int64s = batch.queue_offsets
            kinds = batch.sys_flags & layout.SYS_FLAG_TRANSACTION_MASK
            mine &= (low < offsets) & (offsets < high) & ((kinds == 0) | (kinds == layout.SYS_FLAG_TRANSACTION_COMMIT))
            if mine.any():
                self._dispatcher.dispatch(
                    batch,
                    derive_index_inputs(batch),
                    offsets,
                    batch.physical_offsets,
                    batch.store_timestamps_ms,
                    queued=mine,
                    index_after=NO_POSITION,
                )
            position += len(batch.records)
