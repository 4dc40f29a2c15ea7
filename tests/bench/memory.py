"""Memory that has been touched, to be given back just before something is measured that takes new pages.

A virtual machine may get its memory from the host at the first touch of each page, and give what was freed back within
seconds (free page reporting): there a new page costs ten times what it costs on a machine of one's own, 2.5 us a KiB.
Whoever appends to a log takes new pages all the time, whichever program it is, and would be measured by that alone.
What is freed is taken again first, so a measurement right after `give` meets pages that are there.
"""

from __future__ import annotations

import mmap

import psutil

PIECE_BYTES = 128 << 20
_MADV_POPULATE_WRITE = 23


class TouchedMemory:
    """Holds memory in pieces of 128 MiB, at most a third of what is available. Needs Linux 5.14."""

    def __init__(self, pieces: int) -> None:
        pieces = min(pieces, psutil.virtual_memory().available // 3 // PIECE_BYTES)
        self._pieces = [_touched() for _ in range(pieces)]

    def give(self, pieces: int = 1) -> None:
        """Free so many pieces, as far as there are any left."""
        for piece in self._pieces[:pieces]:
            piece.close()
        del self._pieces[:pieces]


def _touched() -> mmap.mmap:
    piece = mmap.mmap(-1, PIECE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    piece.madvise(_MADV_POPULATE_WRITE)
    return piece
