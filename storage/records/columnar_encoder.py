"""Encode many records at once from columns of bodies and properties.

Headers, bodies, topic and properties are joined in C, without a Python step per message. Compiled code writes one
record after the other (`native_kernels`). Without it, NumPy treats records of one size (equally long bodies and equally
long properties) as the rows of a matrix and copies each part into its columns once. Arrow joins all other records,
which costs about four times as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from raymq.storage.errors import InvalidInput
from raymq.storage.records import crc, native_kernels, record
from raymq.storage.records.byte_rows import Bytes, Int64s, every
from raymq.storage.records.checksums import checksums
from raymq.storage.records.native_kernels import as_bytes
from raymq.storage.records.property_names import UNIQ_KEY
from raymq.storage.records.unique_key_generator import KEY_CHARACTERS, UniqueKeyGenerator

#: Contiguous records, and the size of each.
EncodedRecords = tuple[bytearray, npt.NDArray[np.int32]]

_HEADER: Final = record.header_dtype()
#: The size of the packed form of an IPv4 address and a port.
_HOST_BYTES: Final = 8


def join_records(
    topic: str,
    queue_id: int,
    bodies: pa.Array,
    properties: pa.Array | None,
    *,
    keys: tuple[UniqueKeyGenerator, Int64s],
    born_host: bytes,
    born_timestamp_ms: int,
) -> EncodedRecords:
    """Encode records of one queue, ready for `Store.append`, and return (records, sizes).

    Args:
        bodies: an array of binary without nulls.
        properties: an array of binary with the properties after the unique key, as `record.encode_properties` makes
            them; None = none.
        keys: a generator of unique keys, and the numbers that it reserved for these records.
        born_host: the packed form, IPv4.

    Raises:
        InvalidInput: topic or properties too long, 2 GiB of records or more, an IPv6 host.
    """
    common, middle = _in_common(topic, queue_id, born_host, born_timestamp_ms)
    source, numbers = keys
    if not len(bodies):
        return bytearray(), np.empty(0, np.int32)
    if native_kernels.kernels is not None:
        sizes = np.empty(len(bodies), np.int32)
        records = native_kernels.kernels.join_columns(
            common.tobytes(),
            middle,
            source.stored_prefix,
            numbers,
            _offsets(bodies),
            _data(bodies),
            None if properties is None else _offsets(properties),
            None if properties is None else _data(properties),
            sizes,
        )
        if records is not None:
            return records, sizes
    return _join(common, middle, bodies, _with_keys(source.texts(numbers), properties), _checksums(bodies))


def join_messages(
    topic: str,
    queue_id: int,
    messages: list[Any],
    *,
    keys: tuple[UniqueKeyGenerator, Sequence[str | int]],
    born_host: bytes,
    born_timestamp_ms: int,
) -> EncodedRecords | None:
    """Encode messages as `join_records` does, or return None if some keys are not numbers.

    There is at least one message; `body` and `own_properties` of each are used.
    """
    common, middle = _in_common(topic, queue_id, born_host, born_timestamp_ms)
    source, numbers = keys
    if native_kernels.kernels is not None:
        sizes = np.empty(len(messages), np.int32)
        records = native_kernels.kernels.join_messages(common.tobytes(), middle, source.stored_prefix, messages, sizes)
        if records is not None:
            return records, sizes
    if set(map(type, numbers)) != {int}:
        return None
    bodies, properties = [each.body for each in messages], [each.own_properties for each in messages]
    texts = _with_keys(source.texts(np.array(numbers, np.int64)), binary_array(properties) if any(properties) else None)
    crcs = np.fromiter(map(crc.crc32, bodies), np.uint32, len(bodies))
    return _join(common, middle, binary_array(bodies), texts, crcs)


def _in_common(
    topic: str, queue_id: int, born_host: bytes, born_timestamp_ms: int
) -> tuple[npt.NDArray[np.void], bytes]:
    """Return the common header of all records, and the bytes between bodies and properties.

    Raise InvalidInput if the topic is empty or too long, or the host is not IPv4.
    """
    name = topic.encode()
    if not 0 < len(name) <= record.MAX_TOPIC_BYTES:
        raise InvalidInput("topic", f"1 to {record.MAX_TOPIC_BYTES} bytes", topic)
    if len(born_host) != _HOST_BYTES:
        raise InvalidInput("born_host", "an IPv4 address and a port", born_host)
    version_2 = len(name) > record.MAX_TOPIC_BYTES_V1
    common = np.zeros((), _HEADER)
    common["magic"] = record.MAGIC_V2 if version_2 else record.MAGIC_V1
    common["queue_id"] = queue_id
    common["born_timestamp"] = born_timestamp_ms
    common["born_host"] = int.from_bytes(born_host, "big", signed=True)
    return common, len(name).to_bytes(2 if version_2 else 1, "big") + name


def _join(
    common: npt.NDArray[np.void], middle: bytes, bodies: pa.Array, properties: pa.Array, crcs: npt.NDArray[np.uint32]
) -> EncodedRecords:
    """Encode records with NumPy and Arrow; `crcs` are the CRC-32 of the bodies."""
    body_lengths, property_lengths = lengths_of(bodies), lengths_of(properties)
    longest = int(property_lengths.max())
    if longest > record.MAX_PROPERTIES_BYTES:
        raise InvalidInput("properties", f"at most {record.MAX_PROPERTIES_BYTES} bytes", longest)
    sizes = body_lengths + property_lengths + (_HEADER.itemsize + len(middle) + 2)
    total = int(sizes.sum())
    if total >= 1 << 31:
        raise InvalidInput("records", "less than 2 GiB of records at a time", total)
    crcs = crcs & np.uint32(record.CRC_MASK)
    if every(body_lengths == body_lengths[0]) and every(property_lengths == longest):
        common["size"] = sizes[0]
        common["body_length"] = body_lengths[0]
        records = _rows(common, crcs, _matrix(bodies), middle, _matrix(properties))
        return records, sizes.astype(np.int32)
    header = np.full(len(bodies), common)
    header["size"] = sizes
    header["body_crc"] = crcs
    header["body_length"] = body_lengths
    joined = pc.binary_join_element_wise(
        fixed_width(header),
        bodies,
        binary_array([middle])[0],
        fixed_width(property_lengths.astype(">u2")),
        properties,
        binary_array([b""])[0],
    )
    return bytearray(memoryview(joined.buffers()[2])[:total]), sizes.astype(np.int32)


def _rows(
    common: npt.NDArray[np.void], crcs: npt.NDArray[np.uint32], bodies: Bytes, middle: bytes, properties: Bytes
) -> bytearray:
    """Encode records of one size; `common` is their header without the CRC."""
    count, body_bytes = bodies.shape
    body_end = _HEADER.itemsize + body_bytes
    before = middle + properties.shape[1].to_bytes(2, "big")
    properties_at = body_end + len(before)
    size = properties_at + properties.shape[1]
    records = bytearray(count * size)
    rows = np.frombuffer(records, np.uint8).reshape(count, size)
    rows[:, : _HEADER.itemsize] = common.reshape(1).view(np.uint8)
    np.ndarray((count,), _HEADER, records, strides=(size,))["body_crc"] = crcs
    rows[:, _HEADER.itemsize : body_end] = bodies
    rows[:, body_end:properties_at] = np.frombuffer(before, np.uint8)
    rows[:, properties_at:] = properties
    return records


def _matrix(values: pa.Array) -> Bytes:
    """Return values of one length as the rows of a matrix."""
    offsets = _offsets(values)
    content = np.frombuffer(values.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    return content.reshape(len(values), int(offsets[1] - offsets[0]))


def binary_array(values: Sequence[bytes]) -> pa.Array:
    """Return `values` as an array of binary.

    `pa.array` and `pa.scalar` would do the same, but if pandas is installed, their first call imports it, which takes
    half a second.
    """
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, values), np.int32, len(values)), out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


def lengths_of(values: pa.Array) -> npt.NDArray[np.int64]:
    """Return the length in bytes of every value of an array of binary or string."""
    return np.diff(_offsets(values)).astype(np.int64)


def _offsets(values: pa.Array) -> npt.NDArray[np.int32]:
    if not len(values):
        return np.zeros(1, np.int32)
    return np.frombuffer(values.buffers()[1], np.int32, len(values) + 1, values.offset * 4)


def _data(values: pa.Array) -> memoryview:
    return as_bytes(values.buffers()[2] or b"")


def _checksums(bodies: pa.Array) -> npt.NDArray[np.uint32]:
    offsets = _offsets(bodies).astype(np.int64)
    return checksums(memoryview(bodies.buffers()[2]), offsets[:-1], np.diff(offsets))


def fixed_width(rows: npt.NDArray[Any]) -> pa.Array:
    """Return the raw bytes of every element of `rows` as an array of binary.

    `rows` is contiguous, and its elements are those along the first axis.
    """
    offsets = np.arange(len(rows) + 1, dtype=np.int64) * (rows.nbytes // max(1, len(rows)))
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(rows)]
    return pa.Array.from_buffers(pa.binary(), len(rows), buffers)


def _with_keys(keys: pa.Array, properties: pa.Array | None) -> pa.Array:
    """Return the UNIQ_KEY property of each key, followed by the other properties."""
    before = np.frombuffer(f"{UNIQ_KEY}\x01".encode(), np.uint8)
    rows = np.empty((len(keys), len(before) + KEY_CHARACTERS + 1), np.uint8)
    rows[:, : len(before)] = before
    rows[:, len(before) : -1] = _matrix(keys)
    rows[:, -1] = 2
    own = fixed_width(rows)
    return own if properties is None else pc.binary_join_element_wise(own, properties, binary_array([b""])[0])
