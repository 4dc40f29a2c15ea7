"""Compute the CRC-32 of many bodies at once.

Compiled code does so if it is installed. Otherwise C (`map`) calls the function once per body, on pieces that C has
cut.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from raymq.storage.records import crc, native_kernels
from raymq.storage.records.byte_rows import Int64s, every, rows_at
from raymq.storage.records.native_kernels import as_bytes
from raymq.storage.records.record import Buffer

Checksums = npt.NDArray[np.uint32]

#: Bodies are copied by length if at most one in `_LENGTHS_SHARE` has a length of its own. Each step copies
#: `_STEP_BYTES`, so that they stay in the processor's cache. Bodies longer than `_LONG` are not copied.
_LENGTHS_SHARE: Final = 32
_STEP_BYTES: Final = 1 << 16
#: From this length on, views of bodies at equal distances cost less than copies.
_VIEWED: Final = 512
_LONG: Final = 1 << 12


def checksums(buffer: Buffer, starts: Int64s, lengths: Int64s) -> Checksums:
    """Return the CRC-32 of each text; the texts are ascending in `buffer`."""
    count = len(starts)
    if native_kernels.kernels is not None:
        computed = np.empty(count, np.uint32)
        native_kernels.kernels.checksums(as_bytes(buffer), starts, lengths, computed)
        return computed
    first = int(lengths[0])
    different = np.array([first]) if every(lengths == first) else np.unique(lengths)
    if len(different) == 1 and first >= _VIEWED and count > 1:
        distance = int(starts[1] - starts[0])
        if every(starts[1:] - starts[:-1] == distance):
            rows = np.ndarray((count, first), np.uint8, buffer, int(starts[0]), (distance, 1))
            return np.fromiter(map(crc.crc32, rows), np.uint32, count)
    scattered = len(different) > 1 and len(different) * _LENGTHS_SHARE > count
    if different[0] == 0 or different[-1] > _LONG or scattered:
        view = memoryview(buffer)
        texts = map(view.__getitem__, map(slice, starts.tolist(), (starts + lengths).tolist()))
        return np.fromiter(map(crc.crc32, texts), np.uint32, count)
    result = np.empty(count, np.uint32)
    for length in different.tolist():
        chosen = slice(None) if len(different) == 1 else np.flatnonzero(lengths == length)
        starts_ = starts[chosen]
        step = max(1, _STEP_BYTES // length)
        found: list[int] = []
        for first in range(0, len(starts_), step):
            found += map(crc.crc32, rows_at(buffer, starts_[first : first + step], length).tolist())
        result[chosen] = found
    return result
