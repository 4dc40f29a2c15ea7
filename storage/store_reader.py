"""The reading half of a store.

It reads messages by queue offset, physical offset, key and time, and the bounds of queues.

Thread rule: that of the store (`raymq.storage.store`), whose reading half is in this module.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from raymq.storage.cooperative_steps import Steps, run_steps
from raymq.storage.errors import QueueNotFound
from raymq.storage.log.high_watermark import HighWatermark
from raymq.storage.log.lease import Lease
from raymq.storage.log.log_salvage import DamagedRange, salvage_walk
from raymq.storage.log.log_search import FoundRecords, find_records
from raymq.storage.log.log_slice import LogSlice, log_slice
from raymq.storage.log.message_reader import MessageReader, check_offset
from raymq.storage.log.queue_repair import QueueRepair
from raymq.storage.log.read_barrier import ReadBarrier
from raymq.storage.records.record import Record
from raymq.storage.store_parts import StoreParts


class StoreReader:
    """The reading half of a `Store`, on the parts that the store has opened.

    Attributes:
        confirmed: the log's high watermark, at which all reads end. Methods with a parameter `written` also return
            appended records that are not confirmed yet; only the broker's own tasks may use it, never a consumer.
    """

    def __init__(self, parts: StoreParts) -> None:
        self._parts = parts
        self._log = parts.log
        self._dispatcher = parts.dispatcher
        self.confirmed = HighWatermark(parts.log, durable=parts.config.flush == "sync")
        #: The high watermark of a store with replicas when it was last open; 0: it never had replicas.
        self.last_high_watermark = min(parts.checkpoint.confirm_offset, parts.log.max_offset)
        repair = QueueRepair(parts.log, parts.dispatcher, parts.deleted_topics)
        #: Hides the records of a commit that is under way from readers.
        self.read_barrier = ReadBarrier(parts.dispatcher, parts.deleted_topics)
        self._reader = MessageReader(parts.log, parts.dispatcher, repair, self.confirmed, self.read_barrier)

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int = 32,
        max_bytes: int | None = None,
        tags_codes: Collection[int] | None = None,
        *,
        check_crc: bool = True,
        written: bool = False,
    ) -> Lease:
        """Return records of a queue from `offset` on.

        At least one record is returned if there is one, even if it is larger than `max_bytes`. With `tags_codes` only
        records with these tags codes are returned. A call checks a bounded number of entries, so it may return no
        records although there are more: continue at `next_offset`. The result ends before a damaged record.

        Args:
            check_crc: False for a caller that compares the checksums of the bodies itself. Records in the log's newest
                file that were found sound when they were appended or read are not checked again then.

        Raises:
            OffsetOutOfRange: `offset` is below the minimum or above the maximum (at the maximum the lease is empty).
            QueueNotFound: nothing was ever written to the queue.
            StoreCorrupt: the record at `offset` is damaged; the records after it can be read.
        """
        return self._reader.read(topic, queue_id, offset, max_messages, max_bytes, tags_codes, check_crc, written)

    def read_at(self, physical_offset: int) -> Record:
        """Return the record at a physical offset.

        Raises:
            MessageExpired: the offset is below the log's minimum.
            MessageNotFound: the record is not confirmed, or no record begins at the offset.
            StoreCorrupt: the record is damaged.
        """
        return self._reader.record(physical_offset)

    def raw_at(self, physical_offset: int) -> bytes:
        """Return the bytes of the record at a physical offset. Raise as `read_at`."""
        return bytes(self._log.view(physical_offset, self._reader.record(physical_offset).size))

    def stored(self, physical_offset: int, size: int) -> memoryview:
        """Return a view of the bytes of a record that was just stored.

        The view keeps the log's mapping alive.
        """
        return self._log.view(physical_offset, size)

    def raw_many(self, physical_offsets: Sequence[int], sizes: Sequence[int]) -> bytes:
        """Return the joined bytes at several physical offsets, unchecked.

        Each piece has to lie between the log's minimum and maximum.
        """
        return b"".join(map(self._log.view, physical_offsets, sizes))

    def log_slice(self, begin: int, end: int, *, whole: bool = False) -> LogSlice:
        """Return the log's bytes from `begin` up to `end` or the end of the file.

        The bytes may be unconfirmed. They are views of the mapping, valid until they are released, even if retention
        removes the file meanwhile.

        Args:
            whole: end at the end of a record, if `begin` is the start of one; at least one record is returned.

        Raises:
            MessageExpired: `begin` is below the log's minimum.
            InvalidInput: begin..end is empty, or reaches beyond the log's end.
        """
        return log_slice(self._log, begin, end, whole=whole)

    def find_records(self, pattern: bytes, begin: int, most: int) -> FoundRecords:
        """Search a part of the log for records that contain `pattern`, confirmed or not.

        See `log_search.find_records`.
        """
        return find_records(self._log, pattern, begin, most)

    def walk(self, physical_offset: int) -> Iterator[Record]:
        """Iterate over all written records from a record's offset (or the minimum) on.

        The records come in log order. Raise as `read_at`.
        """
        return self._log.walk(physical_offset)

    def salvage_walk(self, physical_offset: int) -> Iterator[Record | DamagedRange]:
        """Iterate as `walk`, but report damaged ranges and continue after them."""
        return salvage_walk(self._log, physical_offset)

    def query(
        self, topic: str, key: str, begin_ms: int, end_ms: int, max_messages: int, *, written: bool = False
    ) -> list[Record]:
        """Return messages of the topic with that unique key or key, newest first.

        Only messages stored within begin_ms..end_ms are returned.
        """
        return run_steps(self.search(topic, key, begin_ms, end_ms, max_messages, written=written))

    def search(
        self,
        topic: str,
        key: str,
        begin_ms: int,
        end_ms: int,
        max_messages: int,
        max_bytes: int | None = None,
        *,
        written: bool = False,
    ) -> Steps[list[Record]]:
        """Run `query` in steps of at most some milliseconds (see `raymq.storage.cooperative_steps`).

        Between two steps the store may be used and written to: messages that are stored after the start are not found,
        and messages that expire meanwhile may be missing or not.

        Args:
            max_bytes: the result ends before the record that would make it longer than that, unless it is the first
                one.
        """
        return self._reader.search(topic, key, begin_ms, end_ms, max_messages, max_bytes, written=written)

    def entries(
        self, topic: str, queue_id: int, offset: int, max_entries: int, *, written: bool = False
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Return copies of a queue's entries: physical offsets, sizes, tags codes.

        Raise as `read`.
        """
        queue = self._dispatcher.get(topic, queue_id)
        end = self._reader.readable_end(queue, written=written)
        check_offset(queue, offset, end)
        found = queue.entries(offset, min(max_entries, end - offset))
        return (
            found["physical_offset"].astype(np.int64),
            found["size"].astype(np.int32),
            found["tags_code"].astype(np.int64),
        )

    def appended_together(self, topic: str, queue_id: int, offset: int, most: int) -> int:
        """Return how many messages from `offset` on were stored by one append.

        The result is at most `most`. A power loss may have taken the end of an append, and messages of others may have
        these offsets now: they are recognized because they lie elsewhere in the log, or have a later store time.

        Raises:
            OffsetOutOfRange, QueueNotFound: as `read`.
        """
        return self._reader.appended_together(topic, queue_id, offset, most)

    def topics(self) -> list[str]:
        """Return the topics that have a queue."""
        return self._dispatcher.queues.topics()

    def queues(self, topic: str) -> list[int]:
        """Return the topic's queues that were ever written; none if there is no such topic."""
        return self._dispatcher.queues.of(topic)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the oldest message's offset, or the maximum if all messages have expired.

        Raise QueueNotFound as `read`.
        """
        return self._dispatcher.get(topic, queue_id).min_offset

    def max_offset(self, topic: str, queue_id: int, *, written: bool = False) -> int:
        """Return the offset after the last readable message. Raise QueueNotFound as `read`."""
        queue = self._dispatcher.get(topic, queue_id)
        return queue.max_offset if written else self.confirmed.readable_end(queue)

    def expired_ends(self, log_min: int = 0) -> Steps[dict[str, dict[int, int]]]:
        """Return the ends of all queues whose messages have all expired, in steps.

        The result maps topic and queue id to the queue's maximum.

        Args:
            log_min: treat the log as beginning at this offset if it is above the log's minimum.
        """
        return self._dispatcher.expired_ends(max(log_min, self._log.min_offset))

    def offset_at_time(
        self, topic: str, queue_id: int, timestamp_ms: int, *, boundary: Literal["lower", "upper"] = "lower"
    ) -> int:
        """Return the offset of the first message stored at that time or later.

        Return the maximum if there is none. With `boundary="upper"` return the offset of the last message stored at
        that time or earlier, or the minimum if there is none. Raise QueueNotFound as `read`.
        """
        return run_steps(self.search_time(topic, queue_id, timestamp_ms, boundary=boundary))

    def search_time(
        self, topic: str, queue_id: int, timestamp_ms: int, *, boundary: Literal["lower", "upper"] = "lower"
    ) -> Steps[int]:
        """Run `offset_at_time` in steps (see `raymq.storage.cooperative_steps`).

        It is one step, unless many records in a row are damaged. Between two steps the store may be used. Raise
        QueueNotFound also if the topic was deleted meanwhile.
        """
        return self._reader.search_time(topic, queue_id, timestamp_ms, boundary)

    def valid_at_open(self, topic: str, queue_id: int) -> int | None:
        """Return where a queue ended at the truncation of this opening; None without one.

        A reader that does not send its epoch is known to have read lost messages only if its offset is above the
        queue's end.
        """
        return self._kept(topic, queue_id, self._parts.tables.recovery_epochs.truncated_at_open)

    def record_truncation(self, log_end: int) -> None:
        """Record an earlier truncation of the log as if this opening had done it."""
        self._parts.tables.recovery_epochs.note_truncation(log_end)

    @property
    def epoch(self) -> int:
        """Return the recovery epoch.

        It changes with every opening that may have lost a part of the log that was read before.
        """
        return self._parts.tables.recovery_epochs.current

    def valid_to(self, topic: str, queue_id: int, epoch: int) -> int | None:
        """Return up to which offset a queue is unchanged since `epoch`; None: all of it.

        A reader with a higher offset has read messages that the log has lost. It has to continue at the returned
        offset, because other messages have the following offsets now.
        """
        return self._kept(topic, queue_id, self._parts.tables.recovery_epochs.truncated_since(epoch))

    def _kept(self, topic: str, queue_id: int, log_end: int | None) -> int | None:
        """Return the queue's end within the log up to `log_end`; None if that is None."""
        if log_end is None:
            return None
        try:
            queue = self._dispatcher.get(topic, queue_id)
        except QueueNotFound:
            return 0
        return max(queue.end_offset_at(log_end), queue.min_offset)

    @property
    def is_healthy(self) -> bool:
        """Return True if the disk has not failed since the store was opened."""
        return self._parts.health.is_healthy

    @property
    def min_physical_offset(self) -> int:
        """Return the physical offset at which the log begins."""
        return self._log.min_offset

    @property
    def max_physical_offset(self) -> int:
        """Return the physical offset at which the log ends, confirmed or not."""
        return self._log.max_offset
