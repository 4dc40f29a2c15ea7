"""Pieces of a buffer of many records as rows of equal width, so that NumPy works on all of them at once.

A row ends where its piece ends; what stands in front of a shorter piece is whatever the buffer holds there. Pieces of
very different lengths are taken by `width_classes`, so that no row is more than twice as long as its piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from raymq.storage.records.record import Buffer

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
#: KEEP_LAST[k] leaves of a little-endian word its last k bytes.
KEEP_LAST: Final = np.array([(1 << 64) - (1 << 8 * (8 - kept)) for kept in range(9)], np.uint64)


def every(mask: npt.NDArray[np.bool_]) -> bool:
    """Whether all are true; several times faster than `mask.all()` on the few thousand of a batch."""
    return bool(np.count_nonzero(mask) == mask.size)


def some(mask: npt.NDArray[np.bool_]) -> bool:
    """Whether one is true; see `every`."""
    return bool(np.count_nonzero(mask))


def rows_at(buffer: Buffer, starts: Int64s, width: int) -> npt.NDArray[np.void]:
    """A copy of the `width` bytes from each start on, all within the buffer, as an array of V`width`."""
    every = np.ndarray((max(0, len(buffer) - width + 1),), f"V{width}", buffer, strides=(1,))
    rows: npt.NDArray[np.void] = every[starts]
    return rows


def rows_before(buffer: Buffer, ends: Int64s, width: int) -> Bytes:
    """A copy of the `width` bytes in front of each end, n x width; zeros where the buffer has not begun yet.

    Args:
        ends: ascending.
    """
    early = int(np.searchsorted(ends, width)) if len(ends) and ends[0] < width else 0
    if not early:
        return rows_at(buffer, ends - width, width).view(np.uint8).reshape(len(ends), width)
    head = bytes(width) + bytes(memoryview(buffer)[: int(ends[early - 1])])
    rows = [rows_at(head, ends[:early], width)]
    if early < len(ends):
        rows.append(rows_at(buffer, ends[early:] - width, width))
    return np.concatenate(rows).view(np.uint8).reshape(len(ends), width)


def width_classes(lengths: Int64s, least: int) -> Iterator[tuple[int, Int64s | None]]:
    """Widths (`least` times a power of two) and the numbers of the pieces that need them; None = all pieces."""
    longest = int(lengths.max()) if len(lengths) else 0
    below, width = -1, least
    if longest <= width or int(lengths.min()) > longest // 2:
        while width < longest:
            width *= 2
        yield width, None
        return
    while below < longest:
        members = np.flatnonzero((lengths > below) & (lengths <= width))
        if len(members):
            yield width, members
        below, width = width, width * 2


def pieces(buffer: Buffer, starts: Int64s, ends: Int64s, separator: int) -> tuple[Int64s, Int64s, Int64s]:
    """Cut ascending, disjoint spans at each `separator`: (span's number, start, end) of every piece, in order.

    A span without a separator is one piece, also an empty one; two separators in a row have an empty piece between.
    """
    owners: list[Int64s] = []
    cuts: list[Int64s] = []
    for width, members in width_classes(ends - starts, 64):
        ends_ = ends if members is None else ends[members]
        hits = np.flatnonzero(rows_before(buffer, ends_, width).reshape(-1) == separator)
        if not len(hits):
            continue
        row = hits // width
        places = hits + (ends_ - width - np.arange(len(ends_)) * width)[row]
        owner = row if members is None else members[row]
        inside = places >= starts[owner]
        if not every(inside):
            owner, places = owner[inside], places[inside]
        if len(places):
            owners.append(owner)
            cuts.append(places)
    if not cuts:
        return np.arange(len(starts)), starts, ends
    owner, cut = owners[0], cuts[0]
    if len(cuts) > 1:
        cut = np.concatenate(cuts)
        order = np.argsort(cut, kind="stable")
        owner, cut = np.concatenate(owners)[order], cut[order]
    # Every cut ends a piece and begins the next one; each span's last piece ends with the span.
    last = np.cumsum(np.bincount(owner, minlength=len(starts)) + 1) - 1
    inner = np.ones(len(cut) + len(starts), np.bool_)
    inner[last] = False
    piece_ends = np.empty(len(inner), np.int64)
    piece_ends[last] = ends
    piece_ends[inner] = cut
    piece_starts = np.empty(len(inner), np.int64)
    piece_starts[1:] = piece_ends[:-1] + 1
    piece_starts[0] = starts[0]
    piece_starts[last[:-1] + 1] = starts[1:]
    piece_owners = np.empty(len(inner), np.int64)
    piece_owners[last] = np.arange(len(starts))
    piece_owners[inner] = owner
    return piece_owners, piece_starts, piece_ends
