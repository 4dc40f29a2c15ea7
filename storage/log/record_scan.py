"""Find all records in bytes of the log at once, by their physical offsets.

Each record contains its own physical offset. A body may contain bytes that look like a record, even like one with the
right physical offset. A record therefore counts only if it begins where the record before it ends, starting with the
first one.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from raymq.storage.records import native_kernels
from raymq.storage.records import record as layout
from raymq.storage.records.byte_rows import Int64s
from raymq.storage.records.record_batch import strided

_MAGICS: Final = tuple(magic.to_bytes(4, "big", signed=True) for magic in (layout.MAGIC_V1, layout.MAGIC_V2))
#: The bytes of a record that are needed to recognize it.
_KNOWN_BYTES: Final = layout.OFFSET_PHYSICAL_OFFSET + 8


def record_sizes(content: memoryview, place: int) -> npt.NDArray[np.int32]:
    """Return the sizes of the whole consecutive records from the first byte on.

    Args:
        content: bytes of one file of the log.
        place: the physical offset of the first byte.
    """
    walk = getattr(native_kernels.kernels, "record_sizes", None)
    if walk is not None:
        found = np.empty(len(content) // layout.MIN_RECORD_BYTES, np.int32)
        return found[: walk(content, place, found)]
    starts = _candidates(content, place)
    sizes = strided(content, ">i4")[starts].astype(np.int64) if len(starts) else starts
    ends = starts + sizes
    breaks = np.flatnonzero(ends[:-1] != starts[1:])
    runs: list[Int64s] = []
    first, at = 0, 0
    while first < len(starts) and starts[first] == at:
        ahead = int(np.searchsorted(breaks, first))
        last = int(breaks[ahead]) if ahead < len(breaks) else len(starts) - 1
        runs.append(sizes[first : last + 1])
        at = int(ends[last])
        if sizes[last] < layout.MIN_RECORD_BYTES or at > len(content):
            runs[-1] = runs[-1][:-1]
            break
        first = int(np.searchsorted(starts, at))
    return np.concatenate(runs).astype(np.int32) if runs else np.empty(0, np.int32)


def _candidates(content: memoryview, place: int) -> Int64s:
    """Return the positions of bytes that look like a record with the right physical offset."""
    count = len(content) - _KNOWN_BYTES + 1
    if count <= 0:
        return np.empty(0, np.int64)
    bytes_ = np.frombuffer(content, np.uint8)
    first, *others = zip(*_MAGICS, strict=True)
    starts = np.flatnonzero(bytes_[layout.OFFSET_MAGIC : layout.OFFSET_MAGIC + count] == first[0])
    for at, values in enumerate(others, layout.OFFSET_MAGIC + 1):
        starts = starts[(bytes_[starts + at] == values[0]) | (bytes_[starts + at] == values[1])]
    stored = strided(content, ">i8")[starts + layout.OFFSET_PHYSICAL_OFFSET]
    found: Int64s = starts[stored == starts + place]
    return found
