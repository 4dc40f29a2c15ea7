"""Encode a producer's messages as records, one by one or many at a time.

Many messages are encoded without Python code per message.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import attrgetter
from types import MappingProxyType
from typing import Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raymq.actors.request_limits import MAX_MESSAGES, PART_BYTES
from raymq.client.message import Message
from raymq.storage.errors import InvalidInput
from raymq.storage.records import native_kernels
from raymq.storage.records.columnar_encoder import join_messages
from raymq.storage.records.property_names import UNIQ_KEY
from raymq.storage.records.record import MIN_RECORD_BYTES, decode_properties, encode_properties, locate, pack_host
from raymq.storage.records.record_table import CheckedRows, checked_rows
from raymq.storage.records.unique_key_generator import PAIR_BYTES, process_unique_keys

Sizes = npt.NDArray[np.int32]

#: Up to this many messages the plain encoder is faster than the set-up of NumPy and Arrow.
FEW: Final = 16

_IPV4_HOST_BYTES: Final = 8
#: A table is encoded in steps of about this many bytes of records, a little less than a part, so that each step is one
#: part.
_STEP_BYTES: Final = PART_BYTES * 15 // 16

_body = attrgetter("body")
_unique_keys: Final = process_unique_keys()
_own_properties = attrgetter("own_properties")


@lru_cache(maxsize=64)
def packed_host(host: str) -> bytes:
    """Return a born host: an address in its packed form, with port 0."""
    return pack_host(host, 0)


@dataclass(frozen=True, slots=True)
class BatchPart:
    """Records that are sent together and stored in one queue, all or none.

    `which` is the slice of the caller's messages that they encode.
    """

    which: slice
    records: bytearray
    sizes: Sizes


def encode_messages(
    messages: list[Message], key_numbers: Sequence[str | int], born_host: bytes
) -> tuple[bytearray, Sizes]:
    """Encode messages of one topic as contiguous records with queue id 0.

    Args:
        key_numbers: the key numbers of the messages.
        born_host: the packed form of the born host, IPv4.

    Returns:
        the records and their sizes in bytes.
    """
    now_ms = time.time_ns() // 1_000_000
    if len(messages) > (FEW if native_kernels.kernels is None else 1) and len(born_host) == _IPV4_HOST_BYTES:
        joined = join_messages(
            messages[0].topic,
            0,
            messages,
            keys=(_unique_keys, key_numbers),
            born_host=born_host,
            born_timestamp_ms=now_ms,
        )
        if joined is not None:
            return joined
    encoded = [message.encode(now_ms, born_host) for message in messages]
    return bytearray().join(encoded), np.fromiter(map(len, encoded), np.int32, len(encoded))


@dataclass(frozen=True, slots=True)
class BatchParts:
    """The parts of one call, each encoded when it is iterated.

    The size of the longest body in bytes, and whether there are several parts, are known before.
    """

    longest_body: int
    are_several: bool
    parts: Iterator[BatchPart]

    def __iter__(self) -> Iterator[BatchPart]:
        return self.parts

    def noting_first_keys(self, keys: list[str]) -> BatchParts:
        """Return the same parts, and append each part's first unique key to `keys`.

        The key of a part's first record is appended when the part is encoded.
        """

        def parts() -> Iterator[BatchPart]:
            for part in self.parts:
                _, _, _, properties_at, end = locate(part.records, 0, len(part.records), check_crc=False)
                keys.append(decode_properties(part.records[properties_at:end]).get(UNIQ_KEY, ""))
                yield part

        return replace(self, parts=parts())


def message_parts(messages: list[Message], key_numbers: Sequence[str | int], born_host: bytes) -> BatchParts:
    """Encode messages of one topic part by part. The arguments are those of `encode_messages`."""
    sizes = np.fromiter(map(len, map(_body, messages)), np.int64, len(messages))
    longest = int(sizes.max())
    sizes += np.fromiter(map(len, map(_own_properties, messages)), np.int64, len(messages))
    sizes += MIN_RECORD_BYTES + len(messages[0].topic) + PAIR_BYTES

    def encoded() -> Iterator[BatchPart]:
        for which, _ in cut_parts(sizes):
            records, exact = encode_messages(messages[which], key_numbers[which], born_host)
            yield BatchPart(which, records, exact)

    return BatchParts(longest, _are_several(sizes), encoded())


class ArrowStream(Protocol):
    """Arrow data that comes in batches, of any library (Arrow's PyCapsule interface)."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


class ArrowArray(Protocol):
    """Arrow data of one batch, of any library (Arrow's PyCapsule interface)."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]: ...


#: The tables that `Producer.send_table` accepts.
ArrowData: TypeAlias = ArrowStream | ArrowArray


def arrow_table(table: ArrowData) -> pa.Table:
    """Return a table of another library as an Arrow table.

    Columns are not copied if the library allows it.

    Args:
        table: a table of pyarrow, or anything with `__arrow_c_stream__` or `__arrow_c_array__` (the Arrow PyCapsule
            interface: pandas, polars, DuckDB relations). A stream is read to its end, into memory.

    Raises:
        TypeError: the object has neither method.
        InvalidInput: the table has no columns, or values for which Arrow has no type.
    """
    if isinstance(table, pa.Table):
        return table
    try:
        if hasattr(table, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(table).read_all()
        if hasattr(table, "__arrow_c_array__"):
            return pa.Table.from_batches([pa.record_batch(table)])
    except (pa.ArrowException, ValueError, TypeError) as error:
        if "non-struct" in str(error):
            remedy = "convert the column into a table with its to_frame()"
            raise InvalidInput("table", "a table", f"one column ({type(table).__name__})", remedy=remedy) from error
        raise InvalidInput("table", "columns that Arrow has types for", f"{type(table).__name__}: {error}") from error
    raise TypeError(
        "table must be an Arrow table, or have __arrow_c_stream__ as those of pandas, polars and DuckDB have, "
        f"not {type(table).__name__}"
    )


def table_parts(
    table: pa.Table,
    topic: str,
    *,
    body: str,
    keys: str | None,
    tags: str | None,
    properties: str | None,
    host: str,
    common: Mapping[str, str] = MappingProxyType({}),
) -> BatchParts:
    """Check all rows of a table, then return parts that are encoded one by one.

    Args:
        common: properties that each message gets, unless those of a message become too long.

    Raises:
        InvalidInput: a column or a row is not valid, as in `records_from_table`. It is raised by the call itself,
            before any part is made.
    """
    count = rows_per_part(table.num_rows, table.nbytes, topic)
    encoded_common = encode_properties(common)

    def check(rows: pa.Table) -> CheckedRows:
        checked = checked_rows(rows, body=body, keys=keys, tags=tags, properties=properties)
        return checked.with_common(encoded_common) if encoded_common else checked

    steps = [(start, check(table.slice(start, count))) for start in range(0, max(1, table.num_rows), count)]
    longest = max(rows.longest_body for _, rows in steps)
    several = len(steps) > 1 or _are_several(steps[0][1].record_sizes(topic))
    if pa.types.is_struct(table.column(body).type):  # keeping all packed bodies would double the memory
        starts = [start for start, _ in steps]
        steps_again = ((start, check(table.slice(start, count))) for start in starts)
        return BatchParts(longest, several, _encoded(steps_again, topic, host))
    return BatchParts(longest, several, _encoded(iter(steps), topic, host))


def rows_per_part(count: int, table_bytes: int, topic: str) -> int:
    """Return how many rows make about one part, at least 1.

    The estimate assumes that all rows have the same size.

    Args:
        count: the number of rows of the table.
        table_bytes: the size of the table in Arrow.
    """
    row_bytes = table_bytes // max(1, count) + MIN_RECORD_BYTES + len(topic) + PAIR_BYTES
    return min(MAX_MESSAGES, max(1, _STEP_BYTES // row_bytes))


def _encoded(steps: Iterator[tuple[int, CheckedRows]], topic: str, host: str) -> Iterator[BatchPart]:
    """Return the parts of checked rows. Each step begins at a row of the table."""
    for start, rows in steps:
        records, sizes = rows.encode(topic, 0, unique_keys=_unique_keys, born_host=(host, 0))
        for which, place in cut_parts(sizes):
            part = records if place.stop - place.start == len(records) else records[place]
            yield BatchPart(slice(start + which.start, start + which.stop), part, sizes[which])


def cut_parts(sizes: npt.NDArray[np.integer]) -> Iterator[tuple[slice, slice]]:
    """Cut records into parts of at most `PART_BYTES` and `MAX_MESSAGES`.

    Yield the slice of the records and the slice of the bytes of each part. A single larger record is a part of its own.
    """
    ends = np.cumsum(sizes, dtype=np.int64)
    first = begin = 0
    while first < len(sizes):
        last = max(first + 1, int(np.searchsorted(ends, begin + PART_BYTES, side="right")))
        last = min(last, first + MAX_MESSAGES)
        end = int(ends[last - 1])
        yield slice(first, last), slice(begin, end)
        first, begin = last, end


def _are_several(sizes: npt.NDArray[np.int64]) -> bool:
    """Return True if records of these sizes are cut into several parts."""
    return len(sizes) > MAX_MESSAGES or int(sizes.sum()) > PART_BYTES


def key_texts(numbers: Sequence[str | int]) -> list[str]:
    """Return the text of unique keys that `key_numbers` returned."""
    if len(numbers) > FEW and set(map(type, numbers)) == {int}:
        return strings(_unique_keys.texts(np.array(numbers, np.int64)))
    return [number if isinstance(number, str) else _unique_keys.text(number) for number in numbers]


def strings(equally_long: pa.StringArray) -> list[str]:
    """Return the values of an array of ASCII strings of one length.

    This is faster than `to_pylist`.
    """
    text = str(equally_long.buffers()[2], "ascii")
    width = len(text) // max(1, len(equally_long))
    return [text[at : at + width] for at in range(0, len(text), width)] if width else []
