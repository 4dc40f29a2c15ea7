"""Append messages to a store; everything is checked before a byte is written."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from raymq.storage.config import StoreConfig
from raymq.storage.errors import StoreFollows, StoreFull, WriteUnknown
from raymq.storage.log.commit_log import CommitLog
from raymq.storage.log.consume_queue import ConsumeQueue
from raymq.storage.log.dispatch import Dispatcher
from raymq.storage.log.record_checker import CheckedRecord, CheckedRecords, RecordChecker
from raymq.storage.log.retention import DiskUsage
from raymq.storage.records.index_inputs import derive_index_inputs
from raymq.storage.records.record import Buffer
from raymq.storage.records.record_batch import Batch

_DISK_CHECK_SECONDS: Final = 1.0


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
        #: Records that are in the log, but not in queues and index yet: with their queues, places and store time.
        self._undispatched: tuple[Sequence[CheckedRecord], Sequence[ConsumeQueue], Sequence[int], int] | None = None
        self._disk_checked_at = float("-inf")
        self._disk_full = ""
        self._refuse_ratio = config.disk_refuse_ratio

    def check(
        self, records: Buffer, sizes: npt.NDArray[np.int32], *, check_crc: bool = True, again: bool = False
    ) -> CheckedRecords:
        """Check records for `write`; the arguments are as in `Store.append`."""
        return (self._checker_again if again else self.checker).check(records, sizes, check_crc)

    def append(self, records: Buffer, checked: CheckedRecords) -> AppendResult:
        """Append checked records, whose bytes are `records`."""
        if isinstance(checked, Batch):
            return self._append_batch(checked)
        queue_offsets, physical_offsets = self.write(memoryview(records), checked)
        self.dispatch()
        return AppendResult(np.array(queue_offsets), np.array(physical_offsets), self._log.last_timestamp_ms)

    def _append_batch(self, batch: Batch) -> AppendResult:
        self.dispatch()
        self.check_ready()
        log, dispatcher = self._log, self._dispatcher
        timestamp_ms, start = max(self._now_ms(), log.last_timestamp_ms), log.max_offset
        derived = derive_index_inputs(batch)
        queue_offsets = dispatcher.assign(batch, len(derived.key_hashes))
        try:
            physical_offsets = log.append(batch, queue_offsets, timestamp_ms)
            times = np.full(len(batch), timestamp_ms, np.int64)
            dispatcher.dispatch(batch, derived, queue_offsets, physical_offsets, times, anew=True)
        except BaseException as error:
            self._fail(error, untouched=log.max_offset == start)
            raise
        dispatcher.dispatched_to = log.max_offset
        return AppendResult(queue_offsets, physical_offsets, timestamp_ms)

    def write(self, records: memoryview, singles: Sequence[CheckedRecord]) -> tuple[Sequence[int], Sequence[int]]:
        """Write a few checked records to the log; return queue and physical offsets.

        `dispatch` has to follow; the next append does it otherwise.
        """
        if self._undispatched is not None:
            self.dispatch()
        self.check_ready()
        log = self._log
        queues = self._dispatcher.reserve_few(singles)
        queue_offsets = _following(queues) if len(queues) > 1 else (queues[0].max_offset,)
        timestamp_ms, start = max(self._now_ms(), log.last_timestamp_ms), log.max_offset
        try:
            physical_offsets = log.append_few(records, singles, queue_offsets, timestamp_ms)
        except BaseException as error:
            self._fail(error, untouched=log.max_offset == start)
            raise
        self._undispatched = singles, queues, physical_offsets, timestamp_ms
        return queue_offsets, physical_offsets

    def dispatch(self) -> bool:
        """Write the entries of what `write` has written into queues and index.

        Return False if there was none.
        """
        undispatched, self._undispatched = self._undispatched, None
        if undispatched is None:
            return False
        singles, queues, physical_offsets, timestamp_ms = undispatched
        dispatcher = self._dispatcher
        try:
            for number, single in enumerate(singles):
                dispatcher.dispatch_one(single, queues[number], physical_offsets[number], timestamp_ms)
        except BaseException as error:
            self._fail(error, untouched=False)
            raise
        dispatcher.dispatched_to = self._log.max_offset
        return True

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

    def _fail(self, error: BaseException, *, untouched: bool) -> None:
        """Handle the error of a failed write; `untouched`: the log has not grown.

        Then nothing is stored, and a write without room may be tried again. Otherwise the log and its queues may
        differ: the store refuses further writes, and it is unknown what is stored.
        """
        if untouched and isinstance(error, StoreFull):
            return
        self._log.health.fail(error)
        if not untouched and isinstance(error, Exception):
            raise WriteUnknown(f"an append to {self._directory} failed half way: {error}") from error


def _following(queues: Sequence[ConsumeQueue]) -> Sequence[int]:
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
