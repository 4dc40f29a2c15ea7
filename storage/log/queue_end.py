"""Where a queue's file ends: at its first empty entry, found by few reads and without mapping the file.

The start of a store does this for each of its queues. Most of many queues are short, and end within the first page of
their file or not far behind; by halves over the whole file each of them would take twenty reads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

#: Entry k of a queue: where its message lies in the log, its size, the code of its tags.
ENTRY: Final = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
#: Entries that are read at once: about a page.
LOOK: Final = 200


def first_empty(read: Callable[[int, int], bytes], count: int) -> int:
    """The first empty entry within the first page, else one that has an entry before it; `count`: there is none.

    Args:
        read: bytes of the file, by position and length.
        count: of the entries that the file has room for.
    """
    found = _first_of(read, 0, min(count, LOOK))
    if found is not None:
        return found
    # What is before `low` is no empty entry; what is at `high` is one, or the file's end.
    low, high = min(count, LOOK), min(count, 2 * LOOK)
    while high < count and _first_of(read, high, high + 1) is None:
        low, high = high + 1, min(count, 2 * high)
    while high - low > LOOK:
        middle = (low + high) // 2
        if _first_of(read, middle, middle + 1) is None:
            low = middle + 1
        else:
            high = middle
    found = _first_of(read, low, high)
    return high if found is None else found


def _first_of(read: Callable[[int, int], bytes], begin: int, end: int) -> int | None:
    """The first empty one of these entries."""
    if end <= begin:
        return None
    entries = np.frombuffer(read(begin * ENTRY.itemsize, (end - begin) * ENTRY.itemsize), ENTRY)
    empty: npt.NDArray[np.bool_] = (entries["physical_offset"] < 0) | (entries["size"] <= 0)
    return begin + int(np.argmax(empty)) if empty.any() else None
