"""Check that appended records are sound, within the limits, and of a valid topic.

A valid topic is one that can be a folder's name.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from operator import le
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from raymq.storage.errors import InvalidInput, StoreCorrupt
from raymq.storage.records import crc, native_kernels
from raymq.storage.records import record as layout
from raymq.storage.records.indexed_properties import tags_and_keys
from raymq.storage.records.java_hash import index_hash_of_bytes, tags_code_of_bytes
from raymq.storage.records.message_limits import TOO_LONG
from raymq.storage.records.record import Buffer
from raymq.storage.records.record_batch import BadRecord, Batch, check_topic, parse

#: Up to this many records a loop is faster than NumPy's set-up.
_FEW: Final = 16
_KNOWN_TOPICS: Final = 65_536
_UNWANTED_FLAGS: Final = layout.SYS_FLAG_STORE_IPV6 | layout.SYS_FLAG_TRANSACTION_PREPARED
_UNUSUAL_FLAGS: Final = _UNWANTED_FLAGS | layout.SYS_FLAG_BORN_IPV6


class CheckedRecord(NamedTuple):
    """A checked record of a small append, parsed without NumPy.

    NumPy's set-up would take longer than parsing the record.

    Attributes:
        record: its bytes, borrowed.
        topic_queue: its topic and queue id.
        late: by how many bytes the fields behind the born host are shifted, compared with an IPv4 born host.
        tags_code: Java's hash of TAGS, 0 without.
        key_hashes: the index hashes of its keys.
    """

    record: memoryview
    topic_queue: tuple[str, int]
    late: int
    tags_code: int
    key_hashes: list[int]


#: The checked records of one append, one by one if they are few.
CheckedRecords = Sequence[CheckedRecord] | Batch


class RecordChecker:
    """The check of appended records; each error is an InvalidInput that names the record."""

    def __init__(self, max_body_bytes: int, max_record_bytes: int) -> None:
        """Set the limits: a store's setting, and the capacity of one log file."""
        self._max_body_bytes = max_body_bytes
        self._max_record_bytes = max_record_bytes
        #: Each topic as text, and the prefix of its keys in the index.
        self._topics: dict[bytes, tuple[str, bytes]] = {}

    def one(self, record: memoryview, check_crc: bool, index: int = 0) -> CheckedRecord:
        """Check one record, in an append the one with this index.

        Sound records of the usual kind (version 1, IPv4, a topic that was seen before) are parsed in a few steps. All
        others, and the errors of a record, are left to the general method.
        """
        size = len(record)
        kernels = native_kernels.kernels
        if kernels is not None:
            found = kernels.scan_one(record, check_crc, self._max_body_bytes, self._max_record_bytes)
            if found is not None and (seen := self._topics.get(found[0])) is not None:
                return CheckedRecord(record, (seen[0], found[1]), 0, found[2], found[3])
            return self._single(record, size, index, check_crc)
        if size < layout.MIN_RECORD_BYTES:
            return self._single(record, size, index, check_crc)
        declared, magic, body_crc, queue_id, sys_flag, body_bytes = layout.CHECKED.unpack_from(record)
        topic_at = layout.OFFSET_BODY + body_bytes
        if (
            declared != size
            or magic != layout.MAGIC_V1
            or queue_id < 0
            or sys_flag & _UNUSUAL_FLAGS
            or not 0 < body_bytes <= self._max_body_bytes
            or topic_at > size - layout.LEAST_TAIL
            or size > self._max_record_bytes
        ):
            return self._single(record, size, index, check_crc)
        tail = bytes(record[topic_at:])
        topic_end = 1 + tail[0]
        known = self._topics.get(tail[1:topic_end])
        properties = tail[topic_end + 2 :]
        if (
            known is None
            or not properties
            or len(properties) > layout.MAX_PROPERTIES_BYTES
            or tail[topic_end] << 8 | tail[topic_end + 1] != len(properties)
            or not properties[-1]
            or _may_seem_missing(properties)
            or (check_crc and crc.crc32(record[layout.OFFSET_BODY : topic_at]) & layout.CRC_MASK != body_crc)
        ):
            return self._single(record, size, index, check_crc)
        return CheckedRecord(record, (known[0], queue_id), 0, *_hashes(properties, known[1]))

    def check(self, records: Buffer, sizes: npt.NDArray[np.int32], check_crc: bool) -> CheckedRecords:
        """Check 1..n records, a few of them without NumPy."""
        if len(sizes) == 1 and sizes[0] == len(records):
            return (self.one(memoryview(records), check_crc),)
        if len(sizes) <= _FEW and len(records) <= self._max_record_bytes:
            return self._few(memoryview(records), sizes, check_crc)
        return self._many(records, sizes, check_crc)

    def _few(self, records: memoryview, sizes: npt.NDArray[np.int32], check_crc: bool) -> list[CheckedRecord]:
        found: list[CheckedRecord] = []
        at = 0
        for size in sizes.tolist():
            found.append(self.one(records[at : at + size], check_crc, len(found)))
            at += size
        if at != len(records) or not found:
            raise InvalidInput("sizes", f"sizes that add up to the buffer's {len(records)} bytes", at)
        return found

    def _many(self, records: Buffer, sizes: npt.NDArray[np.int32], check_crc: bool) -> Batch:
        try:
            batch = parse(records, sizes, check_crc=check_crc)
        except BadRecord as bad:
            raise InvalidInput("records", f"record {bad.index}: {bad.reason}", bad.actual) from None
        self._check_limits(batch)
        return batch

    def _single(self, record: memoryview, size: int, index: int, check_crc: bool) -> CheckedRecord:
        try:
            version, body_at, topic_at, properties_at, end = layout.locate(record, 0, len(record), check_crc)
        except StoreCorrupt as error:
            raise InvalidInput("records", f"record {index}: a sound record", error.reason) from None
        if not size == end == len(record):
            raise InvalidInput("records", f"record {index}: the declared size in its first field", end)
        queue_id, sys_flag = layout.queue_and_flag(record)
        tail = bytes(record[topic_at:])
        name = tail[: properties_at - 2 - topic_at]
        topic, prefix = self._topics.get(name) or self._learn_topic(name, index)
        body_bytes = topic_at - version - body_at
        if (
            queue_id < 0
            or sys_flag & _UNWANTED_FLAGS
            or not 0 < body_bytes <= self._max_body_bytes
            or end - properties_at > layout.MAX_PROPERTIES_BYTES
            or end > self._max_record_bytes
        ):
            raise self._refusal(index, queue_id, sys_flag, body_bytes, end - properties_at, end)
        properties = tail[properties_at - topic_at :]
        if _may_seem_missing(properties):
            raise _zeros(index)
        late = layout.IPV6_SHIFT if sys_flag & layout.SYS_FLAG_BORN_IPV6 else 0
        return CheckedRecord(record, (topic, queue_id), late, *_hashes(properties, prefix))

    def _learn_topic(self, name: bytes, index: int) -> tuple[str, bytes]:
        try:
            check_topic(name, index)
        except BadRecord as bad:
            raise InvalidInput("records", f"record {index}: {bad.reason}", bad.actual) from None
        if len(self._topics) >= _KNOWN_TOPICS:
            self._topics.clear()
        return self._topics.setdefault(name, (name.decode("ascii"), name + b"#"))

    def _check_limits(self, batch: Batch) -> None:
        bodies, sizes = batch.body_lengths, batch.sizes
        properties = batch.ends - batch.properties_at
        limits = self._max_body_bytes, layout.MAX_PROPERTIES_BYTES, self._max_record_bytes
        largest = int(bodies.max()), int(properties.max()), int(sizes.max())
        if int(bodies.min()) > 0 and all(map(le, largest, limits)) and not batch.any_flags & _UNWANTED_FLAGS:
            if largest[1] >= layout.SECTOR_BYTES:
                self._check_zeros(batch)
            return
        bad = (bodies < 1) | (bodies > limits[0]) | (properties > limits[1]) | (sizes > limits[2])
        i = int(np.argmax(bad | ((batch.sys_flags & _UNWANTED_FLAGS) != 0)))
        raise self._refusal(i, 0, int(batch.sys_flags[i]), int(bodies[i]), int(properties[i]), int(sizes[i]))

    def _check_zeros(self, batch: Batch) -> None:
        for i in np.flatnonzero(batch.ends - batch.properties_at >= layout.SECTOR_BYTES).tolist():
            if _may_seem_missing(bytes(batch.records[int(batch.properties_at[i]) : int(batch.ends[i])])):
                raise _zeros(i)

    def _refusal(
        self, index: int, queue_id: int, sys_flag: int, body_bytes: int, properties_bytes: int, record_bytes: int
    ) -> InvalidInput:
        """Return the error for the first limit that the record breaks."""
        limit: str
        remedy = None
        if queue_id < 0:
            limit, actual = "a queue id from 0", queue_id
        elif not 0 < body_bytes <= self._max_body_bytes:
            limit, actual = f"a body of 1 to {self._max_body_bytes} bytes", body_bytes
            remedy = TOO_LONG if body_bytes else None
        elif properties_bytes > layout.MAX_PROPERTIES_BYTES:
            limit, actual = f"properties of at most {layout.MAX_PROPERTIES_BYTES} bytes", properties_bytes
        elif sys_flag & _UNWANTED_FLAGS:
            limit, actual = "an IPv4 store host, no prepared or rolled back transaction", sys_flag
        else:
            limit, actual = f"at most {self._max_record_bytes} bytes", record_bytes
        return InvalidInput("records", f"record {index}: {limit}", actual, remedy=remedy)


def _may_seem_missing(properties: bytes) -> bool:
    """Return True if a sector of the properties may be all zeros.

    Recovery treats such a sector as one that did not reach the disk.
    """
    return len(properties) >= layout.SECTOR_BYTES and b"\0" in properties


def _zeros(index: int) -> InvalidInput:
    return InvalidInput("records", f"record {index}: properties without \\x00", "some")


def _hashes(properties: bytes, prefix: bytes) -> tuple[int, list[int]]:
    """Return a record's tags code and its keys' index hashes; `prefix` begins each key."""
    tags, keys = tags_and_keys(properties)
    return tags_code_of_bytes(tags) if tags else 0, [index_hash_of_bytes(prefix + key) for key in keys]


def check_topic_queues(checked: CheckedRecords, topic_queues: Collection[tuple[str, int]]) -> None:
    """Raise InvalidInput if a record belongs to another queue than these."""
    if isinstance(checked, Batch):
        found = [(group.topic, group.queue_id) for group in checked.groups]
    else:
        found = [single.topic_queue for single in checked]
    for topic_queue in found:
        if topic_queue not in topic_queues:
            raise InvalidInput("records", f"records of {sorted(topic_queues)}", topic_queue)
