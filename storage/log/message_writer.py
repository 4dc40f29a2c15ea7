"""Append messages to a store; everything is checked before a byte is written."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from raymq.storage.config import StoreConfig
from raymq.storage.errors import InvalidInput, StoreFollows, StoreFull, WriteUnknown
from raymq.storage.log.commit_log import CommitLog
from raymq.storage.log.consume_queue import ConsumeQueue
from raymq.storage.log.dispatch import Dispatcher
from raymq.storage.log.record_checker import CheckedRecord, RecordChecker
from raymq.storage.log.retention import DiskUsage
from raymq.storage.records.index_inputs import derive_index_inputs
from raymq.storage.records.record import Buffer

_DISK_CHECK_SECONDS: Final = 1.0
#: Up to this many records a loop is faster than NumPy's set-up.
_FEW: Final = 12


#: A callback that receives the queue offset and the physical offset of a record.
OnStored = Callable[[int, int], None]


class AppendResult(NamedTuple):
    """The offsets of one append's records, in their order, with their common store time."""

    queue_offsets: npt.NDArray[np.int64]
    physical_offsets: npt.NDArray[np.int64]
    store_timestamp_ms: int


class MessageWriter:
    """The only writer of a store.

    Attributes:
        is_replica: the store is a replica's, and refuses messages of its own.
    """

    def __init__(
        self,
        directory: Path,
        config: StoreConfig,
        log: CommitLog,
        dispatcher: Dispatcher,
        now_ms: Callable[[], int],
        keep_disk_reserve: Callable[[DiskUsage], None],
    ) -> None:
        """Set up the writer; `keep_disk_reserve` receives the disk's usage.

        It is called before an append takes disk space, at most once a second.
        """
        self._directory = directory
        self._keep_disk_reserve = keep_disk_reserve
        self.checker = RecordChecker(config.max_message_bytes, log.capacity)
        #: For records made from stored ones, which may be longer than the present limit of messages.
        self._checker_again = RecordChecker(log.capacity, log.capacity)
        self._log = log
        self._dispatcher = dispatcher
        self._now_ms = now_ms
        self.is_replica = False
        self._disk_checked_at = float("-inf")
        self._disk_full = ""
        self._refuse_ratio = config.disk_refuse_ratio

    def append(
        self,
        records: Buffer,
        sizes: npt.NDArray[np.int32],
        topic_queues: Collection[tuple[str, int]] | None,
        check_crc: bool,
        again: bool,
    ) -> AppendResult:
        """Check and append records; see `Store.append`."""
        self.check_ready()
        checker = self._checker_again if again else self.checker
        if len(sizes) == 1 and sizes[0] == len(records):
            single = checker.one(memoryview(records), check_crc)
            if topic_queues is not None:
                _check_topic_queues((single.topic_queue,), topic_queues)
            queue_offset, physical_offset = self.append_one(single)
            return AppendResult(np.array((queue_offset,)), np.array((physical_offset,)), self._log.last_timestamp_ms)
        if len(sizes) <= _FEW and len(records) <= self._log.capacity:
            view = memoryview(records)
            return self._append_few(view, checker.few(view, sizes, check_crc), topic_queues)
        batch = checker.many(records, sizes, check_crc)
        if topic_queues is not None:
            _check_topic_queues([(group.topic, group.queue_id) for group in batch.groups], topic_queues)
        timestamp_ms = max(self._now_ms(), self._log.last_timestamp_ms)
        derived = derive_index_inputs(batch)
        queue_offsets = self._dispatcher.assign(batch, len(derived.key_hashes))
        start = self._log.max_offset
        try:
            physical_offsets = self._log.append(batch, queue_offsets, timestamp_ms)
            self._dispatcher.dispatch(
                batch, derived, queue_offsets, physical_offsets, np.full(len(batch), timestamp_ms, np.int64), anew=True
            )
        except BaseException as error:
            self._fail(start, error)
            raise
        self._dispatcher.dispatched_to = self._log.max_offset
        return AppendResult(queue_offsets, physical_offsets, timestamp_ms)

    def check(self, records: Buffer, sizes: npt.NDArray[np.int32], topic_queue: tuple[str, int]) -> None:
        """Check records of one queue without appending them; see `Store.check`."""
        batch = self.checker.many(records, sizes, check_crc=True)
        _check_topic_queues([(group.topic, group.queue_id) for group in batch.groups], (topic_queue,))

    def append_one(self, single: CheckedRecord, stored: OnStored | None = None) -> tuple[int, int]:
        """Append one checked record; see `Store.append_one`."""
        self.check_ready()
        log, dispatcher = self._log, self._dispatcher
        queue = dispatcher.reserve(single.topic_queue)
        dispatcher.index.reserve(len(single.key_hashes))
        timestamp_ms = max(self._now_ms(), log.last_timestamp_ms)
        queue_offset, start = queue.max_offset, log.max_offset
        try:
            physical_offset = log.append_one(single.record, single.late, queue_offset, timestamp_ms)
        except BaseException as error:
            self._fail(start, error)
            raise
        try:
            if stored is not None:
                stored(queue_offset, physical_offset)
        finally:
            try:
                dispatcher.dispatch_one(single, queue, physical_offset, timestamp_ms)
            except BaseException as error:
                self._fail(start, error)
                raise
            dispatcher.dispatched_to = log.max_offset
        return queue_offset, physical_offset

    def _append_few(
        self, records: memoryview, singles: list[CheckedRecord], topic_queues: Collection[tuple[str, int]] | None
    ) -> AppendResult:
        log, dispatcher = self._log, self._dispatcher
        targets = [single.topic_queue for single in singles]
        if topic_queues is not None:
            _check_topic_queues(targets, topic_queues)
        queues = [dispatcher.reserve(topic_queue) for topic_queue in targets]
        dispatcher.index.reserve(sum([len(single.key_hashes) for single in singles]))
        timestamp_ms = max(self._now_ms(), log.last_timestamp_ms)
        queue_offsets = _following(queues)
        start = log.max_offset
        try:
            physical_offsets = log.append_few(records, singles, queue_offsets, timestamp_ms)
            for single, queue, physical_offset in zip(singles, queues, physical_offsets, strict=True):
                dispatcher.dispatch_one(single, queue, physical_offset, timestamp_ms)
        except BaseException as error:
            self._fail(start, error)
            raise
        dispatcher.dispatched_to = log.max_offset
        return AppendResult(np.array(queue_offsets), np.array(physical_offsets), timestamp_ms)

    @contextlib.contextmanager
    def bypass_disk_limit(self) -> Iterator[None]:
        """Allow writes while the disk is fuller than its limit.

        The writes within this context are those that let files be deleted.
        """
        limit, self._refuse_ratio = self._refuse_ratio, float("inf")
        self._disk_full = ""
        try:
            yield
        finally:
            self._refuse_ratio = limit
            self._disk_checked_at = float("-inf")

    def check_ready(self, *, own: bool = True) -> None:
        """Raise an error if the store cannot take writes now.

        Raise StoreFailed after a failure of the disk, StoreFull while it is too full (examined once a second), and
        StoreFollows on a replica unless `own` is False, for bytes that come from its master.
        """
        if own and self.is_replica:
            raise StoreFollows("a replica accepts no messages from clients")
        health = self._log.health
        if not health.is_healthy:
            health.check()
        now = time.monotonic()
        if now - self._disk_checked_at >= _DISK_CHECK_SECONDS:
            self._disk_checked_at = now
            disk = DiskUsage.of(self._directory)
            self._keep_disk_reserve(disk)
            ratio, limit = disk.ratio, self._refuse_ratio
            self._disk_full = f"the disk is {ratio:.1%} full, writes end at {limit:.1%}" if ratio >= limit else ""
        if self._disk_full:
            raise StoreFull(self._disk_full)

    def _fail(self, start: int, error: BaseException) -> None:
        """Handle the error of a failed write, which began at `start` of the log.

        If the log has not grown, nothing is stored, and a write without room may be tried again. Otherwise the log and
        its queues may differ: the store refuses further writes, and it is unknown what is stored.
        """
        untouched = self._log.max_offset == start
        if untouched and isinstance(error, StoreFull):
            return
        self._log.health.fail(error)
        if not untouched and isinstance(error, Exception):
            raise WriteUnknown(f"an append to {self._directory} failed half way: {error}") from error


def _following(queues: list[ConsumeQueue]) -> Sequence[int]:
    """Return the queue offsets of records that are appended to these queues in order."""
    first = queues[0]
    if queues.count(first) == len(queues):
        return range(first.max_offset, first.max_offset + len(queues))
    ends: dict[ConsumeQueue, int] = {}
    offsets: list[int] = []
    for queue in queues:
        offsets.append(ends.get(queue, queue.max_offset))
        ends[queue] = offsets[-1] + 1
    return offsets


def _check_topic_queues(found: Collection[tuple[str, int]], topic_queues: Collection[tuple[str, int]]) -> None:
    for topic_queue in found:
        if topic_queue not in topic_queues:
            raise InvalidInput("records", f"records of {sorted(topic_queues)}", topic_queue)
