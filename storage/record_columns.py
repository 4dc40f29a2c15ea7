"""Many records at once out of columns: one Arrow join of headers, bodies, topic and properties, no step per message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from raymq.storage import crc, record
from raymq.storage.errors import InvalidInput

#: The header as NumPy fields, of records with IPv4 hosts: the same fields as `record.HEADER`.
HEADER: Final = np.dtype(
    [
        ("size", ">i4"),
        ("magic", ">i4"),
        ("body_crc", ">i4"),
        ("queue_id", ">i4"),
        ("flag", ">i4"),
        ("queue_offset", ">i8"),
        ("physical_offset", ">i8"),
        ("sys_flag", ">i4"),
        ("born_timestamp", ">i8"),
        ("born_host", "V8"),
        ("store_timestamp", ">i8"),
        ("store_host", "V8"),
        ("reconsume_times", ">i4"),
        ("prepared_transaction_offset", ">i8"),
        ("body_length", ">i4"),
    ]
)


def join_records(
    topic: str,
    queue_id: int,
    bodies: pa.Array,
    properties: pa.Array,
    *,
    born_host: bytes,
    born_timestamp_ms: int,
    body_crcs: npt.NDArray[np.uint32] | None = None,
) -> tuple[memoryview, npt.NDArray[np.int32]]:
    """Records of one queue, ready for `Store.append`; returns (records, sizes). The view is read-only.

    Args:
        bodies, properties: arrays of binary without nulls; properties as `record.encode_properties` makes them.
        born_host: the packed form, IPv4.
        body_crcs: the CRC-32 of each body, where the caller has them cheaper.

    Raises:
        InvalidInput: topic or properties too long, 2 GiB of records or more, an IPv6 host.
    """
    count = len(bodies)
    name = topic.encode()
    if not 0 < len(name) <= record.MAX_TOPIC_BYTES:
        raise InvalidInput("topic", f"1 to {record.MAX_TOPIC_BYTES} bytes", topic)
    if len(born_host) != HEADER["born_host"].itemsize:
        raise InvalidInput("born_host", "an IPv4 address and a port", born_host)
    body_lengths, property_lengths = lengths_of(bodies), lengths_of(properties)
    if count and int(property_lengths.max()) > record.MAX_PROPERTIES_BYTES:
        raise InvalidInput("properties", f"at most {record.MAX_PROPERTIES_BYTES} bytes", int(property_lengths.max()))
    version_2 = len(name) > record.MAX_TOPIC_BYTES_V1
    middle = len(name).to_bytes(2 if version_2 else 1, "big") + name
    sizes = body_lengths + property_lengths + (HEADER.itemsize + len(middle) + 2)
    if int(sizes.sum()) >= 1 << 31:
        raise InvalidInput("records", "less than 2 GiB of records at a time", int(sizes.sum()))
    header = np.zeros(count, HEADER)
    header["size"] = sizes
    header["magic"] = record.MAGIC_V2 if version_2 else record.MAGIC_V1
    header["body_crc"] = (_checksums(bodies) if body_crcs is None else body_crcs) & np.uint32(record.CRC_MASK)
    header["queue_id"] = queue_id
    header["born_timestamp"] = born_timestamp_ms
    header["born_host"] = np.void(born_host)
    header["body_length"] = body_lengths
    joined = pc.binary_join_element_wise(
        fixed_width(header),
        bodies,
        binary_array([middle])[0],
        fixed_width(property_lengths.astype(">u2")),
        properties,
        binary_array([b""])[0],
    )
    data = joined.buffers()[2] if count else pa.py_buffer(b"")
    return memoryview(data)[: int(sizes.sum())], sizes.astype(np.int32)


def binary_array(values: Sequence[bytes]) -> pa.Array:
    """`values` as an array of binary.

    `pa.array` and `pa.scalar` would do, but their first call imports pandas where it is installed: half a second.
    """
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, values), np.int32, len(values)), out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


def lengths_of(values: pa.Array) -> npt.NDArray[np.int64]:
    """The length of every value of an array of binary or string, in bytes."""
    return np.diff(_offsets(values)).astype(np.int64)


def _offsets(values: pa.Array) -> npt.NDArray[np.int32]:
    if not len(values):
        return np.zeros(1, np.int32)
    return np.frombuffer(values.buffers()[1], np.int32, len(values) + 1, values.offset * 4)


def _checksums(bodies: pa.Array) -> npt.NDArray[np.uint32]:
    if not len(bodies):
        return np.zeros(0, np.uint32)
    offsets = _offsets(bodies).tolist()
    slices = map(memoryview(bodies.buffers()[2]).__getitem__, map(slice, offsets, offsets[1:]))
    return np.fromiter(map(crc.crc32, slices), np.uint32, len(bodies))


def fixed_width(rows: npt.NDArray[Any]) -> pa.Array:
    """The raw bytes of every element of `rows` (contiguous; its first axis counts) as an array of binary."""
    offsets = np.arange(len(rows) + 1, dtype=np.int64) * (rows.nbytes // max(1, len(rows)))
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(rows)]
    return pa.Array.from_buffers(pa.binary(), len(rows), buffers)
