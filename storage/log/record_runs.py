"""Where records stand in bytes of the log: found for all of them at once, as a record names its own place.

Bytes of a body may look like a record, even like one of that very place. So a record counts only where the one before
it ends, from the first one on.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from raymq.storage.records import compiled
from raymq.storage.records import record as layout
from raymq.storage.records.batch import strided
from raymq.storage.records.byte_rows import Int64s

_MAGICS: Final = tuple(magic.to_bytes(4, "big", signed=True) for magic in (layout.MAGIC_V1, layout.MAGIC_V2))
#: How much of a record has to be there to know it.
_KNOWN_BYTES: Final = layout.OFFSET_PHYSICAL_OFFSET + 8


def record_sizes(content: memoryview, place: int) -> npt.NDArray[np.int32]:
    """The sizes of the whole records that stand one behind the other from the first byte on.

    Args:
        content: bytes of one file of the log.
        place: where they lie, a physical offset.
    """
    walk = getattr(compiled.kernels, "record_sizes", None)
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
    """Where something stands that says it is a record of that place."""
    count = len(content) - _KNOWN_BYTES + 1
    if count <= 0:
        return np.empty(0, np.int64)
    bytes_ = np.frombuffer(content, np.uint8)
    first, *others = zip(*_MAGICS, strict=True)
    starts = np.flatnonzero(bytes_[layout.OFFSET_MAGIC : layout.OFFSET_MAGIC + count] == first[0])
    for at, values in enumerate(others, layout.OFFSET_MAGIC + 1):
        starts = starts[(bytes_[starts + at] == values[0]) | (bytes_[starts + at] == values[1])]
    told = strided(content, ">i8")[starts + layout.OFFSET_PHYSICAL_OFFSET]
    found: Int64s = starts[told == starts + place]
    return found
