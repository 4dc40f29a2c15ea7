"""The timer log's journals: entries in the order in which they were told, with a checksum for each append.

```
count u4 | CRC-32 of the count and the entries u4 | entries, 40 B each          one append
```

An append that is cut off or does not match ends what is whole. The timer log can tell all anew that came since its last
checkpoint, whose state says how long the journal was; so an end that is not whole is cut off where it is younger than
that, and what is older and not whole is damage.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Final, NamedTuple, Self

import numpy as np

from raymq.storage.errors import StoreCorrupt
from raymq.storage.files import fileutil
from raymq.storage.timers.entry import ENTRY, NO_ENTRIES, Entries

_COUNT: Final = struct.Struct(">I")
_HEAD: Final = struct.Struct(">II")


def framed(entries: Entries) -> bytes:
    """An append of entries, at least one."""
    content, count = entries.tobytes(), _COUNT.pack(len(entries))
    return count + _COUNT.pack(zlib.crc32(content, zlib.crc32(count))) + content


def whole_part(content: bytes) -> tuple[Entries, int]:
    """The entries of the appends that are whole, and how many bytes these are; nothing behind one that is not."""
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


class Kept(NamedTuple):
    """What is left of a journal: its entries, its length, and whether it told of records that the log has lost."""

    entries: Entries
    length: int
    lost: bool

    @classmethod
    def of(cls, path: Path, *, saved: int, log_end: int, memory_lost: bool) -> Self:
        """Read a journal and cut off what does not count.

        Args:
            saved: so much of it was on disk when the state was written.
            log_end: drop what tells of records at or behind it.
            memory_lost: what is behind `saved` does not count.

        Raises:
            StoreCorrupt: it is damaged. StoreFull, StoreFailed.
        """
        content = fileutil.read_whole(path)
        entries, length = whole_part(content[:saved] if memory_lost else content)
        if length < saved:
            raise StoreCorrupt(str(path), length, f"timers whose {saved} bytes are not what was written")
        kept = entries[entries["physical_offset"] < log_end]
        lost = len(kept) < len(entries)
        if lost:
            content = framed(kept) if len(kept) else b""
            length = len(content)
        if lost or length < path.stat().st_size:
            fileutil.replace(path, content[:length])
        return cls(kept, length, lost)
