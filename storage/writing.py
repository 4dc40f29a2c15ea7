"""Appends to a store: everything is checked before a byte is written."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from raymq.storage import record as layout
from raymq.storage.byte_rows import some
from raymq.storage.commit_log import CommitLog
from raymq.storage.config import StoreConfig
from raymq.storage.dispatch import Dispatcher
from raymq.storage.errors import InvalidInput, StoreCorrupt, StoreError, StoreFailed, StoreFull
from raymq.storage.record import Buffer
from raymq.storage.record_batch import BadRecord, Batch, check_topic, parse
from raymq.storage.retention import Disk

_DISK_CHECK_EVERY_S: Final = 1.0
_KNOWN_TOPICS: Final = 65_536
#: Up to how many records a loop is faster than NumPy's set-up.
_FEW: Final = 12
_UNWANTED_FLAGS: Final = layout.SYS_FLAG_STORE_IPV6 | layout.SYS_FLAG_TRANSACTION_PREPARED


@dataclass(frozen=True, slots=True)
class AppendResult:
    """Where the records of one append went, in their order; all have the same store time."""

    queue_offsets: npt.NDArray[np.int64]
    physical_offsets: npt.NDArray[np.int64]
    store_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class _One:
    """A checked record of a small batch."""

    record: memoryview
    topic: str
    queue_id: int
    sys_flag: int
    properties: bytes


class Writer:
    """The one writer of a store."""

    def __init__(
        self, directory: Path, config: StoreConfig, log: CommitLog, dispatcher: Dispatcher, now_ms: Callable[[], int]
    ) -> None:
        self._directory = directory
        self._config = config
        self._log = log
        self._dispatcher = dispatcher
        self._now_ms = now_ms
        self._topics: dict[bytes, str] = {}
        self._disk_checked_at = float("-inf")
        self._disk_full = ""
        self._refuse_ratio = config.disk_refuse_ratio

    def append(
        self,
        records: Buffer,
        sizes: npt.NDArray[np.int32],
        lanes: Collection[tuple[str, int]] | None,
        check_crc: bool,
    ) -> AppendResult:
        """See `Store.append`."""
        self.check_ready()
        if len(sizes) <= _FEW:
            return self._append_few(memoryview(records), sizes, lanes, check_crc)
        try:
            batch = parse(records, sizes, check_crc=check_crc)
        except BadRecord as bad:
            raise InvalidInput("records", f"record {bad.index}: {bad.reason}", bad.actual) from None
        for group in batch.groups:
            _check_lane(group.topic, group.queue_id, lanes)
        self._check_batch(batch)
        timestamp_ms = max(self._now_ms(), self._log.last_timestamp_ms)
        queue_offsets = self._dispatcher.assign(batch)
        start = self._log.max_offset
        try:
            physical_offsets = self._log.append(batch, queue_offsets, timestamp_ms)
            self._dispatcher.dispatch(
                batch, queue_offsets, physical_offsets, np.full(len(batch), timestamp_ms, np.int64)
            )
        except StoreError as error:
            raise self._failed(start, error) from error
        except BaseException as error:  # Of whatever kind: log and queues may say different things now.
            self._log.health.fail(error)
            raise
        self._dispatcher.dispatched_to = self._log.max_offset
        return AppendResult(queue_offsets, physical_offsets, timestamp_ms)

    def _append_few(
        self,
        records: memoryview,
        sizes: npt.NDArray[np.int32],
        lanes: Collection[tuple[str, int]] | None,
        check_crc: bool,
    ) -> AppendResult:
        ones: list[_One] = []
        at = 0
        for size in sizes.tolist():
            ones.append(self._check_one(records[at : at + size], size, len(ones), check_crc))
            at += size
        if at != len(records) or not ones:
            raise InvalidInput("sizes", f"sizes that add up to the buffer's {len(records)} bytes", at)
        for one in ones:
            _check_lane(one.topic, one.queue_id, lanes)
        for one in ones:
            self._dispatcher.open(one.topic, one.queue_id).reserve(len(ones))
        timestamp_ms = max(self._now_ms(), self._log.last_timestamp_ms)
        queue_offsets: list[int] = []
        physical_offsets: list[int] = []
        start = self._log.max_offset
        try:
            for one in ones:
                queue = self._dispatcher.open(one.topic, one.queue_id)
                queue_offsets.append(queue.max_offset)
                physical_offset = self._log.append_one(one.record, one.sys_flag, queue.max_offset, timestamp_ms)
                self._dispatcher.dispatch_one(
                    queue, one.topic, one.queue_id, one.properties, len(one.record), physical_offset, timestamp_ms
                )
                physical_offsets.append(physical_offset)
        except StoreError as error:
            raise self._failed(start, error) from error
        except BaseException as error:  # Of whatever kind: log and queues may say different things now.
            self._log.health.fail(error)
            raise
        self._dispatcher.dispatched_to = self._log.max_offset
        return AppendResult(np.array(queue_offsets), np.array(physical_offsets), timestamp_ms)

    def _check_one(self, record: memoryview, size: int, index: int, check_crc: bool) -> _One:
        try:
            version, body_at, topic_at, properties_at, end = layout.locate(record, 0, len(record), check_crc)
        except StoreCorrupt as error:
            raise InvalidInput("records", f"record {index}: sound", error.reason) from None
        if not size == end == len(record):
            raise InvalidInput("records", f"record {index}: the declared size in its first field", end)
        if size > self._log.capacity:
            raise InvalidInput("records", f"record {index}: at most {self._log.capacity} bytes", size)
        queue_id, sys_flag = layout.queue_and_flag(record)
        name = bytes(record[topic_at : properties_at - 2])
        topic = self._topics.get(name) or self._learn_topic(name, index)
        self._check_limits(index, queue_id, sys_flag, topic_at - version - body_at, end - properties_at)
        return _One(record, topic, queue_id, sys_flag, bytes(record[properties_at:end]))

    def _learn_topic(self, name: bytes, index: int) -> str:
        try:
            check_topic(name, index)
        except BadRecord as bad:
            raise InvalidInput("records", f"record {index}: {bad.reason}", bad.actual) from None
        if len(self._topics) >= _KNOWN_TOPICS:
            self._topics.clear()
        return self._topics.setdefault(name, name.decode("ascii"))

    def _check_batch(self, batch: Batch) -> None:
        bodies = batch.body_lengths
        properties = batch.ends - batch.properties_at
        bad = (bodies < 1) | (bodies > self._config.max_message_bytes) | (properties > layout.MAX_PROPERTIES_BYTES)
        bad |= (batch.sys_flags & _UNWANTED_FLAGS) != 0
        bad |= batch.sizes > self._log.capacity
        if some(bad):
            i = int(np.argmax(bad))
            self._check_limits(i, 0, int(batch.sys_flags[i]), int(bodies[i]), int(properties[i]))
            raise InvalidInput("records", f"record {i}: at most {self._log.capacity} bytes", int(batch.sizes[i]))

    def _check_limits(self, index: int, queue_id: int, sys_flag: int, body_bytes: int, properties_bytes: int) -> None:
        limit = ""
        actual = 0
        if queue_id < 0:
            limit, actual = "a queue id from 0", queue_id
        elif not 0 < body_bytes <= self._config.max_message_bytes:
            limit, actual = f"a body of 1 to {self._config.max_message_bytes} bytes", body_bytes
        elif properties_bytes > layout.MAX_PROPERTIES_BYTES:
            limit, actual = f"properties of at most {layout.MAX_PROPERTIES_BYTES} bytes", properties_bytes
        elif sys_flag & _UNWANTED_FLAGS:
            limit, actual = "an IPv4 store host, no prepared or rolled back transaction", sys_flag
        if limit:
            raise InvalidInput("records", f"record {index}: {limit}", actual)

    @contextlib.contextmanager
    def room_is_coming(self) -> Iterator[None]:
        """Write although the disk is fuller than it may be: what is written now lets files go."""
        limit, self._refuse_ratio = self._refuse_ratio, float("inf")
        self._disk_full = ""
        try:
            yield
        finally:
            self._refuse_ratio = limit
            self._disk_checked_at = float("-inf")

    def check_ready(self) -> None:
        """StoreFailed after a failure of the disk, StoreFull while it is too full (looked at once a second)."""
        self._log.health.check()
        now = time.monotonic()
        if now - self._disk_checked_at >= _DISK_CHECK_EVERY_S:
            self._disk_checked_at = now
            ratio, limit = Disk.of(self._directory).ratio, self._refuse_ratio
            self._disk_full = f"the disk is {ratio:.1%} full, writes end at {limit:.1%}" if ratio >= limit else ""
        if self._disk_full:
            raise StoreFull(self._disk_full)

    def _failed(self, start: int, error: StoreError) -> StoreError:
        """What to raise after a write went wrong: with nothing in the log it may be tried again."""
        if self._log.max_offset == start and isinstance(error, StoreFull):
            return error
        self._log.health.fail(error)
        return StoreFailed(f"an append to {self._directory} failed half way: {error}")


def _check_lane(topic: str, queue_id: int, lanes: Collection[tuple[str, int]] | None) -> None:
    if lanes is not None and (topic, queue_id) not in lanes:
        raise InvalidInput("records", f"records of {sorted(lanes)}", (topic, queue_id))
