"""Journals of the timer log: entries in write order, with a checksum for each append.

```
count u4 | CRC-32 of the count and the entries u4 | entries, 40 B each          one append
```

An append that is cut off or does not match its checksum ends the valid part of a journal. Entries since the last
checkpoint can be rebuilt, and the state of that checkpoint records the journal's length. So an invalid end after that
length is cut off; invalid bytes before it are damage.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Final, NamedTuple, Self

import numpy as np

from raymq.storage.errors import StoreCorrupt
from raymq.storage.files import fileutil
from raymq.storage.timers.timer_entry import ENTRY, NO_ENTRIES, Entries, retained

_COUNT: Final = struct.Struct(">I")
_HEAD: Final = struct.Struct(">II")


def encode_append(entries: Entries) -> bytes:
    """Encode an append of at least one entry."""
    content, count = entries.tobytes(), _COUNT.pack(len(entries))
    return count + _COUNT.pack(zlib.crc32(content, zlib.crc32(count))) + content


def read_valid_prefix(content: bytes) -> tuple[Entries, int]:
    """Return the entries of the valid appends, and the length of these appends in bytes.

    Nothing after an invalid append is returned.
    """
    parts, at = [NO_ENTRIES], 0
    while at + _HEAD.size <= len(content):
        count, crc = _HEAD.unpack_from(content, at)
        begin, end = at + _HEAD.size, at + _HEAD.size + count * ENTRY.itemsize
        if not count or end > len(content):
            break
        if zlib.crc32(memoryview(content)[begin:end], zlib.crc32(_COUNT.pack(count))) != crc:
            break
        parts.append(np.frombuffer(content, ENTRY, count, begin))
        at = end
    return np.concatenate(parts).astype(ENTRY, copy=False), at


class RecoveredJournal(NamedTuple):
    """The valid content of a journal after recovery.

    `entries` are its entries, `length` is its length in bytes, and `lost` says whether entries were dropped, such as
    those whose records the log has lost.
    """

    entries: Entries
    length: int
    lost: bool

    @classmethod
    def of(cls, path: Path, *, saved: int, log_end: int, memory_lost: bool, keeps_dropped: bool) -> Self:
        """Read a journal and cut off the entries that do not count.

        Args:
            saved: how many bytes of it were on disk when the state was written.
            log_end: entries of records at or after this offset are dropped.
            memory_lost: bytes after `saved` do not count.
            keeps_dropped: False: entries of dropped messages are dropped.

        Raises:
            StoreCorrupt: the journal is damaged.
            StoreFull, StoreFailed: it cannot be read or rewritten.
        """
        content = fileutil.read_whole(path)
        entries, length = read_valid_prefix(content[:saved] if memory_lost else content)
        if length < saved:
            raise StoreCorrupt(str(path), length, f"timers whose {saved} bytes are not what was written")
        remaining = retained(entries, log_end, keeps_dropped)
        lost = len(remaining) < len(entries)
        if lost:
            content = encode_append(remaining) if len(remaining) else b""
            length = len(content)
        if lost or length < path.stat().st_size:
            fileutil.replace(path, content[:length])
        return cls(remaining, length, lost)
