"""Append raw bytes of the master's log to a replica's log, byte for byte.

The bytes arrive in pieces that may end anywhere. Only whole records are written; the rest of a piece waits in memory
for the following bytes. The log therefore ends with a record (or with the BLANK that fills up a file) at every moment,
as a master's does, and everything that a replica reports as received can be read. Queues, index and delays are derived
from the records by the same dispatch as a master's; readers see only what is confirmed (`high_watermark`).

Everything is checked before a byte is written: each record's CRC, its physical offset, and its queue offset.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from raymq.storage.delay_levels import SCHEDULE_TOPIC
from raymq.storage.errors import InvalidInput, StoreCorrupt, StoreFull, WriteUnknown
from raymq.storage.files.mapped_file_queue import file_name
from raymq.storage.log.commit_log import CommitLog
from raymq.storage.log.consume_queue import ConsumeQueue
from raymq.storage.log.dispatch import Dispatcher
from raymq.storage.log.queue_offset_validator import QueueOffsetValidator
from raymq.storage.log.record_checker import RecordChecker
from raymq.storage.log.record_scan import record_sizes
from raymq.storage.log.recovery import queued_mask
from raymq.storage.records import record as layout
from raymq.storage.records.index_inputs import derive_index_inputs
from raymq.storage.records.record import Buffer
from raymq.storage.records.record_batch import BadRecord, Batch, parse

_MAGICS: Final = (layout.MAGIC_V1, layout.MAGIC_V2)
_PLACES: Final = struct.Struct(">qq")
_TIMESTAMP: Final = struct.Struct(">q")
#: A longer record is always handled by the general method.
_MAX_SINGLE_BYTES: Final = 64 << 10
_REMEDY: Final = "the master's log is damaged there: make another replica the master, or repair it"


def ignore_written() -> None:
    """Do nothing: the default callback for growth of the log."""


class ReplicaLog:
    """The end of a replica's log; it belongs to the store's writer."""

    def __init__(self, log: CommitLog, dispatcher: Dispatcher, deleted_topics: Mapping[str, int]) -> None:
        """Set up the replica's log; `deleted_topics` holds the log's end at each topic's deletion.

        Records of a topic before that end have no queue.
        """
        self._log = log
        self._dispatcher = dispatcher
        self._deleted_topics = deleted_topics
        self._placement = QueueOffsetValidator()
        self._checker = RecordChecker(log.capacity, log.capacity)
        #: The bytes of a partial record, and the length that they need before they can be a whole one.
        self._rest = bytearray()
        self._wanted = 0
        self._written = ignore_written

    @property
    def received(self) -> int:
        """Return the physical offset of the next expected byte.

        It is the log's end plus the length of the partial record behind it.
        """
        return self._log.max_offset + len(self._rest)

    def discard_partial(self) -> None:
        """Drop the partial record, because a new connection resumes at the log's end."""
        self._rest = bytearray()
        self._wanted = 0
        self._placement = QueueOffsetValidator()  # records that it has seen may not have been written

    def take(self, offset: int, content: Buffer, written: Callable[[], None]) -> None:
        """Append bytes of the master's log; see `Store.append_replicated`."""
        if offset != self.received:
            raise InvalidInput("offset", f"{self.received}, the end of the received log", offset)
        self._written = written
        try:
            if not self._rest:
                self._take(memoryview(content).cast("B"))
                return
            self._rest += content
            if len(self._rest) >= self._wanted:
                whole, self._rest = self._rest, bytearray()
                self._take(memoryview(whole))
        except BaseException:
            self.discard_partial()
            raise

    def _take(self, content: memoryview) -> None:
        """Write the whole records, and keep the rest."""
        while len(content):
            length = self._take_piece(content)
            if not length:
                break
            content = content[length:]
        self._rest = bytearray(content)

    def _take_piece(self, content: memoryview) -> int:
        """Write the whole records of one file; return how many bytes were written."""
        place = self._log.max_offset
        room = self._log.files.file_bytes - place % self._log.files.file_bytes
        content = content[:room]
        if self._take_single(content, place):
            return len(content)
        sizes = record_sizes(content, place)
        if len(sizes):
            return self._write_records(content[: int(sizes.sum(dtype=np.int64))], sizes, place)
        needed = self._length_of_first(content, place, room)
        if needed > len(content):
            self._wanted = needed
            return 0
        self._write(content, place, self._log.last_timestamp_ms)
        self._dispatcher.dispatched_to = self._log.max_offset
        return room

    def _take_single(self, content: memoryview, place: int) -> bool:
        """Write a single record of the usual kind; otherwise do nothing and return False.

        Most records that come one by one are of that kind. The record is parsed without NumPy, whose set-up would take
        longer than the parsing.
        """
        if not layout.MIN_RECORD_BYTES <= len(content) <= _MAX_SINGLE_BYTES:
            return False
        size, magic = layout.BLANK.unpack_from(content)
        if size != len(content) or magic != layout.MAGIC_V1:
            return False
        try:
            single = self._checker.one(content, check_crc=True)
        except (InvalidInput, StoreCorrupt):
            return False  # the general method reports what is wrong, and where
        topic, _ = single.topic_queue
        queue = self._dispatcher.queues.get(single.topic_queue)
        if single.late or topic == SCHEDULE_TOPIC or topic in self._deleted_topics or queue is None:
            return False
        queue_offset, physical_offset = _PLACES.unpack_from(content, layout.OFFSET_QUEUE_OFFSET)
        if physical_offset != place or queue_offset != queue.max_offset or queue.min_offset == queue_offset:
            return False
        (timestamp_ms,) = _TIMESTAMP.unpack_from(content, layout.OFFSET_STORE_TIMESTAMP)
        self._dispatcher.reserve(single.topic_queue)
        self._dispatcher.index.reserve(len(single.key_hashes))
        self._write(content, place, timestamp_ms)
        try:
            self._dispatcher.dispatch_one(single, queue, place, timestamp_ms)
        except BaseException as error:
            self._fail(error)
            raise
        self._dispatcher.dispatched_to = self._log.max_offset
        return True

    def _length_of_first(self, content: memoryview, place: int, room: int) -> int:
        """Return the length of the first record or BLANK, which is not a whole record.

        If that cannot be determined yet, return how many bytes are needed for it.
        """
        if room < layout.BLANK.size:
            return room
        if len(content) < layout.BLANK.size:
            return layout.BLANK.size
        size, magic = layout.BLANK.unpack_from(content)
        if magic == layout.MAGIC_BLANK and size == room:
            return room
        if magic in _MAGICS and layout.MIN_RECORD_BYTES <= size <= room and size > len(content):
            return int(size)
        raise self._damaged(place, "the master has sent no record of this offset")

    def _write_records(self, content: memoryview, sizes: npt.NDArray[np.int32], place: int) -> int:
        try:
            batch = parse(content, sizes)
        except BadRecord as bad:
            at = place + int(sizes[: bad.index].sum(dtype=np.int64))
            raise self._damaged(at, f"the master has sent a record without {bad.reason}") from None
        queued = queued_mask(batch, self._deleted_topics)
        placed = self._placement.count_plausible(batch, queued)
        if placed < len(batch):
            raise self._damaged(place + int(batch.starts[placed]), "an impossible queue offset")
        derived = derive_index_inputs(batch)
        begun = self._reserve(batch, queued, len(derived.key_hashes))
        self._write(content, place, int(batch.store_timestamps_ms[-1]))
        try:
            self._dispatcher.dispatch(
                batch,
                derived,
                batch.queue_offsets,
                batch.physical_offsets,
                batch.store_timestamps_ms,
                queued=None if queued.all() else queued,
            )
        except BaseException as error:
            self._fail(error)
            raise
        for queue in begun:
            queue.trim(self._log.min_offset)
        self._dispatcher.dispatched_to = self._log.max_offset
        return len(content)

    def _reserve(self, batch: Batch, queued: npt.NDArray[np.bool_], keys: int) -> list[ConsumeQueue]:
        """Reserve room for keys and entries; raise StoreFull if there is none.

        Return the empty queues whose first message has a higher offset than the queue's end.
        """
        self._dispatcher.index.reserve(keys)
        begun: list[ConsumeQueue] = []
        for group in batch.groups:
            members = np.flatnonzero(queued) if group.members is None else group.members[queued[group.members]]
            if len(members):
                queue = self._dispatcher.reserve((group.topic, group.queue_id))
                if queue.min_offset == queue.max_offset < int(batch.queue_offsets[members[0]]):
                    begun.append(queue)
        return begun

    def _write(self, content: memoryview, place: int, timestamp_ms: int) -> None:
        try:
            self._log.append_raw(content, timestamp_ms)
            self._written()
        except BaseException as error:
            if not (self._log.max_offset == place and isinstance(error, StoreFull)):
                self._fail(error)
            raise

    def _fail(self, error: BaseException) -> None:
        """Refuse all writes until the store is reopened, because log and queues may differ."""
        self._log.health.fail(error)
        if isinstance(error, Exception):
            raise WriteUnknown(f"bytes of the master's log were written only in part: {error}") from error

    def _damaged(self, place: int, reason: str) -> StoreCorrupt:
        start = place - place % self._log.files.file_bytes
        return StoreCorrupt(str(self._log.folder / file_name(start)), place - start, reason, remedy=_REMEDY)
