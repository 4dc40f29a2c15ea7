"""The header fields of many records as Arrow columns."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from raymq.storage.records import native_kernels, record, record_batch
from raymq.storage.records.native_kernels import Kernels
from raymq.storage.records.record_batch import Batch
from raymq.storage.records.unique_key_generator import hexadecimal

TIMESTAMP: Final = pa.timestamp("us", "UTC")

#: The first and the last microsecond of the years 2 to 9998. Python supports one more year on either side, but not all
#: of it in every time zone: to detect summer time, it computes the day before.
_YEARS_US: Final = (-62_104_060_800_000_000, 253_370_764_799_999_999)

_ID_BYTES: Final = 16
#: Times beyond this many milliseconds do not fit in 64 bits of microseconds.
_MAX_MS: Final = (1 << 63) // 1000


class HeaderColumns(NamedTuple):
    """Header fields of many records, one value per record.

    `message_id` is the id of the stored copy: it is made of the copy's store host and physical offset. A time outside
    the years 2 to 9998 is null.
    """

    queue_id: pa.Array
    offset: pa.Array
    message_id: pa.Array
    born_timestamp: pa.Array
    store_timestamp: pa.Array


def head_columns(batch: Batch) -> HeaderColumns:
    """Return the header columns of a batch; see `HeaderColumns`."""
    if native_kernels.kernels is not None and not batch.any_flags & record.SYS_FLAG_STORE_IPV6:
        return _compiled(native_kernels.kernels, batch)
    fours = record_batch.strided(batch.records, ">i4")
    born_ms = record_batch.strided(batch.records, ">i8")[batch.starts + record.OFFSET_BORN_TIMESTAMP]
    return HeaderColumns(
        pa.array(fours[batch.starts + record.OFFSET_QUEUE_ID].astype(np.int32)),
        pa.array(batch.queue_offsets),
        _message_ids(batch),
        _timestamps(_microseconds(born_ms)),
        _timestamps(_microseconds(batch.store_timestamps_ms)),
    )


def _compiled(kernels: Kernels, batch: Batch) -> HeaderColumns:
    count = len(batch)
    queue_ids = np.empty(count, np.int32)
    offsets, born_us, stored_us = np.empty((3, count), np.int64)
    digits = np.empty(2 * _ID_BYTES * count, np.uint8)
    kernels.heads(batch.records, batch.starts, batch.sys_flags, queue_ids, offsets, born_us, stored_us, digits)
    ends = np.arange(count + 1, dtype=np.int32) * np.int32(2 * _ID_BYTES)
    ids = pa.StringArray.from_buffers(count, pa.py_buffer(ends), pa.py_buffer(digits))
    return HeaderColumns(pa.array(queue_ids), pa.array(offsets), ids, _timestamps(born_us), _timestamps(stored_us))


def _microseconds(milliseconds: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.clip(milliseconds.astype(np.int64), -_MAX_MS, _MAX_MS) * 1000


def _timestamps(microseconds: npt.NDArray[np.int64]) -> pa.Array:
    """Convert microseconds to timestamps; times outside the years 2 to 9998 become null.

    A sender may set any time, and one message must not make a read fail.
    """
    first, last = _YEARS_US
    if not len(microseconds) or (first <= int(microseconds.min()) and int(microseconds.max()) <= last):
        return pa.Array.from_buffers(TIMESTAMP, len(microseconds), [None, pa.py_buffer(microseconds)])
    return pa.array(microseconds, TIMESTAMP, mask=(microseconds < first) | (microseconds > last))


def _message_ids(batch: Batch) -> pa.Array:
    eights = record_batch.strided(batch.records, ">i8")
    born_ipv6 = (batch.sys_flags & record.SYS_FLAG_BORN_IPV6) != 0
    host_at = batch.starts + record.OFFSET_STORE_HOST + born_ipv6 * np.int64(record.IPV6_SHIFT)
    pairs = np.empty((len(batch), 2), ">i8")
    pairs[:, 0] = eights[host_at]
    pairs[:, 1] = eights[batch.starts + record.OFFSET_PHYSICAL_OFFSET]
    ids = hexadecimal(pairs.view(np.uint8).reshape(len(batch), _ID_BYTES))
    store_ipv6 = (batch.sys_flags & record.SYS_FLAG_STORE_IPV6) != 0
    if not store_ipv6.any():
        return ids
    long_ids = [_long_message_id(batch, row) for row in np.flatnonzero(store_ipv6).tolist()]
    return pc.replace_with_mask(ids, pa.array(store_ipv6), pa.array(long_ids))


def _long_message_id(batch: Batch, row: int) -> str:
    return record.decode(batch.records, int(batch.starts[row]), check_crc=False).message_id
