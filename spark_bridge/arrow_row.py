"""A body that is an Arrow stream of one row, from whoever sent it: checked before anything in it is followed."""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np
import pyarrow as pa

from raymq.storage.records.compression import MAX_DECOMPRESSED_BYTES

#: A stream has at most as many values as bytes, or so many if it is shorter: a list of nulls needs no bytes at all, and
#: each of them would become a Python object.
MOST_VALUES_OF_SHORT: Final = 1 << 20

# Where Arrow's format (Message.fbs) keeps what says how large compressed buffers become.
_MESSAGE_HEADER: Final = 2
_DICTIONARY_DATA: Final = 1
_BATCH_BUFFERS: Final = 2
_BATCH_COMPRESSION: Final = 3
#: Where Arrow 0.17 said it, which is still read.
_OLD_COMPRESSION: Final = b"ARROW:experimental_compression"
_U16: Final = struct.Struct("<H")
_I32: Final = struct.Struct("<i")
_U32: Final = struct.Struct("<I")
_I64: Final = struct.Struct("<q")


def row_of_stream(body: bytes) -> dict[str, Any]:
    """The one row of the Arrow stream `body`.

    Raises:
        ValueError, pa.ArrowException: it is no such stream, does not keep Arrow's rules (offsets that lead out of
            their buffers, text that is not UTF-8), has another number of rows than one or too many values, or grows
            beyond what a body may become when its buffers are decompressed.
    """
    try:
        _check_growth(body)
        with pa.ipc.open_stream(body) as reader:
            table = reader.read_all()
    except (OSError, struct.error, pa.ArrowMemoryError) as error:  # Arrow's of a stream that is cut off is an OSError
        raise ValueError(f"no Arrow stream: {error}") from None
    if table.num_rows != 1:
        raise ValueError(f"one message is one row, not {table.num_rows}")
    table.validate(full=True)  # Arrow believes the offsets that it reads, wherever they lead
    values = sum(_values(chunk) for column in table.columns for chunk in column.chunks)
    most = max(len(body), MOST_VALUES_OF_SHORT)
    if values > most:
        raise ValueError(f"at most {most} values, not {values}")
    row: dict[str, Any] = table.to_pylist()[0]
    return row


def _check_growth(body: bytes) -> None:
    """ValueError for compressed buffers that say of themselves that they become larger than a message may."""
    claimed = 0
    for message in pa.ipc.MessageReader.open_stream(body):
        if message.type in ("record batch", "dictionary"):
            claimed += _claimed(message)
        if claimed > MAX_DECOMPRESSED_BYTES:
            raise ValueError(f"more than {MAX_DECOMPRESSED_BYTES} bytes")


def _claimed(message: pa.ipc.Message) -> int:
    """How many bytes the compressed buffers of a batch become: each says it in its first eight.

    Arrow does not tell, so this reads the message's flatbuffer, which Arrow has verified. Arrow in turn refuses a
    buffer that becomes larger than it says.
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
    return sum(size for size in sizes if size > 0)  # -1: this one is not compressed


def is_compressed(message: pa.ipc.Message) -> bool:
    """Whether the buffers of a record batch are compressed."""
    metadata = memoryview(message.metadata)
    batch = _table(metadata, _field(metadata, _U32.unpack_from(metadata, 0)[0], _MESSAGE_HEADER))
    return _names_compression(metadata, batch)


def _names_compression(metadata: memoryview, batch: int) -> bool:
    return bool(_field(metadata, batch, _BATCH_COMPRESSION)) or _OLD_COMPRESSION in bytes(metadata)


def _field(metadata: memoryview, table: int, index: int) -> int:
    """Where a flatbuffer's table has its field number `index`, 0 if it does not."""
    entries = table - _I32.unpack_from(metadata, table)[0]
    at = 2 * _U16.size + index * _U16.size
    if at >= _U16.unpack_from(metadata, entries)[0]:
        return 0
    offset = _U16.unpack_from(metadata, entries + at)[0]
    return table + offset if offset else 0


def _table(metadata: memoryview, reference: int) -> int:
    """What a flatbuffer's reference leads to."""
    return reference + int(_U32.unpack_from(metadata, reference)[0])


def _values(array: pa.Array) -> int:
    """How many values `array` has at all depths; ValueError for a type of which bytes may count many times."""
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
    """Whether each value of a flat type has bytes of its own; views may share theirs."""
    of_bytes = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    flat = (pa.types.is_null, pa.types.is_primitive, pa.types.is_decimal, pa.types.is_fixed_size_binary)
    return any(check(kind) for check in (*of_bytes, *flat))
