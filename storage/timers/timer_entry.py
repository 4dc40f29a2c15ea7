"""Fixed-width entries of the timer log; each records one event of a timed message.

The module does no I/O. Entry, big endian: due time in ms i8 | offset in the timer queue i8 | physical offset i8 | key
i8 | size i4 | kind i4. The physical offset is that of the record that the entry describes: the waiting message (also
one that cannot be delivered), the copy that was delivered, or the message that withdrew it. So an entry becomes void if
the log loses that record.
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
#: Due time and key; all entries of one message have the same sort key, so they are adjacent in sorted files.
SortKey = tuple[int, int]

MIN_KEY: Final = -(1 << 63)


class EntryKind(enum.IntEnum):
    """The state of a message that an entry records."""

    WAITS = 1
    DELIVERED = 2
    WITHDRAWN = 3
    #: The message still waits, as a newer record with another queue offset.
    MOVED = 4
    #: The message cannot be delivered: its topic was deleted, or its record is damaged.
    DROPPED = 5


NO_ENTRIES: Final = np.empty(0, ENTRY)


def key_of(delete_key: str) -> int:
    """Return a 64-bit hash of "<topic>_<unique key>", which identifies a waiting message."""
    return int.from_bytes(blake2b(delete_key.encode(), digest_size=8).digest(), "big", signed=True)


def sort_entries(entries: Entries) -> Entries:
    """Return the entries sorted by due time and key."""
    due, key = entries["due_ms"].astype(np.int64), entries["key"].astype(np.int64)
    ordered: Entries = entries[np.lexsort((key, due))]
    return ordered.astype(ENTRY, copy=False)


def pending_entries(entries: Entries) -> Entries:
    """Return the waiting entries, each queue offset once, by due time and queue offset.

    `entries` has to contain all entries of each message.
    """
    is_waiting = entries["kind"] == EntryKind.WAITS
    found: Entries = entries[is_waiting]
    offsets, firsts = np.unique(found["queue_offset"].astype(np.int64), return_index=True)
    if not is_waiting.all():
        ended = entries["queue_offset"][~is_waiting].astype(np.int64)
        firsts = firsts[~np.isin(offsets, ended)]
    by_offset: Entries = found[firsts]
    return by_offset[np.argsort(by_offset["due_ms"].astype(np.int64), kind="stable")]


def min_due_ms(entries: Entries, least_ms: int) -> int:
    """Return the earliest due time of the waiting entries, at most `least_ms`."""
    return int(pending_entries(entries)["due_ms"].astype(np.int64).min(initial=least_ms))


def retained(entries: Entries, log_end: int, keeps_dropped: bool) -> Entries:
    """Return the entries of records before `log_end`, with or without those of dropped messages."""
    counts = entries["physical_offset"] < log_end
    if not keeps_dropped:
        counts &= entries["kind"] != EntryKind.DROPPED
    remaining: Entries = entries[counts]
    return remaining
