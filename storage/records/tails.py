"""Tails of records (topic and properties) that all look like the first one's, as those of a producer's batch mostly do.

In such a batch names, separators and lengths stand at the same places of all tails. One comparison of all bytes but the
values' with those of the first record says whether that is so; and then topic, tags and keys of all records are where
the first one has them, and nothing has to be looked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from raymq.storage.records.byte_rows import Bytes, Int64s, rows_at, some
from raymq.storage.records.record import Buffer

_WORD: Final = 8
_BLANK: Final = 0x20
_PAIR_END: Final = 2
#: Where a value begins and ends in a tail.
Columns = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Tails:
    """Tails that are alike, in rows of equal width (n x width) at whose ends they stand.

    Attributes:
        differs: of each column whether the rows differ there.
        properties_bytes: of each record.
        values: the columns of each property's value, by name, in the order of the properties.
        tags: the columns of the value of TAGS, None without.
        keys: the columns of what is indexed, UNIQ_KEY and the one key of KEYS, as far as they are there.
    """

    rows: Bytes
    differs: npt.NDArray[np.bool_]
    topic: bytes
    properties_bytes: int
    values: dict[bytes, Columns]
    tags: Columns | None
    keys: list[Columns]


def find_alike(buffer: Buffer, ends: Int64s, length: int) -> Tails | None:
    """The tails of version 1 records, each of `length` bytes; None if they are not alike or not of the simple kind.

    Simple are properties that all have a value, none of them twice, and at most one key in KEYS.

    Args:
        ends: where the records end in `buffer`; each is at least 7 bytes longer than its tail.
    """
    end = int(ends[0])
    shape = _shape(bytes(memoryview(buffer)[end - length : end]))
    if shape is None:
        return None
    width = len(shape.fixed)
    rows = rows_at(buffer, ends - width, width).view(np.uint8).reshape(len(ends), width)
    # Word by word, so that NumPy goes along the records: what is one or zero in all of them does not differ.
    words = np.array(rows.view("<u8").T, order="C")
    # What stands in front of the tails is no concern of anybody.
    words[0] |= shape.in_front
    differing = np.bitwise_or.reduce(words, axis=1) ^ np.bitwise_and.reduce(words, axis=1)
    if some(differing & np.frombuffer(shape.fixed, "<u8")):
        return None
    for word in np.flatnonzero(differing).tolist():
        bytes_ = words[word].view(np.uint8)
        if np.count_nonzero(bytes_ <= _PAIR_END) != np.count_nonzero(bytes_[:_WORD] <= _PAIR_END) * len(ends):
            return None
    if shape.one_key is not None and some(rows[:, slice(*shape.one_key)] == _BLANK):
        return None
    keys = [columns for columns in (shape.unique_key, shape.one_key) if columns is not None]
    differs = differing.view(np.uint8) != 0
    return Tails(rows, differs, shape.topic, shape.properties_bytes, shape.values, shape.tags, keys)


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a row is compared with: `fixed` has ones where all rows must be equal."""

    fixed: bytes
    in_front: np.uint64
    topic: bytes
    properties_bytes: int
    values: dict[bytes, Columns]
    tags: Columns | None
    unique_key: Columns | None
    one_key: Columns | None


def _shape(tail: bytes) -> _Shape | None:
    properties_at = 1 + tail[0] + 2
    if tail[0] == 0 or len(tail) < properties_at:
        return None
    properties_bytes = int.from_bytes(tail[properties_at - 2 : properties_at], "big")
    if properties_at + properties_bytes != len(tail):
        return None
    front = -len(tail) % _WORD
    fixed = bytearray(bytes(front) + b"\xff" * len(tail))
    values: dict[bytes, Columns] = {}
    at = properties_at
    while at < len(tail):
        name, separator, rest = tail[at:].partition(b"\x01")
        value, closed, _ = rest.partition(b"\x02")
        if not (separator and closed and value and name) or b"\x02" in name or name in values or min(value) < _PAIR_END:
            return None
        begin = at + len(name) + 1
        at = begin + len(value) + 1
        values[name] = begin + front, begin + front + len(value)
        fixed[begin + front : begin + front + len(value)] = bytes(len(value))
    return _Shape(
        bytes(fixed),
        np.uint64((1 << 8 * front) - 1),
        tail[1 : properties_at - 2],
        properties_bytes,
        values,
        values.get(b"TAGS"),
        values.get(b"UNIQ_KEY"),
        values.get(b"KEYS"),
    )
