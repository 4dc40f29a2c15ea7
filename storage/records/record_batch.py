"""Check, locate and stamp many contiguous records at once, in NumPy and C.

A field is read from or written to all records in one step, through an array that views the 4 or 8 bytes at *every* byte
position of the buffer (strides of 1) and is indexed with the positions of the fields.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raymq.storage.records import native_kernels
from raymq.storage.records import record as layout
from raymq.storage.records.byte_rows import Int64s, every, rows_at
from raymq.storage.records.checksums import checksums
from raymq.storage.records.native_kernels import Kernels
from raymq.storage.records.record import Buffer

TOPIC_PATTERN = re.compile(rb"[%|a-zA-Z0-9_-]+")
LONG_TOPIC_PREFIXES = (b"%RETRY%", b"%DLQ%")

#: The fields of a header with IPv4 hosts that this module reads or stamps.
_HEADER = layout.header_dtype(
    (
        *("size", "magic", "body_crc", "queue_id", "queue_offset", "physical_offset", "sys_flag"),
        *("store_timestamp", "store_host", "body_length"),
    )
)
_EITHER_IPV6 = layout.SYS_FLAG_BORN_IPV6 | layout.SYS_FLAG_STORE_IPV6
#: The bytes from the first to the last stamped field of such a header.
_STAMPED = slice(layout.OFFSET_QUEUE_OFFSET, layout.OFFSET_RECONSUME_TIMES)


class BadRecord(Exception):
    """Record `index` of a batch is not valid; the records before it may be valid."""

    def __init__(self, index: int, reason: str, actual: object) -> None:
        super().__init__(f"record {index}: {reason}: {actual}")
        self.index = index
        self.reason = reason
        self.actual = actual


@dataclass(slots=True)
class QueueRecords:
    """The records of a batch that go to one queue.

    `members` are the indices of the records; None = all records of the batch.
    """

    topic: str
    queue_id: int
    members: Int64s | None

    def is_for_queue(self, topic: str, queue_id: int) -> bool:
        """Return True if this is the group of that queue."""
        return self.topic == topic and self.queue_id == queue_id


@dataclass(slots=True)
class Batch:
    """Valid records and the positions of their parts.

    It reads from the caller's buffer and copies nothing.
    """

    records: memoryview
    sizes: Int64s
    starts: Int64s
    ends: Int64s
    sys_flags: npt.NDArray[np.int32]
    body_at: Int64s
    body_lengths: Int64s
    properties_at: Int64s
    groups: list[QueueRecords]
    #: The bitwise OR of the records' sys flags.
    any_flags: int
    _headers: npt.NDArray[np.void] | None = None

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def headers(self) -> npt.NDArray[np.void]:
        """Return a copy of the records' headers."""
        if self._headers is None:
            self._headers = _headers(self.records, self.starts)
        return self._headers

    @property
    def queue_offsets(self) -> Int64s:
        """Return the queue offsets that the records have in the buffer."""
        return self.headers["queue_offset"].astype(np.int64)

    @property
    def physical_offsets(self) -> Int64s:
        """Return the physical offsets that the records have in the buffer."""
        return self.headers["physical_offset"].astype(np.int64)

    @property
    def store_timestamps_ms(self) -> Int64s:
        """Return the store timestamps that the records have in the buffer, in milliseconds."""
        times: Int64s = self.headers["store_timestamp"].astype(np.int64)
        if self.born_ipv6:
            at = self.starts + layout.OFFSET_STORE_TIMESTAMP + _born_shift(self.sys_flags)
            times = strided(self.records, ">i8")[at].astype(np.int64)
        return times

    @property
    def born_ipv6(self) -> bool:
        """Return True if a record has an IPv6 born host.

        The fields after the born host then lie later than in `headers`.
        """
        return bool(self.any_flags & layout.SYS_FLAG_BORN_IPV6)

    def part(self, first: int, last: int) -> tuple[int, int]:
        """Return the begin and end of the bytes of records first..last (last not included)."""
        return int(self.starts[first]), int(self.starts[last - 1] + self.sizes[last - 1])


def strided(buffer: Buffer, code: str) -> npt.NDArray[np.int64]:
    """Return an array of `code` at every byte position of `buffer`, for gather and scatter."""
    size = np.dtype(code).itemsize
    return np.ndarray((max(0, len(buffer) - size + 1),), code, buffer, strides=(1,))


def _born_shift(sys_flags: npt.NDArray[np.int32]) -> Int64s:
    shifts: Int64s = ((sys_flags & layout.SYS_FLAG_BORN_IPV6) != 0) * np.int64(layout.IPV6_SHIFT)
    return shifts


def parse(records: Buffer, sizes: npt.NDArray[np.int32], *, check_crc: bool = True) -> Batch:
    """Check that records are valid and find their parts.

    Raises:
        BadRecord: the first invalid record that was found; an earlier record may be invalid in another way.
    """
    view = memoryview(records)
    count = len(sizes)
    sizes_ = np.asarray(sizes).astype(np.int64)
    ends = np.cumsum(sizes_)
    if count == 0 or int(ends[-1]) != len(view):
        raise BadRecord(0, f"sizes that add up to the buffer's {len(view)} bytes", int(ends[-1]) if count else 0)
    if native_kernels.kernels is not None:
        found = _scan(native_kernels.kernels, view, sizes, sizes_, check_crc)
        if found is not None:
            return found
    _require(sizes_ >= layout.MIN_RECORD_BYTES, f"at least {layout.MIN_RECORD_BYTES} bytes", sizes_)
    starts = ends - sizes_
    headers = _headers(view, starts)
    _require(headers["size"] == sizes_, "the declared size in its first field", headers["size"])
    magics = headers["magic"]
    version_1 = magics == layout.MAGIC_V1
    all_version_1 = every(version_1)
    if not all_version_1:
        _require(version_1 | (magics == layout.MAGIC_V2), "the magic of version 1 or 2", magics)
    queue_ids = headers["queue_id"].astype(np.int32)
    if int(queue_ids.min()) < 0:
        _require(queue_ids >= 0, "a queue id from 0", queue_ids)
    sys_flags = headers["sys_flag"].astype(np.int32)
    any_flags = int(np.bitwise_or.reduce(sys_flags))
    body_lengths = headers["body_length"].astype(np.int64)
    body_at = starts + layout.OFFSET_BODY
    if any_flags & _EITHER_IPV6:
        shift = _hosts_shift(sys_flags)
        _require(sizes_ - layout.MIN_RECORD_BYTES >= shift, "room for its hosts", sizes_)
        body_at += shift
        at = body_at - layout.OFFSET_BODY + layout.OFFSET_BODY_LENGTH
        body_lengths = strided(view, ">i4")[at].astype(np.int64)
    room = ends - body_at - (layout.MIN_RECORD_BYTES - layout.OFFSET_BODY)
    _require((body_lengths >= 0) & (body_lengths <= room), "a body within the record", body_lengths)
    topic_at, topic_lengths, properties_at = _tails(view, ends, body_at + body_lengths, version_1)
    groups = _group(view, topic_at, topic_lengths, queue_ids)
    if check_crc:
        stored = headers["body_crc"]
        _require(
            checksums(view, body_at, body_lengths) & layout.CRC_MASK == stored, "a body that matches its CRC", stored
        )
    return Batch(
        view, sizes_, starts, ends, sys_flags, body_at, body_lengths, properties_at, groups, any_flags, headers
    )


def _headers(view: memoryview, starts: Int64s) -> npt.NDArray[np.void]:
    return rows_at(view, starts, _HEADER.itemsize).view(_HEADER)


def _scan(
    kernels: Kernels, view: memoryview, sizes: npt.NDArray[np.int32], sizes_: Int64s, check_crc: bool
) -> Batch | None:
    """Do the work of `parse` with compiled code.

    Return None if a record is not valid or there are several topics.
    """
    places = np.empty((5, len(sizes)), np.int64)
    numbers = np.empty((2, len(sizes)), np.int32)
    found = kernels.scan(view, np.ascontiguousarray(sizes, np.int32), check_crc, places, numbers)
    if found is None:
        return None
    any_flags, topic, one_queue = found
    starts, ends, body_at, body_lengths, properties_at = places
    sys_flags, queue_ids = numbers
    groups = _group_alike(topic, queue_ids, one_queue=one_queue)
    return Batch(view, sizes_, starts, ends, sys_flags, body_at, body_lengths, properties_at, groups, any_flags)


def _hosts_shift(sys_flags: npt.NDArray[np.int32]) -> Int64s:
    shifts = _born_shift(sys_flags)
    shifts += ((sys_flags & layout.SYS_FLAG_STORE_IPV6) != 0) * np.int64(layout.IPV6_SHIFT)
    return shifts


def _tails(
    view: memoryview, ends: Int64s, length_at: Int64s, version_1: npt.NDArray[np.bool_]
) -> tuple[Int64s, Int64s, Int64s]:
    """Return the begins and lengths of topics and the begins of properties, each record checked.

    Args:
        length_at: where the bodies end.
    """
    bytes_ = np.frombuffer(view, np.uint8)
    if every(version_1):
        topic_at = length_at + 1
        topic_lengths = bytes_[length_at].astype(np.int64)
    else:
        topic_at = length_at + np.where(version_1, 1, 2)
        two_bytes = bytes_[length_at].astype(np.int64) << 8 | bytes_[length_at + 1]
        topic_lengths = np.where(version_1, bytes_[length_at], two_bytes)
    properties_at = topic_at + topic_lengths + 2
    _require((topic_lengths > 0) & (properties_at <= ends), "a topic within the record", topic_lengths)
    properties_lengths = np.ndarray((len(view) - 1,), ">u2", view, strides=(1,))[properties_at - 2].astype(np.int64)
    _require(properties_at + properties_lengths == ends, "parts that add up to the size", properties_lengths)
    last_bytes = bytes_[ends - 1]
    _require((last_bytes != 0) | (properties_lengths == 0), "complete properties", last_bytes)
    return topic_at, topic_lengths, properties_at


def _require(sound: npt.NDArray[np.bool_], reason: str, values: npt.NDArray[np.integer]) -> None:
    if not every(sound):
        index = int(np.argmin(sound))
        raise BadRecord(index, reason, int(values[index]))


def _group_alike(name: bytes, queue_ids: npt.NDArray[np.int32], *, one_queue: bool = False) -> list[QueueRecords]:
    """Return the queues of a batch of one topic, each with its records in order.

    Raise BadRecord if the topic's name is not valid.
    """
    check_topic(name, 0)
    topic = name.decode("ascii")
    queue_id = int(queue_ids[0])
    if one_queue or every(queue_ids == queue_id):
        return [QueueRecords(topic, queue_id, None)]
    return [QueueRecords(topic, q, np.flatnonzero(queue_ids == q)) for q in np.unique(queue_ids).tolist()]


def _group(
    view: memoryview, topic_at: Int64s, topic_lengths: Int64s, queue_ids: npt.NDArray[np.int32]
) -> list[QueueRecords]:
    """Return the queues of a batch, each with its records in order.

    Raise BadRecord if a topic's name is not valid.
    """
    length = int(topic_lengths[0])
    first = bytes(view[int(topic_at[0]) : int(topic_at[0]) + length])
    if every(topic_lengths == length):
        names = np.ndarray((len(view) - length + 1,), f"S{length}", view, strides=(1,))
        if every(names[topic_at] == first):
            return _group_alike(first, queue_ids)
    return _group_all(view, topic_at, topic_lengths, queue_ids)


def _group_all(
    view: memoryview, topic_at: Int64s, topic_lengths: Int64s, queue_ids: npt.NDArray[np.int32]
) -> list[QueueRecords]:
    """Return the queues of a batch of several topics, ordered by their first records.

    Raise BadRecord if a topic's name is not valid.
    """
    names: list[bytes] = []
    topics = np.empty(len(topic_at), np.int64)
    for length in np.unique(topic_lengths).tolist():
        chosen = np.flatnonzero(topic_lengths == length)
        found, numbers = np.unique(rows_at(view, topic_at[chosen], length), return_inverse=True)
        topics[chosen] = numbers.reshape(-1) + len(names)
        names += found.tolist()
    topic_queues = topics << 32 | queue_ids
    order = np.argsort(topic_queues, kind="stable")
    firsts = np.flatnonzero(np.append(True, topic_queues[order][1:] != topic_queues[order][:-1]))
    groups = sorted(np.split(order, firsts[1:]), key=lambda members: int(members[0]))
    for members in groups:
        check_topic(names[topics[members[0]]], int(members[0]))
    return [QueueRecords(names[topics[m[0]]].decode("ascii"), int(queue_ids[m[0]]), m) for m in groups]


def check_topic(name: bytes, index: int) -> None:
    """Raise BadRecord unless `name` is a valid topic name, and so a valid folder name."""
    limit = layout.MAX_TOPIC_BYTES if name.startswith(LONG_TOPIC_PREFIXES) else layout.MAX_TOPIC_BYTES_V1
    if not TOPIC_PATTERN.fullmatch(name) or len(name) > limit:
        raise BadRecord(index, f"a topic of at most {limit} characters %|a-zA-Z0-9_-", name)


def stamp(
    target: memoryview,
    batch: Batch,
    first: int,
    last: int,
    queue_offsets: Int64s,
    physical_offset: int,
    store_timestamp_ms: int,
    store_host: int,
) -> Int64s:
    """Copy records first..last to `target` with the store's fields; return their physical offsets.

    The caller writes the size of the first record, and writes it last: a reader stops at a size of 0, so it sees either
    all of the records or none.

    Args:
        target: writable memory of their length, zeros, at `physical_offset` of the log.
        store_host: the 8 bytes of the store's host as one number.
    """
    begin, end = batch.part(first, last)
    starts = batch.starts[first:last] - begin
    physical_offsets: Int64s = starts + physical_offset
    if native_kernels.kernels is not None:
        native_kernels.kernels.stamp(
            target,
            batch.records[begin:end],
            batch.starts[first:last],
            batch.sys_flags[first:last],
            queue_offsets[first:last],
            physical_offset,
            store_timestamp_ms,
            store_host,
        )
    else:
        _copy_and_stamp(target, batch, first, last, queue_offsets, physical_offsets, store_timestamp_ms, store_host)
    return physical_offsets


def _copy_and_stamp(
    target: memoryview,
    batch: Batch,
    first: int,
    last: int,
    queue_offsets: Int64s,
    physical_offsets: Int64s,
    store_timestamp_ms: int,
    store_host: int,
) -> None:
    """Do the work of `stamp` in NumPy, except for the size of the first record."""
    begin, end = batch.part(first, last)
    target[layout.OFFSET_MAGIC :] = batch.records[begin + layout.OFFSET_MAGIC : end]
    starts = batch.starts[first:last] - begin
    if batch.born_ipv6:
        eights = strided(target, ">i8")
        eights[starts + layout.OFFSET_QUEUE_OFFSET] = queue_offsets[first:last]
        eights[starts + layout.OFFSET_PHYSICAL_OFFSET] = physical_offsets
        late = starts + _born_shift(batch.sys_flags[first:last])
        eights[late + layout.OFFSET_STORE_TIMESTAMP] = store_timestamp_ms
        eights[late + layout.OFFSET_STORE_HOST] = store_host
    else:
        headers = batch.headers[first:last]
        headers["queue_offset"] = queue_offsets[first:last]
        headers["physical_offset"] = physical_offsets
        headers["store_timestamp"] = store_timestamp_ms
        headers["store_host"] = store_host
        width = _STAMPED.stop - _STAMPED.start
        stamped = np.ndarray((len(headers),), f"V{width}", headers, _STAMPED.start, headers.strides)
        places = np.ndarray((len(target) - width + 1,), f"V{width}", target, strides=(1,))
        places[starts + _STAMPED.start] = stamped
