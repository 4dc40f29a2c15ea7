"""What a fetch brought from one queue, as messages."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.commands.fetch import Fetched
from raymq.client.lazy_record import OneUndecoded, Undecoded
from raymq.client.message import ReceivedMessage
from raymq.storage.errors import StoreCorrupt
from raymq.storage.records import compiled, crc
from raymq.storage.records.batch import BadRecord, Batch, parse
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

#: Up to how many records a loop is faster than NumPy's set-up.
FEW_RECORDS = 32
#: Bodies of one length are taken out of so many bytes at a time, which stay in the processor's cache.
_STEP_BYTES = 1 << 18


def received(part: Fetched, queue: MessageQueue) -> list[ReceivedMessage]:
    """The messages of a part, their checksums compared.

    Raises:
        StoreCorrupt: a record is not sound; `.file` is the broker, `.offset` the place in the part's records.
    """
    if len(part.sizes) > FEW_RECORDS:
        try:
            batch = parse(part.records, part.sizes, check_crc=False)
            with _no_collections():
                bodies = _compared_bodies(batch)
                if not batch.any_flags & SYS_FLAG_COMPRESSED:
                    undecoded = Undecoded.of(batch, part.offsets)
                    return ReceivedMessage.undecoded(queue, part.offsets, bodies, undecoded)
        except BadRecord as error:
            place = int(part.sizes[: error.index].sum(dtype=np.int64))
            raise StoreCorrupt(queue.broker, place, f"{error.reason}: {error.actual}") from None
    messages = []
    start = 0
    for size in part.sizes.tolist():
        messages.append(received_one(part.records, start, queue))
        start += size
    return messages


def received_singly(
    part: Fetched, queue: MessageQueue
) -> tuple[list[ReceivedMessage], list[int], list[tuple[int, Exception]]]:
    """What can be read of a part, looked at record by record and to its end: messages, their sizes in bytes, and of
    each record that cannot be read its offset and why.
    """
    messages, sizes, bad = [], [], []
    start = 0
    for size, offset in zip(part.sizes.tolist(), part.offsets.tolist(), strict=True):
        try:
            record = decode(part.records[start : start + size], 0)
            messages.append(ReceivedMessage.from_record(record, queue.broker))
            sizes.append(size)
        except Exception as error:  # noqa: BLE001 - whatever keeps it from being read
            bad.append((offset, error))
        start += size
    return messages, sizes, bad


def received_one(records: memoryview, start: int, queue: MessageQueue) -> ReceivedMessage:
    """The message in the record that begins there; raises as `received`."""
    version, body_at, topic_at, _, end = locate(records, start, len(records), True)
    offset, _ = QUEUE_AND_PHYSICAL_OFFSET.unpack_from(records, start + OFFSET_QUEUE_OFFSET)
    if records[start + OFFSET_SYS_FLAG + 3] & SYS_FLAG_COMPRESSED:  # it is in the last byte of four
        return ReceivedMessage.from_record(decode(records, start, check_crc=False), queue.broker)
    body_end = topic_at - version
    around = OneUndecoded(bytes(records[start:body_at]), bytes(records[body_end:end]))
    return ReceivedMessage.one_undecoded(queue, offset, bytes(records[body_at:body_end]), around)


@contextmanager
def _no_collections() -> Iterator[None]:
    """While thousands of objects are made, none of which is garbage: looking for it would take longer than they do."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _compared_bodies(batch: Batch) -> list[bytes]:
    """As they are stored; BadRecord for the first one that has another checksum than its record says."""
    if compiled.kernels is not None:
        bodies, bad = compiled.kernels.bodies(batch.records, batch.starts, batch.body_at, batch.body_lengths)
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
    data = bytes(batch.records)  # slices of bytes are made faster than those of a view
    slices = map(slice, batch.body_at.tolist(), (batch.body_at + batch.body_lengths).tolist())
    return list(map(data.__getitem__, slices))
