"""What the timer log tells of a message for a chosen time: entries of fixed width. Pure.

Entry, big endian: due time in ms i8 | offset in the timer queue i8 | physical offset i8 | key i8 | size i4 | kind i4.
The physical offset is that of what the entry tells of: the waiting message, also one that cannot be delivered; or the
copy that was delivered, or the message that withdrew it. So an entry goes with what the log has lost.
"""

from __future__ import annotations

import enum
from hashlib import blake2b
from typing import Final

import numpy as np
import numpy.typing as npt

HOUR_MS: Final = 3_600_000
ENTRY: Final = np.dtype(
    [
        ("due_ms", ">i8"),
        ("queue_offset", ">i8"),
        ("physical_offset", ">i8"),
        ("key", ">i8"),
        ("size", ">i4"),
        ("kind", ">i4"),
    ]
)

Entries = npt.NDArray[np.void]
#: Due time and key: entries of one message have the same two, and stand together where they are sorted.
Mark = tuple[int, int]

LEAST_KEY: Final = -(1 << 63)


class EntryKind(enum.IntEnum):
    """What an entry says of a message."""

    WAITS = 1
    DELIVERED = 2
    WITHDRAWN = 3
    #: It waits on as a newer record, under another queue offset.
    MOVED = 4
    #: It cannot be delivered: its topic is gone, or its record is damaged.
    DROPPED = 5


NO_ENTRIES: Final = np.empty(0, ENTRY)


def key_of(delete_key: str) -> int:
    """A number of 64 bits for "<topic>_<unique key>", by which a waiting message is found."""
    return int.from_bytes(blake2b(delete_key.encode(), digest_size=8).digest(), "big", signed=True)


def in_order(entries: Entries) -> Entries:
    """The same by due time and key."""
    due, key = entries["due_ms"].astype(np.int64), entries["key"].astype(np.int64)
    ordered: Entries = entries[np.lexsort((key, due))]
    return ordered.astype(ENTRY, copy=False)


def still_waiting(entries: Entries) -> Entries:
    """Those that wait, each queue offset once, by due time and queue offset; all that is told of each is among them."""
    is_waiting = entries["kind"] == EntryKind.WAITS
    found: Entries = entries[is_waiting]
    offsets, firsts = np.unique(found["queue_offset"].astype(np.int64), return_index=True)
    if not is_waiting.all():
        ended = entries["queue_offset"][~is_waiting].astype(np.int64)
        firsts = firsts[~np.isin(offsets, ended)]
    by_offset: Entries = found[firsts]
    return by_offset[np.argsort(by_offset["due_ms"].astype(np.int64), kind="stable")]


def least_due_ms(entries: Entries, least_ms: int) -> int:
    """The earliest due time of what waits if there were only these entries, at most `least_ms`."""
    return int(still_waiting(entries)["due_ms"].astype(np.int64).min(initial=least_ms))
