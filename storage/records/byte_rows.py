"""View pieces of a buffer as rows of equal width for NumPy.

A row ends where its piece ends. If the piece is shorter than the row, the row starts with whatever bytes the buffer
holds before the piece. `width_classes` groups pieces of very different lengths so that no row is more than twice as
long as its piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from raymq.storage.records.record import Buffer

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
#: LAST_BYTES_MASK[k] keeps the last k bytes of a little-endian word and clears the others.
LAST_BYTES_MASK: Final = np.array([(1 << 64) - (1 << 8 * (8 - kept)) for kept in range(9)], np.uint64)


def every(mask: npt.NDArray[np.bool_]) -> bool:
    """Return True if all elements are true.

    It is several times faster than `mask.all()` on the few thousand elements of a batch.
    """
    return bool(np.count_nonzero(mask) == mask.size)


def any_true(mask: npt.NDArray[np.bool_]) -> bool:
    """Return True if at least one element is true; see `every`."""
    return bool(np.count_nonzero(mask))


def rows_at(buffer: Buffer, starts: Int64s, width: int) -> npt.NDArray[np.void]:
    """Copy `width` bytes from each start, as an array of V`width`.

    All of these bytes must lie within the buffer.
    """
    every = np.ndarray((max(0, len(buffer) - width + 1),), f"V{width}", buffer, strides=(1,))
    rows: npt.NDArray[np.void] = every[starts]
    return rows


def rows_before(buffer: Buffer, ends: Int64s, width: int) -> Bytes:
    """Copy the `width` bytes before each end, as an array of shape n x width.

    Bytes before the beginning of the buffer are zeros.

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
    """Yield row widths and, for each width, the indices of the pieces that need it.

    A width is `least` times a power of two; None instead of indices means all pieces.
    """
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
    """Split ascending, disjoint spans at each `separator`.

    A span without a separator is one piece, even if it is empty. Two separators in a row have an empty piece between
    them.

    Returns:
        Arrays of the span's index, the start and the end of every piece, in ascending order.
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
