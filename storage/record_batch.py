"""Many contiguous records at once: check them, find their parts, stamp copies of them; all in NumPy and C.

A field is read from or written to all records in one step, through an array that sees the 4 or 8 bytes at *every*
byte position of the buffer (strides of 1) and is indexed with the positions of the fields.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from raymq.storage import record as layout
from raymq.storage.java_hash import tags_code_of_bytes
from raymq.storage.record import Buffer

Int64s = npt.NDArray[np.int64]
TOPIC_PATTERN = re.compile(rb"[%|a-zA-Z0-9_-]+")
LONG_TOPIC_PREFIXES = (b"%RETRY%", b"%DLQ%")


class BadRecord(Exception):
    """Record `index` of a batch is not sound, those before it may still be."""

    def __init__(self, index: int, reason: str, actual: object) -> None:
        super().__init__(f"record {index}: {reason}: {actual}")
        self.index = index
        self.reason = reason
        self.actual = actual


@dataclass(slots=True)
class Group:
    """The records of a batch that go to one queue; `members` are their numbers, None = all of them."""

    topic: str
    queue_id: int
    members: Int64s | None

    def is_of(self, topic: str, queue_id: int) -> bool:
        """Whether it is the group of that queue."""
        return self.topic == topic and self.queue_id == queue_id


@dataclass(slots=True)
class Batch:
    """Sound records and where their parts lie. It reads from the caller's buffer and copies nothing."""

    records: memoryview
    sizes: Int64s
    starts: Int64s
    sys_flags: npt.NDArray[np.int32]
    body_at: Int64s
    body_lengths: Int64s
    properties_at: Int64s
    groups: list[Group]
    properties: list[bytes] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def ends(self) -> Int64s:
        return self.starts + self.sizes

    @property
    def queue_offsets(self) -> Int64s:
        return self._longs(layout.OFFSET_QUEUE_OFFSET)

    @property
    def physical_offsets(self) -> Int64s:
        return self._longs(layout.OFFSET_PHYSICAL_OFFSET)

    @property
    def store_timestamps_ms(self) -> Int64s:
        eights = strided(self.records, ">i8")
        at = self.starts + layout.OFFSET_STORE_TIMESTAMP + _born_shift(self.sys_flags)
        times: Int64s = eights[at].astype(np.int64)
        return times

    def _longs(self, offset: int) -> Int64s:
        return strided(self.records, ">i8")[self.starts + offset].astype(np.int64)

    def read_properties(self) -> list[bytes]:
        """The properties of each record, as stored."""
        if not self.properties:
            records = self.records
            spans = zip(self.properties_at.tolist(), self.ends.tolist(), strict=True)
            self.properties = [bytes(records[start:end]) for start, end in spans]
        return self.properties

    def tags_codes(self) -> Int64s:
        """The hash of each record's TAGS, 0 without."""
        codes = [tags_code_of_bytes(tags_of(p)) if b"TAGS\x01" in p else 0 for p in self.read_properties()]
        return np.array(codes, np.int64)

    def part(self, first: int, last: int) -> tuple[int, int]:
        """The bytes of records first..last (last not included)."""
        return int(self.starts[first]), int(self.starts[last - 1] + self.sizes[last - 1])


def strided(buffer: Buffer, code: str) -> npt.NDArray[np.int64]:
    """`code` at every byte position of `buffer`; gather and scatter through it."""
    size = np.dtype(code).itemsize
    return np.ndarray((max(0, len(buffer) - size + 1),), code, buffer, strides=(1,))


def _born_shift(sys_flags: npt.NDArray[np.int32]) -> Int64s:
    shifts: Int64s = ((sys_flags & layout.SYS_FLAG_BORN_IPV6) != 0) * np.int64(layout.IPV6_SHIFT)
    return shifts


def parse(records: Buffer, sizes: npt.NDArray[np.int32], *, check_crc: bool = True) -> Batch:
    """Check records against themselves and find their parts.

    Raises:
        BadRecord: the first one found unsound; one before it may be so too, in another way.
    """
    view = memoryview(records)
    count = len(sizes)
    sizes_ = np.asarray(sizes).astype(np.int64)
    ends = np.cumsum(sizes_)
    if count == 0 or int(ends[-1]) != len(view):
        raise BadRecord(0, f"sizes that add up to the buffer's {len(view)} bytes", int(ends[-1]) if count else 0)
    _require(sizes_ >= layout.MIN_RECORD_BYTES, f"at least {layout.MIN_RECORD_BYTES} bytes", sizes_)
    starts = ends - sizes_
    fours = strided(view, ">i4")
    _require(fours[starts] == sizes_, "the declared size in its first field", fours[starts])
    magics = fours[starts + layout.OFFSET_MAGIC]
    version_1 = magics == layout.MAGIC_V1
    _require(version_1 | (magics == layout.MAGIC_V2), "the magic of version 1 or 2", magics)
    queue_ids = fours[starts + layout.OFFSET_QUEUE_ID]
    _require(queue_ids >= 0, "a queue id from 0", queue_ids)
    sys_flags = fours[starts + layout.OFFSET_SYS_FLAG].astype(np.int32)
    shift = _born_shift(sys_flags) + ((sys_flags & layout.SYS_FLAG_STORE_IPV6) != 0) * np.int64(layout.IPV6_SHIFT)
    _require(sizes_ >= shift + layout.MIN_RECORD_BYTES, "room for its hosts", sizes_)
    body_lengths = fours[starts + layout.OFFSET_BODY_LENGTH + shift].astype(np.int64)
    room = sizes_ - shift - layout.MIN_RECORD_BYTES
    _require((body_lengths >= 0) & (body_lengths <= room), "a body within the record", body_lengths)
    body_at = starts + layout.OFFSET_BODY + shift
    length_at = body_at + body_lengths
    bytes_ = np.frombuffer(view, np.uint8)
    if version_1.all():
        topic_at = length_at + 1
        topic_lengths = bytes_[length_at].astype(np.int64)
    else:
        topic_at = length_at + np.where(version_1, 1, 2)
        two_bytes = bytes_[length_at].astype(np.int64) << 8 | bytes_[length_at + 1]
        topic_lengths = np.where(version_1, bytes_[length_at], two_bytes)
    properties_at = topic_at + topic_lengths + 2
    _require((topic_lengths > 0) & (properties_at <= ends), "a topic within the record", topic_lengths)
    properties_lengths = bytes_[properties_at - 2].astype(np.int64) << 8 | bytes_[properties_at - 1]
    _require(properties_at + properties_lengths == ends, "parts that add up to the size", properties_lengths)
    last_bytes = bytes_[ends - 1]
    _require((last_bytes != 0) | (properties_lengths == 0), "properties that are all there", last_bytes)
    if check_crc:
        stored = fours[starts + layout.OFFSET_BODY_CRC]
        bodies = map(view.__getitem__, map(slice, body_at.tolist(), length_at.tolist()))
        crcs = np.fromiter(map(zlib.crc32, bodies), np.uint32, count) & layout.CRC_MASK
        _require(crcs == stored, "a body of its CRC", stored)
    groups = _group(view, topic_at, topic_lengths, queue_ids)
    return Batch(view, sizes_, starts, sys_flags, body_at, body_lengths, properties_at, groups)


def _require(sound: npt.NDArray[np.bool_], reason: str, values: npt.NDArray[np.integer]) -> None:
    if not sound.all():
        index = int(np.argmin(sound))
        raise BadRecord(index, reason, int(values[index]))


def _group(view: memoryview, topic_at: Int64s, topic_lengths: Int64s, queue_ids: npt.NDArray[np.int32]) -> list[Group]:
    """The queues of a batch, each with its records in order; valid names only."""
    length = int(topic_lengths[0])
    first = bytes(view[int(topic_at[0]) : int(topic_at[0]) + length])
    check_topic(first, 0)
    if (topic_lengths == length).all():
        every = np.ndarray((len(view) - length + 1,), f"S{length}", view, strides=(1,))
        if (every[topic_at] == first).all():
            topic = first.decode("ascii")
            queue_id = int(queue_ids[0])
            if (queue_ids == queue_id).all():
                return [Group(topic, queue_id, None)]
            return [Group(topic, q, np.flatnonzero(queue_ids == q)) for q in np.unique(queue_ids).tolist()]
    members: dict[tuple[bytes, int], list[int]] = {}
    spans = zip(topic_at.tolist(), topic_lengths.tolist(), queue_ids.tolist(), strict=True)
    for index, (at, size, queue_id) in enumerate(spans):
        members.setdefault((bytes(view[at : at + size]), queue_id), []).append(index)
    for name, queue_id in members:
        check_topic(name, members[name, queue_id][0])
    return [Group(name.decode("ascii"), queue_id, np.array(m)) for (name, queue_id), m in members.items()]


def check_topic(name: bytes, index: int) -> None:
    """BadRecord unless `name` can be a topic and hence a folder."""
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
    """Copy records first..last to `target` with what the store knows; their physical offsets.

    The size of the first record is written last: a reader that stops at a size of 0 sees all of them or none.

    Args:
        target: writable memory of their length, zeros, at `physical_offset` of the log.
        store_host: the 8 bytes of the store's host as one number.
    """
    begin, end = batch.part(first, last)
    size_bytes = layout.OFFSET_MAGIC
    target[size_bytes:] = batch.records[begin + size_bytes : end]
    starts = batch.starts[first:last] - begin
    physical_offsets: Int64s = starts + physical_offset
    eights = strided(target, ">i8")
    eights[starts + layout.OFFSET_QUEUE_OFFSET] = queue_offsets[first:last]
    eights[starts + layout.OFFSET_PHYSICAL_OFFSET] = physical_offsets
    late = starts + _born_shift(batch.sys_flags[first:last])
    eights[late + layout.OFFSET_STORE_TIMESTAMP] = store_timestamp_ms
    eights[late + layout.OFFSET_STORE_HOST] = store_host
    target[:size_bytes] = batch.records[begin : begin + size_bytes]
    return physical_offsets


def value_of(properties: bytes, name: bytes, *, first: bool = False) -> bytes:
    """The value of a property, b"" if there is none; of a repeated one the last, or the first."""
    needle = name + b"\x01"
    at = properties.find(needle) if first else properties.rfind(needle)
    while at > 0 and properties[at - 1] != 2:
        at = properties.find(needle, at + 1) if first else properties.rfind(needle, 0, at + len(needle) - 1)
    if at < 0:
        return b""
    begin = at + len(needle)
    end = properties.find(b"\x02", begin)
    return properties[begin:end] if end >= 0 else properties[begin:]


def tags_of(properties: bytes) -> bytes:
    """The value of TAGS."""
    return value_of(properties, b"TAGS")


def keys_of(properties: bytes) -> list[bytes]:
    """What is indexed: UNIQ_KEY, then every key of KEYS.

    A record of a RocketMQ batch has two: its own, which its sender knows, and the batch's. It is found by both.
    """
    unique = value_of(properties, b"UNIQ_KEY", first=True)
    keys = [unique] if unique else []
    if properties.count(b"UNIQ_KEY\x01") > 1:
        last = value_of(properties, b"UNIQ_KEY")
        keys += [last] if last != unique else []
    if b"KEYS\x01" in properties:
        keys += [key for key in value_of(properties, b"KEYS").split(b" ") if key]
    return keys
