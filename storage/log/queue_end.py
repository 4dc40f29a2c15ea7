"""Find the end of a queue's file: its first empty entry.

It takes few reads and does not map the file, because opening a store does this for each of its queues. Most queues are
short and end within the first page of their file or soon after it; a binary search over the whole file would take
twenty reads for each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

#: An entry of a queue: physical offset, size and tags code of a message.
ENTRY: Final = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
#: How many entries are read at once, about a page.
PROBE_ENTRIES: Final = 200


def first_empty(read: Callable[[int, int], bytes], count: int) -> int:
    """Return the number of the first empty entry; `count` if there is none.

    If the first page has no empty entry, an empty entry that follows a nonempty one is returned.

    Args:
        read: a function that returns bytes of the file, by position and length.
        count: the number of entries that the file has room for.
    """
    found = _first_of(read, 0, min(count, PROBE_ENTRIES))
    if found is not None:
        return found
    # The entry before `low` is not empty; `high` is an empty entry or the file's end.
    low, high = min(count, PROBE_ENTRIES), min(count, 2 * PROBE_ENTRIES)
    while high < count and _first_of(read, high, high + 1) is None:
        low, high = high + 1, min(count, 2 * high)
    while high - low > PROBE_ENTRIES:
        middle = (low + high) // 2
        if _first_of(read, middle, middle + 1) is None:
            low = middle + 1
        else:
            high = middle
    found = _first_of(read, low, high)
    return high if found is None else found


def _first_of(read: Callable[[int, int], bytes], begin: int, end: int) -> int | None:
    """Return the first empty entry of begin..end; None if there is none."""
    if end <= begin:
        return None
    entries = np.frombuffer(read(begin * ENTRY.itemsize, (end - begin) * ENTRY.itemsize), ENTRY)
    empty: npt.NDArray[np.bool_] = (entries["physical_offset"] < 0) | (entries["size"] <= 0)
    return begin + int(np.argmax(empty)) if empty.any() else None
