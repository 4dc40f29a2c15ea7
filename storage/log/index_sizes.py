"""Find the numbers of slots and entries of index files when they are not recorded.

A directory of RocketMQ's does not contain them, and the file size is ambiguous: 500 slots and 1000 entries make a file
of the same size as 1000 slots and 900 entries. But only with the right numbers do the header, the slots and the entries
fit together.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from raymq.storage.files import fileutil
from raymq.storage.files.mapped_file import MappedFile
from raymq.storage.log.index_file import ENTRY, HEADER, file_bytes

_SLOT_BYTES: Final = 4
#: The bytes before the physical offset in an entry.
_HASH_BYTES: Final = 4
#: How many of the first entries are compared with their slots, which may point to newer entries by now.
_COMPARED: Final = 4096


def find(folder: Path, slots: int, entries: int) -> tuple[int, int] | None:
    """Return the slots and entries of the index files in `folder`.

    Return None if no file has an entry, or if no numbers fit.

    Args:
        slots, entries: the probable numbers, which are tried first.
    """
    for path in fileutil.paths_in(folder):
        size = path.stat().st_size
        if len(path.name) == 17 and path.name.isdigit() and size > file_bytes(1, 2):
            file = MappedFile(path, 0, size, writable=False)
            try:
                found = _find_in(file, slots, entries)
            finally:
                file.close()
            if found is not None:
                return found
    return None


def _find_in(file: MappedFile, slots: int, entries: int) -> tuple[int, int] | None:
    begin, end, count = (HEADER.unpack_from(file.view)[field] for field in (2, 3, 5))
    if count < 2:
        return None
    if file_bytes(slots, entries) == file.size and _fits(file, slots, begin, end, count):
        return slots, entries
    # Five more slots mean one entry less, and all entries lie 20 bytes further on.
    room = (file.size - HEADER.size) // _SLOT_BYTES
    least = room % (ENTRY.itemsize // _SLOT_BYTES) or ENTRY.itemsize // _SLOT_BYTES
    candidates = (room - least) // (ENTRY.itemsize // _SLOT_BYTES) - count + 1
    if (file.size - HEADER.size) % _SLOT_BYTES or candidates < 1:
        return None
    ends = []
    for number in (1, count - 1):
        at = HEADER.size + least * _SLOT_BYTES + number * ENTRY.itemsize + _HASH_BYTES
        ends.append(np.ndarray((candidates,), ">i8", file.view, at, (ENTRY.itemsize,)))
    for candidate in np.flatnonzero((ends[0] == begin) & (ends[1] == end)).tolist():
        slots = least + 5 * candidate
        if _fits(file, slots, begin, end, count):
            return slots, (room - slots) // (ENTRY.itemsize // _SLOT_BYTES)
    return None


def _fits(file: MappedFile, slots: int, begin: int, end: int, count: int) -> bool:
    """Return True if entries begin behind `slots` slots, and the slots point to them."""
    entries_at = HEADER.size + slots * _SLOT_BYTES
    if entries_at + count * ENTRY.itemsize > file.size:
        return False
    table = np.frombuffer(file.view, ">i4", slots, HEADER.size)
    entries = np.frombuffer(file.view, ENTRY, count, entries_at)
    first = entries[1 : 1 + _COMPARED]
    numbers = np.arange(1, 1 + len(first))
    if entries[1]["physical_offset"] != begin or entries[-1]["physical_offset"] != end or any(entries[0].tobytes()):
        return False
    if (first["hash"] < 0).any() or (np.diff(first["physical_offset"]) < 0).any():
        return False
    newest = table[first["hash"] % slots]
    return bool(((newest >= numbers) & (newest < count) & (first["previous"] < numbers)).all())
