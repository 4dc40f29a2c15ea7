"""The CRC-32 of many bodies at once: compiled, or one call a body, made by C (`map`), on pieces that C has cut."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from raymq.storage.records import compiled, crc
from raymq.storage.records.byte_rows import Int64s, every, rows_at
from raymq.storage.records.compiled import as_bytes
from raymq.storage.records.record import Buffer

Checksums = npt.NDArray[np.uint32]

#: One of how many bodies may have a length of its own, to take them out of the buffer by length; and how many
#: bytes are taken out in one step, so that they stay in the processor's cache. Longer ones are not copied.
_LENGTHS_SHARE: Final = 32
_STEP_BYTES: Final = 1 << 16
#: From here on views of bodies that lie at equal distances cost less than copies.
_VIEWED: Final = 512
_LONG: Final = 1 << 12


def checksums(buffer: Buffer, starts: Int64s, lengths: Int64s) -> Checksums:
    """The CRC-32 of each text; the texts are ascending in `buffer`."""
    count = len(starts)
    if compiled.kernels is not None:
        computed = np.empty(count, np.uint32)
        compiled.kernels.checksums(as_bytes(buffer), starts, lengths, computed)
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
