"""The CRC-32 of many bodies at once.

`crc.crc32` takes one call a body, made by C (`map`). A call costs about as much as the checksum of a few hundred bytes,
so the short bodies of a batch are done together instead: eight bytes of all of them in one step, by tables. Both rest
on the CRC being linear: the checksum of a text is that of zeros of its length, combined by exclusive or with what its
bits add; and zeros in front add nothing, so texts of different lengths need no more than to end at the same place.
"""

from __future__ import annotations

import zlib
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from raymq.storage import crc
from raymq.storage.byte_rows import KEEP_LAST, Int64s, every, rows_at, rows_before, width_classes
from raymq.storage.record import Buffer

Checksums = npt.NDArray[np.uint32]

#: Bodies up to this length are done by tables, if there are enough of them.
_SHORT: Final = 128
_ENOUGH: Final = 256
_WORD: Final = 8
_HALVES: Final = _WORD // 2
#: One of how many bodies may have a length of its own, to take them out of the buffer by length; and how many
#: bytes are taken out in one step, so that they stay in the processor's cache. Longer ones are not copied.
_LENGTHS_SHARE: Final = 32
_STEP_BYTES: Final = 1 << 16
_LONG: Final = 1 << 12
_POLYNOMIAL: Final = np.uint32(0xEDB88320)


def checksums(buffer: Buffer, starts: Int64s, lengths: Int64s) -> Checksums:
    """The CRC-32 of each text; the texts are ascending in `buffer`."""
    result = np.empty(len(starts), np.uint32)
    short = lengths <= _SHORT
    if np.count_nonzero(short) < _ENOUGH:
        return _one_by_one(buffer, starts, lengths)
    if every(short):
        return _by_tables(buffer, starts + lengths, lengths)
    result[short] = _by_tables(buffer, (starts + lengths)[short], lengths[short])
    result[~short] = _one_by_one(buffer, starts[~short], lengths[~short])
    return result


def _one_by_one(buffer: Buffer, starts: Int64s, lengths: Int64s) -> Checksums:
    count = len(starts)
    first = int(lengths[0])
    different = np.array([first]) if every(lengths == first) else np.unique(lengths)
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


def _by_tables(buffer: Buffer, ends: Int64s, lengths: Int64s) -> Checksums:
    tables, of_zeros = _tables()
    result = of_zeros[lengths]
    for width, members in width_classes(lengths, _WORD * 2):
        chosen: slice | Int64s = slice(None) if members is None else members
        lengths_ = lengths[chosen]
        # Shorter than its class by whole words: those would be zeros.
        unused = (width - int(lengths_.max())) // _WORD * _WORD
        words = rows_before(buffer, ends[chosen], width - unused).view("<u8")
        for column in range(words.shape[1]):
            kept = lengths_ - (width - unused - _WORD * (column + 1))
            if int(kept.min()) < _WORD:
                words[:, column] &= KEEP_LAST[np.clip(kept, 0, _WORD)]
        halves = np.ascontiguousarray(words.view("<u2").T)
        state = np.zeros(len(words), np.uint32)
        for at in range(0, len(halves), _HALVES):
            low = halves[at] ^ state.astype(np.uint16)
            high = halves[at + 1] ^ (state >> np.uint32(16)).astype(np.uint16)
            state = tables[0].take(low)
            state ^= tables[1].take(high)
            state ^= tables[2].take(halves[at + 2])
            state ^= tables[3].take(halves[at + 3])
        result[chosen] ^= state
    return result


@lru_cache(maxsize=1)
def _tables() -> tuple[Checksums, Checksums]:
    """What two bytes add to the state when 6, 4, 2, 0 bytes follow; the checksums of 0 to _SHORT zeros."""
    of_byte = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        of_byte = np.where(of_byte & np.uint32(1), of_byte >> np.uint32(1) ^ _POLYNOMIAL, of_byte >> np.uint32(1))

    def behind_a_zero(state: Checksums) -> Checksums:
        shifted: Checksums = of_byte[state & np.uint32(0xFF)] ^ state >> np.uint32(8)
        return shifted

    tables = np.empty((_HALVES, 1 << 16), np.uint32)
    state = behind_a_zero(behind_a_zero(np.arange(1 << 16, dtype=np.uint32)))
    for number in reversed(range(_HALVES)):
        tables[number] = state
        state = behind_a_zero(behind_a_zero(state))
    return tables, np.array([zlib.crc32(bytes(length)) for length in range(_SHORT + 1)], np.uint32)
