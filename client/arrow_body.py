"""Decode a message body that is an Arrow stream.

The body comes from an untrusted sender, so its sizes and offsets are checked before they are used.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np
import pyarrow as pa

from raymq.storage.records.body_compression import MAX_DECOMPRESSED_BYTES

#: The number of values in a stream is limited to its number of bytes, or to this constant if the stream is shorter: a
#: list of nulls needs no bytes, but each null would become a Python object.
MAX_VALUES_OF_SHORT: Final = 1 << 20

# The positions in Arrow's format (Message.fbs) of the fields that lead to the decompressed sizes of buffers.
_MESSAGE_HEADER: Final = 2
_DICTIONARY_DATA: Final = 1
_BATCH_BUFFERS: Final = 2
_BATCH_COMPRESSION: Final = 3
#: The metadata key with which Arrow 0.17 marked compression; such streams can still be read.
_OLD_COMPRESSION: Final = b"ARROW:experimental_compression"
_U16: Final = struct.Struct("<H")
_I32: Final = struct.Struct("<i")
_U32: Final = struct.Struct("<I")
_I64: Final = struct.Struct("<q")


def decode_arrow_row(body: bytes) -> dict[str, Any]:
    """Return the only row of the Arrow stream `body`.

    Raises:
        ValueError, pa.ArrowException: as `read_arrow_table`, or `body` does not have exactly one row.
    """
    table = read_arrow_table(body)
    if table.num_rows != 1:
        raise ValueError(f"one message is one row, not {table.num_rows}")
    row: dict[str, Any] = table.to_pylist()[0]
    return row


def read_arrow_table(body: bytes) -> pa.Table:
    """Return the rows of the Arrow stream `body`.

    Raises:
        ValueError, pa.ArrowException: `body` is not such a stream, violates Arrow's rules (offsets outside their
            buffers, text that is not UTF-8), has too many values, or decompresses to more bytes than a body may have.
    """
    try:
        _check_growth(body)
        with pa.ipc.open_stream(body) as reader:
            table = reader.read_all()
    except (OSError, struct.error, pa.ArrowMemoryError) as error:  # Arrow raises OSError for a truncated stream.
        raise ValueError(f"no Arrow stream: {error}") from None
    table.validate(full=True)  # Arrow does not check offsets when it reads them; they may lie outside the buffers.
    values = sum(_values(chunk) for column in table.columns for chunk in column.chunks)
    most = max(len(body), MAX_VALUES_OF_SHORT)
    if values > most:
        raise ValueError(f"at most {most} values, not {values}")
    return table


def _check_growth(body: bytes) -> None:
    """Raise ValueError if the declared decompressed size exceeds the limit of a message."""
    claimed = 0
    for message in pa.ipc.MessageReader.open_stream(body):
        if message.type in ("record batch", "dictionary"):
            claimed += _claimed(message)
        if claimed > MAX_DECOMPRESSED_BYTES:
            raise ValueError(f"more than {MAX_DECOMPRESSED_BYTES} bytes")


def _claimed(message: pa.ipc.Message) -> int:
    """Return the decompressed size of a batch's compressed buffers, in bytes.

    The first eight bytes of each buffer declare its size. Arrow has no function for this, so the message's flatbuffer,
    which Arrow has verified, is read here. Arrow refuses a buffer that decompresses to more bytes than declared.
    """
    metadata = memoryview(message.metadata)
    batch = _table(metadata, _field(metadata, _U32.unpack_from(metadata, 0)[0], _MESSAGE_HEADER))
    if message.type == "dictionary":
        batch = _table(metadata, _field(metadata, batch, _DICTIONARY_DATA))
    buffers = _field(metadata, batch, _BATCH_BUFFERS)
    if not buffers or not _names_compression(metadata, batch):
        return 0
    vector = _table(metadata, buffers)
    count = _U32.unpack_from(metadata, vector)[0]
    places = np.frombuffer(metadata, "<i8", 2 * count, vector + _U32.size).reshape(count, 2)
    content = memoryview(message.body)
    sizes = [_I64.unpack_from(content, at)[0] for at, length in places.tolist() if length >= _I64.size and at >= 0]
    return sum(size for size in sizes if size > 0)  # -1 marks a buffer that is not compressed.


def is_compressed(message: pa.ipc.Message) -> bool:
    """Return True if the buffers of a record batch are compressed."""
    metadata = memoryview(message.metadata)
    batch = _table(metadata, _field(metadata, _U32.unpack_from(metadata, 0)[0], _MESSAGE_HEADER))
    return _names_compression(metadata, batch)


def _names_compression(metadata: memoryview, batch: int) -> bool:
    return bool(_field(metadata, batch, _BATCH_COMPRESSION)) or _OLD_COMPRESSION in bytes(metadata)


def _field(metadata: memoryview, table: int, index: int) -> int:
    """Return the position of field `index` in a flatbuffer's table, 0 if missing."""
    entries = table - _I32.unpack_from(metadata, table)[0]
    at = 2 * _U16.size + index * _U16.size
    if at >= _U16.unpack_from(metadata, entries)[0]:
        return 0
    offset = _U16.unpack_from(metadata, entries + at)[0]
    return table + offset if offset else 0


def _table(metadata: memoryview, reference: int) -> int:
    """Return the position that a flatbuffer's reference points to."""
    return reference + int(_U32.unpack_from(metadata, reference)[0])


def _values(array: pa.Array) -> int:
    """Return the number of values in `array` at all depths.

    Raise ValueError for a type whose values may share bytes, because the same bytes would then count many times.
    """
    kind = array.type
    if pa.types.is_struct(kind):
        return len(array) + sum(_values(array.field(index)) for index in range(kind.num_fields))
    if pa.types.is_map(kind):
        return len(array) + _values(array.keys) + _values(array.items)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return len(array) + _values(array.values)
    if pa.types.is_dictionary(kind) and len(array) == 1:
        return 1 + _values(array.dictionary)
    if pa.types.is_nested(kind) or pa.types.is_dictionary(kind) or not _is_counted_once(kind):
        raise ValueError(f"no {kind} in a message")
    return len(array)


def _is_counted_once(kind: pa.DataType) -> bool:
    """Return True if each value of a flat type has bytes of its own.

    The values of Arrow's view types may share bytes.
    """
    of_bytes = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    flat = (pa.types.is_null, pa.types.is_primitive, pa.types.is_decimal, pa.types.is_fixed_size_binary)
    return any(check(kind) for check in (*of_bytes, *flat))
