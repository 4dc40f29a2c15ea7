"""Decode the records that a fetch returned from one queue into messages."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.commands.fetch_commands import Fetched
from raymq.client.lazy_record import LazyBatchRecords, LazyRecord
from raymq.client.message import ReceivedMessage
from raymq.storage.errors import StoreCorrupt
from raymq.storage.records import crc, native_kernels
from raymq.storage.records.byte_rows import every, rows_at
from raymq.storage.records.record import (
    CRC_MASK,
    OFFSET_QUEUE_OFFSET,
    OFFSET_SYS_FLAG,
    QUEUE_AND_PHYSICAL_OFFSET,
    SYS_FLAG_COMPRESSED,
    decode,
    locate,
)
from raymq.storage.records.record_batch import BadRecord, Batch, parse

#: The number of records up to which a loop is faster than NumPy's set-up.
FEW_RECORDS = 32
#: Bodies of one length are copied in steps of so many bytes, which fit into the processor's cache.
_STEP_BYTES = 1 << 18


def decode_messages(part: Fetched, queue: MessageQueue) -> list[ReceivedMessage]:
    """Return the messages of a part, after comparing their checksums.

    Raises:
        StoreCorrupt: a record is damaged; `.file` is the broker, `.offset` the position in the part's records.
    """
    if len(part.sizes) > FEW_RECORDS:
        try:
            batch = parse(part.records, part.sizes, check_crc=False)
            with _no_collections():
                bodies = _compared_bodies(batch)
                if not batch.any_flags & SYS_FLAG_COMPRESSED:
                    undecoded = LazyBatchRecords.of(batch, part.offsets)
                    return ReceivedMessage.undecoded(queue, part.offsets, bodies, undecoded)
        except BadRecord as error:
            place = int(part.sizes[: error.index].sum(dtype=np.int64))
            raise StoreCorrupt(queue.broker, place, f"{error.reason}: {error.actual}") from None
    messages = []
    start = 0
    for size in part.sizes.tolist():
        messages.append(decode_message(part.records, start, queue))
        start += size
    return messages


def decode_each(
    part: Fetched, queue: MessageQueue
) -> tuple[list[ReceivedMessage], list[int], list[tuple[int, Exception]]]:
    """Return the readable messages of a part, their sizes in bytes, and the unreadable records.

    The part is decoded record by record, to its end. An unreadable record is a pair of its queue offset and its error.
    """
    messages, sizes, bad = [], [], []
    start = 0
    for size, offset in zip(part.sizes.tolist(), part.offsets.tolist(), strict=True):
        try:
            record = decode(part.records[start : start + size], 0)
            messages.append(ReceivedMessage.from_record(record, queue.broker))
            sizes.append(size)
        except Exception as error:  # noqa: BLE001 - any error means that the message cannot be read
            bad.append((offset, error))
        start += size
    return messages, sizes, bad


def decode_message(records: memoryview, start: int, queue: MessageQueue) -> ReceivedMessage:
    """Return the message in the record that begins at `start`; raise as `decode_messages`."""
    version, body_at, topic_at, _, end = locate(records, start, len(records), True)
    offset, _ = QUEUE_AND_PHYSICAL_OFFSET.unpack_from(records, start + OFFSET_QUEUE_OFFSET)
    if records[start + OFFSET_SYS_FLAG + 3] & SYS_FLAG_COMPRESSED:  # the flag is in the last of the four bytes
        return ReceivedMessage.from_record(decode(records, start, check_crc=False), queue.broker)
    body_end = topic_at - version
    around = LazyRecord(bytes(records[start:body_at]), bytes(records[body_end:end]))
    return ReceivedMessage.from_lazy_record(queue, offset, bytes(records[body_at:body_end]), around)


@contextmanager
def _no_collections() -> Iterator[None]:
    """Disable garbage collection while thousands of objects are created.

    None of them is garbage, and a collection would take longer than creating them.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _compared_bodies(batch: Batch) -> list[bytes]:
    """Return the bodies as they are stored, after comparing their checksums.

    Raise BadRecord for the first body whose checksum differs from its record's.
    """
    if native_kernels.kernels is not None:
        bodies, bad = native_kernels.kernels.bodies(batch.records, batch.starts, batch.body_at, batch.body_lengths)
        if bad < 0:
            return bodies
    else:
        bodies = _bodies(batch)
    checksums = np.fromiter(map(crc.crc32, bodies), np.uint32, len(bodies)) & np.uint32(CRC_MASK)
    sound = checksums == batch.headers["body_crc"]
    if not every(sound):
        index = int(np.argmin(sound))
        raise BadRecord(index, "a body of its CRC", int(checksums[index]))
    return bodies


def _bodies(batch: Batch) -> list[bytes]:
    length = int(batch.body_lengths[0])
    if length and every(batch.body_lengths == length):
        bodies: list[bytes] = []
        step = max(1, _STEP_BYTES // length)
        for first in range(0, len(batch), step):
            bodies += rows_at(batch.records, batch.body_at[first : first + step], length).tolist()
        return bodies
    data = bytes(batch.records)  # slices of bytes are faster than slices of a memoryview
    slices = map(slice, batch.body_at.tolist(), (batch.body_at + batch.body_lengths).tolist())
    return list(map(data.__getitem__, slices))
